"""Open whatever holds samples: a run folder, our files, or those of others."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ..sample import SampleTable, SourceError
from ..segments import SUFFIX, read_parquet, read_samples, read_segment
from .exporter_text import read_exporter_text
from .gssr_csv import read_gssr_csv
from .gssr_json import read_gssr_json
from .recording import Recording

_FIX = (
    "Name a run folder, a segment (.arrows), Parquet of ours, JSON of gssr, CSV of gssr-record, "
    "or text of DCGM exporter."
)


def open_recording(path: Path) -> Recording:
    """The samples of a file or folder, whatever wrote them.

    Raises
    ------
    SourceError
        It can't be read, or holds no sample.
    """
    try:
        recording = _folder(path) if path.is_dir() else _file(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SourceError(f"{path} can't be read: {reason.rstrip('.')}.", _FIX) from error
    if not recording.table.rows:
        raise SourceError(f"{path} holds no sample.", _FIX)
    return recording


def _folder(path: Path) -> Recording:
    telemetry = path / "telemetry"
    segments = telemetry if telemetry.is_dir() else path
    if any(segments.glob(f"*{SUFFIX}")):
        table = read_samples(segments)
        mixed = len({gpu.simulated for gpu in table.gpus}) > 1
        notes = ("Simulated GPUs are left out.",) if mixed else ()
        return Recording(_real(table) if mixed else table, path.resolve().name, notes)
    for pattern, read in (("proc_*.csv", read_gssr_csv), ("*_proc_*.json", read_gssr_json)):
        found = sorted(path.rglob(pattern))
        if found:
            return _several(found, read, path.resolve().name)
    raise ValueError("no recording is in it")


def _real(table: SampleTable) -> SampleTable:
    return replace(table, devices=tuple(device for device in table.devices if not device.simulated))


def _several(paths: list[Path], read: Callable[[Path], Recording], label: str) -> Recording:
    """The files of one job; one that can't be read is told, not fatal, as long as another can."""
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
    with path.open("rb") as file:
        begin = file.read(64)
    if begin.startswith(b"PAR1"):
        return Recording(read_parquet(path), path.name)
    if begin.startswith(b"\xff\xff\xff\xff") or path.name.endswith(SUFFIX):
        return Recording(_segment(path), path.name)
    if begin.lstrip().startswith(b"{"):
        return read_gssr_json(path)
    if begin.startswith(b"timestamp,gpuId"):
        return read_gssr_csv(path)
    return read_exporter_text(path)


def _segment(path: Path) -> SampleTable:
    table = read_segment(path)
    if table.segments and table.segments[0].state == "unreadable":
        raise ValueError("it is no segment, or torn before its first sample")
    return table
