"""Open recordings of ours and of others as one table, with notes on what their format lost.

:func:`open_recording` takes any of them; a module here reads each foreign format into a :class:`Recording`.
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
from ..ranks import gpus_by_rank, read_ranks
from ..sample import SampleTable, SourceError
from ..store.fine import read_finest
from ..store.segment_files import segment_files
from ..store.segments import SUFFIX, read_parquet, read_segment
from .gssr import read_gssr_csv, read_gssr_json
from .recording import Recording

__all__ = ["Recording", "open_recording"]
#: A node whose samples begin or end so much apart from the others' is named.
_APART_S = 30.0
_NAMED = 5
#: Kinds of events that explain a gap or an overlap in the samples.
_COSTLY = frozenset(
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
    "Name a run folder, a segment (.arrows), Parquet of ours, JSON of gssr, CSV of gssr-record, "
    "text of DCGM exporter, or prometheus:URL?nodes=N&start=TIME&end=TIME."
)


def open_recording(path: Path) -> Recording:
    """Read the samples of a file or folder of any known format, or of ``prometheus:URL?…``.

    Raises
    ------
    SourceError
        It can't be read, or holds no sample.
    """
    if str(path).startswith("prometheus:"):
        from .prometheus import open_prometheus_range  # noqa: PLC0415 - HTTP, which files need none of

        # As a path the address has lost one of its slashes.
        address = re.sub(r"^(https?):/+", r"\1://", str(path).removeprefix("prometheus:"))
        return open_prometheus_range(address, os.environ)
    try:
        recording = _folder(path) if path.is_dir() else _file(path)
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SourceError(f"{path} can't be read: {reason.rstrip('.')}.", _FIX) from error
    if not recording.table.rows:
        raise SourceError(f"{path} holds no sample.", _FIX)
    return recording


def _folder(path: Path) -> Recording:
    if is_run_folder(path):
        return read_run_folder(path)
    for pattern, read in (("proc_*.csv", read_gssr_csv), ("*_proc_*.json", read_gssr_json)):
        found = sorted(path.rglob(pattern))
        if found:
            return _several(found, read, path.resolve().name)
    raise ValueError("no recording is in it")


def _several(paths: list[Path], read: Callable[[Path], Recording], label: str) -> Recording:
    """Read the files of one job; one that can't be read is noted as long as another can."""
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


def _file(path: Path) -> Recording:
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
    from .prometheus import read_exporter_text  # noqa: PLC0415 - as above

    return read_exporter_text(path)


def _segment(path: Path) -> SampleTable:
    table = read_segment(path)
    if table.segments and table.segments[0].state == "unreadable":
        raise ValueError("it is not a segment, or is cut off before its first sample")
    return table


def is_run_folder(path: Path) -> bool:
    """Return whether there is a segment in a folder or in its ``telemetry``."""
    return bool(segment_files(_telemetry(path)))


def read_run_folder(path: Path) -> Recording:
    """Read a run folder or its telemetry; simulated GPUs only where there are no others."""
    telemetry = _telemetry(path)
    table = read_finest(telemetry)
    notes = [*_missing(table, _nodes(path)), *_happened(telemetry)]
    if len({gpu.simulated for gpu in table.gpus}) > 1:
        table = replace(table, devices=tuple(device for device in table.devices if not device.simulated))
        notes.append("Simulated GPUs are left out.")
    return Recording(table, path.resolve().name, tuple(notes), gpus_by_rank(read_ranks(telemetry)))


def _telemetry(path: Path) -> Path:
    telemetry = path / "telemetry"
    return telemetry if telemetry.is_dir() else path


def _nodes(path: Path) -> tuple[str, ...]:
    """Return the nodes that the record names."""
    named: Any = read_record_file(path).get("nodes")
    return tuple(str(node) for node in named) if isinstance(named, list) else ()


def _missing(table: SampleTable, expected: tuple[str, ...]) -> Iterator[str]:
    spans = _spans(table)
    there = {device.node for device in table.devices if len(table.of(device.uuid)["time_ns"])}
    silent = [node for node in expected if node not in there]
    if silent:
        yield f"{_some(silent)} of the job's {len(expected)} nodes left no sample."
    if len(spans) < 2:
        return
    first = min(begin for begin, _ in spans.values())
    last = max(end for _, end in spans.values())
    late = {n: (begin - first) / 1e9 for n, (begin, _) in spans.items() if begin - first > _APART_S * 1e9}
    early = {n: (last - end) / 1e9 for n, (_, end) in spans.items() if last - end > _APART_S * 1e9}
    if late:
        yield f"The samples of {_some(sorted(late))} begin up to {max(late.values()):.0f} s after the first."
    if early:
        yield f"The samples of {_some(sorted(early))} end up to {max(early.values()):.0f} s before the last."


def _happened(telemetry: Path) -> Iterator[str]:
    """Yield notes on events that cost samples or distort their times."""
    found = read_event_files(telemetry)
    costly = list(dict.fromkeys(f"{e.node}: {e.message}" for e in found.events if e.kind in _COSTLY))
    yield from costly[:_NAMED]
    if len(costly) > _NAMED:
        yield f"{len(costly) - _NAMED} more events of this kind are in the run folder."
    if found.damaged:
        yield f"{found.damaged} lines of events are damaged."


def _spans(table: SampleTable) -> Mapping[str, tuple[int, int]]:
    """Return first and last time of each node's samples."""
    spans: dict[str, tuple[int, int]] = {}
    for device in table.devices:
        times = table.of(device.uuid)["time_ns"]
        if len(times) and not device.simulated:
            known = spans.get(device.node, (int(times[0]), int(times[-1])))
            spans[device.node] = (min(known[0], int(times[0])), max(known[1], int(times[-1])))
    return spans


def _some(names: list[str]) -> str:
    if len(names) <= _NAMED:
        return ", ".join(names)
    return f"{', '.join(names[:_NAMED])} and {len(names) - _NAMED} more"
