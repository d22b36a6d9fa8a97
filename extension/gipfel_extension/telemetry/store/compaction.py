"""Compaction of closed segments to Parquet and of their summaries: the same samples in a fifth of the space.

It is safe to interrupt: a replacement is written to a temporary file, synced, verified, and renamed over the
original atomically. Two processes that compact at the same time write identical files.
"""

import contextlib
import os
import stat
import time
from dataclasses import dataclass, replace
from pathlib import Path

from ..files import read_record_file, sync_directory
from .parquet import PART, extra_metrics, is_complete_parquet, temporary_beside, write_parquet
from .segment_files import CLOSED, PARQUET
from .segment_stream import read_stream
from .summaries import LEVELS, pack_summary, summary_path

#: Age from which temporary files of a killed process are removed.
_STALE_S = 3600.0


@dataclass(frozen=True)
class Compaction:
    """Result of a compaction: the number of converted segments, and why others were skipped."""

    converted: int = 0
    skipped: tuple[str, ...] = ()


def run_has_ended(run: Path) -> bool:
    """Return whether a run has ended according to its record."""
    return bool(read_record_file(run).get("ended"))


def compact(telemetry: Path) -> Compaction:
    """Convert each closed segment to Parquet unless Parquet is larger.

    Raises
    ------
    OSError
        The directory cannot be read.
    """
    converted, skipped = 0, []
    _remove_stale_parts(telemetry)
    for path in sorted(telemetry.glob(f"*{CLOSED}")):
        try:
            converted += _convert(path)
        except FileNotFoundError:
            continue  # Another process converted it.
        except (OSError, ValueError) as error:
            skipped.append(f"{path.name}: {error}")
    return Compaction(converted, tuple(skipped))


def _convert(path: Path) -> bool:
    about = path.lstat()
    if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid():
        raise ValueError("it is not a regular file of yours")
    stem = path.with_name(path.name.removesuffix(CLOSED))
    target = stem.with_name(stem.name + PARQUET)
    table = read_stream(path)
    state = table.segments[0]
    if state.state != "closed":
        raise ValueError(f"it is {state.state}")
    if not is_complete_parquet(target, table.rows):
        with temporary_beside(target) as part:
            write_parquet(table, part, provenance=replace(state.provenance, extra=extra_metrics(table)))
            if not is_complete_parquet(part, table.rows):
                raise ValueError("it cannot be read back from Parquet")
            if part.stat().st_size >= about.st_size:
                return False
            _replace_file(part, target, about)
    for level in LEVELS:
        # Nothing is lost with a damaged summary: readers fall back to the samples.
        with contextlib.suppress(OSError, ValueError):
            pack_summary(summary_path(stem, level), _replace_content)
    path.unlink()
    sync_directory(path.parent)
    return True


def _replace_content(path: Path, content: bytes) -> None:
    with temporary_beside(path) as part:
        part.write_bytes(content)
        _replace_file(part, path, path.stat())


def _replace_file(part: Path, target: Path, status: os.stat_result) -> None:
    with part.open("rb") as file:
        os.fsync(file.fileno())
    # Keep the modification time: readers of other time ranges skip the file by it.
    os.utime(part, ns=(status.st_atime_ns, status.st_mtime_ns))
    part.replace(target)


def _remove_stale_parts(folder: Path) -> None:
    for path in folder.glob(f".*{PART}"):
        with contextlib.suppress(OSError):
            if time.time() - path.lstat().st_mtime > _STALE_S:
                path.unlink()
