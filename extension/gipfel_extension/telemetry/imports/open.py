"""Open whatever holds samples: a run folder, our files, or those of others."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from ..files import open_regular
from ..sample import SampleTable, SourceError
from ..store.segments import SUFFIX, read_parquet, read_segment
from .exporter_text import read_exporter_text
from .gssr_csv import read_gssr_csv
from .gssr_json import read_gssr_json
from .recording import Recording
from .run_folder import is_run_folder, read_run_folder

_FIX = (
    "Name a run folder, a segment (.arrows), Parquet of ours, JSON of gssr, CSV of gssr-record, "
    "text of DCGM exporter, or prometheus:URL?nodes=N&start=TIME&end=TIME."
)


def open_recording(path: Path) -> Recording:
    """The samples of a file or folder, whatever wrote them, or of ``prometheus:URL?…``.

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
    return read_exporter_text(path)


def _segment(path: Path) -> SampleTable:
    table = read_segment(path)
    if table.segments and table.segments[0].state == "unreadable":
        raise ValueError("it is no segment, or torn before its first sample")
    return table
