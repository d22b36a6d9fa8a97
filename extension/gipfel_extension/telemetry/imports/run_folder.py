"""A run folder of ours as a recording: its samples, its ranks, and what of it is missing."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..events import read_event_files
from ..files import read_record_file
from ..ranks import gpus_by_rank, read_ranks
from ..sample import SampleTable
from ..store.fine import read_finest
from ..store.segment_files import segment_files
from .recording import Recording

#: A node whose samples begin or end so much apart from the others' is named.
_APART_S = 30.0
_NAMED = 5
#: Kinds of events without which a gap or an overlap in the samples looks like the work's.
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


def is_run_folder(path: Path) -> bool:
    """Whether there is a segment in a folder or in its ``telemetry``."""
    return bool(segment_files(_telemetry(path)))


def read_run_folder(path: Path) -> Recording:
    """The recording of a run folder or its telemetry; simulated GPUs only where there are no others."""
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
    """The nodes that the record names."""
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
    """What recorders noted that cost samples, or makes their times odd."""
    found = read_event_files(telemetry)
    told = list(dict.fromkeys(f"{e.node}: {e.message}" for e in found.events if e.kind in _COSTLY))
    yield from told[:_NAMED]
    if len(told) > _NAMED:
        yield f"{len(told) - _NAMED} more events of this kind are in the run folder."
    if found.damaged:
        yield f"{found.damaged} lines of events are damaged."


def _spans(table: SampleTable) -> Mapping[str, tuple[int, int]]:
    """First and last time of each node's samples."""
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
