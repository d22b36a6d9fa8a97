"""Import of recordings of Gipfel and of other tools as one table, with notes on what their format lacks.

:func:`open_recording` opens any of them. Each module of this package reads one foreign format into a
:class:`Recording`.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..events import read_event_files
from ..files import open_regular, read_record_file
from ..ranks import gpu_uuids_by_rank, read_ranks
from ..sample import SampleTable, SourceError
from ..store.fine import read_finest
from ..store.segment_files import segment_files
from ..store.segments import SUFFIX, read_parquet, read_segment
from .gssr import read_gssr_csv, read_gssr_json
from .recording import Recording

__all__ = ["Recording", "open_recording"]
#: A note names nodes that begin later than the first node, or end earlier than the last, by more than this.
_MAX_DIFFERENCE_S = 30.0
_MAX_LISTED = 5
#: Kinds of events that explain a gap or an overlap in the samples.
_SAMPLE_LOSS_KINDS = frozenset(
    (
        "recorder_lost",
        "recorder_stalled",
        "samples_lost",
        "clock_step",
        "node_lost",
        "source_lost",
        "gpu_lost",
        "second_recorder",
    )
)

_FIX = (
    "Use a run folder, a segment (.arrows), Gipfel's Parquet, JSON of gssr, CSV of gssr-record, "
    "text of DCGM exporter, or prometheus:URL?nodes=N&start=TIME&end=TIME."
)


def open_recording(path: Path) -> Recording:
    """Read the samples of a file or directory in any known format, or of ``prometheus:URL?…``.

    Raises
    ------
    SourceError
        The recording cannot be read, or has no sample.
    """
    if str(path).startswith("prometheus:"):
        from .prometheus import open_prometheus_range  # noqa: PLC0415 - needs HTTP, which files do not

        # The conversion to a path removed one of the URL's slashes.
        address = re.sub(r"^(https?):/+", r"\1://", str(path).removeprefix("prometheus:"))
        return open_prometheus_range(address, os.environ)
    try:
        recording = _read_directory(path) if path.is_dir() else _read_file(path)
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SourceError(f"{path} can't be read: {reason.rstrip('.')}.", _FIX) from error
    if not recording.table.rows:
        raise SourceError(f"{path} has no samples.", _FIX)
    return recording


def _read_directory(path: Path) -> Recording:
    if is_run_folder(path):
        return read_run_folder(path)
    for pattern, read in (("proc_*.csv", read_gssr_csv), ("*_proc_*.json", read_gssr_json)):
        found = sorted(path.rglob(pattern))
        if found:
            return _read_files(found, read, path.resolve().name)
    raise ValueError("it contains no recording")


def _read_files(paths: list[Path], read: Callable[[Path], Recording], label: str) -> Recording:
    """Read the files of one job; unreadable files become notes unless all are unreadable."""
    parts, failed = [], []
    for path in paths:
        try:
            parts.append(read(path))
        except (OSError, ValueError) as error:
            failed.append(f"{path.name} is left out: {error}.")
    if not parts:
        raise ValueError(failed[0].rstrip("."))
    whole = Recording.merged(parts, label)
    return Recording(whole.table, whole.label, (*whole.notes, *failed), whole.ranks)


def _read_file(path: Path) -> Recording:
    with open_regular(path, follow=True) as file:
        begin = file.read(64)
    if begin.startswith(b"PAR1"):
        return Recording(read_parquet(path), path.name)
    if begin.startswith(b"\xff\xff\xff\xff") or path.name.endswith(SUFFIX):
        return Recording(_segment(path), path.name)
    if begin.lstrip().startswith(b"{"):
        return read_gssr_json(path)
    if begin.startswith(b"timestamp,gpuId"):
        return read_gssr_csv(path)
    from .prometheus import read_exporter_text  # noqa: PLC0415 - needs HTTP, which other files do not

    return read_exporter_text(path)


def _segment(path: Path) -> SampleTable:
    table = read_segment(path)
    if table.segments and table.segments[0].state == "unreadable":
        raise ValueError("it is not a segment, or is cut off before its first sample")
    return table


def is_run_folder(path: Path) -> bool:
    """Return whether a directory or its ``telemetry`` contains a segment."""
    return bool(segment_files(_telemetry(path)))


def read_run_folder(path: Path) -> Recording:
    """Read a run folder or its telemetry; simulated GPUs are used only where there are no real ones."""
    telemetry = _telemetry(path)
    table = read_finest(telemetry)
    notes = [*_coverage_notes(table, _nodes(path)), *_event_notes(telemetry)]
    if len({gpu.simulated for gpu in table.gpus}) > 1:
        table = replace(table, devices=tuple(device for device in table.devices if not device.simulated))
        notes.append("Simulated GPUs are left out.")
    return Recording(table, path.resolve().name, tuple(notes), gpu_uuids_by_rank(read_ranks(telemetry)))


def _telemetry(path: Path) -> Path:
    telemetry = path / "telemetry"
    return telemetry if telemetry.is_dir() else path


def _nodes(path: Path) -> tuple[str, ...]:
    """Return the nodes of the run's record."""
    named: Any = read_record_file(path).get("nodes")
    return tuple(str(node) for node in named) if isinstance(named, list) else ()


def _coverage_notes(table: SampleTable, expected: tuple[str, ...]) -> Iterator[str]:
    """Yield notes on nodes without samples and on nodes that started late or ended early."""
    time_ranges = _time_ranges(table)
    nodes_with_samples = {device.node for device in table.devices if len(table[device.uuid]["time_ns"])}
    silent = [node for node in expected if node not in nodes_with_samples]
    if silent:
        yield f"There are no samples of {_listed(silent)} of the job's {len(expected)} nodes."
    if len(time_ranges) < 2:
        return
    first = min(begin for begin, _ in time_ranges.values())
    last = max(end for _, end in time_ranges.values())
    late = {node: (begin - first) / 1e9 for node, (begin, _) in time_ranges.items()}
    early = {node: (last - end) / 1e9 for node, (_, end) in time_ranges.items()}
    for seconds, text in (
        (late, "begin up to {:.0f} s after the first"),
        (early, "end up to {:.0f} s before the last"),
    ):
        nodes = sorted(node for node, missing in seconds.items() if missing > _MAX_DIFFERENCE_S)
        if nodes:
            yield f"The samples of {_listed(nodes)} {text.format(max(seconds.values()))}."


def _event_notes(telemetry: Path) -> Iterator[str]:
    """Yield notes on events that lose samples or distort their times."""
    found = read_event_files(telemetry)
    messages = list(
        dict.fromkeys(f"{e.node}: {e.message}" for e in found.events if e.kind in _SAMPLE_LOSS_KINDS)
    )
    yield from messages[:_MAX_LISTED]
    if len(messages) > _MAX_LISTED:
        yield f"{len(messages) - _MAX_LISTED} more events of this kind are in the run folder."
    if found.damaged_lines:
        yield f"{found.damaged_lines} lines of events are damaged."


def _time_ranges(table: SampleTable) -> Mapping[str, tuple[int, int]]:
    """Return the first and last time of each node's samples."""
    ends: dict[str, list[int]] = {}
    for device in table.devices:
        times = table[device.uuid]["time_ns"]
        if not device.simulated:
            ends.setdefault(device.node, []).extend(times[[0, -1]].tolist() if len(times) else ())
    return {node: (min(own), max(own)) for node, own in ends.items() if own}


def _listed(names: list[str]) -> str:
    if len(names) <= _MAX_LISTED:
        return ", ".join(names)
    return f"{', '.join(names[:_MAX_LISTED])} and {len(names) - _MAX_LISTED} more"
