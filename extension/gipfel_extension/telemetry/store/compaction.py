"""Closed segments become Parquet, and their summaries are packed: a fifth of the disk, the same samples.

Safe at any moment: what replaces a file is written beside it, brought to the disk, looked at, and renamed
over it in one step. Two processes that do it at a time write the same twice.
"""

import contextlib
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..files import read_record_file
from ..sample import Provenance, SampleTable
from .parquet import extra_metrics, is_whole, write_parquet
from .segment_files import CLOSED, PARQUET
from .segment_stream import read_stream
from .summaries import LEVELS, pack_summary, summary_path

#: What is being written; of a process that was killed it is removed after an hour.
_PART = ".part"
_STALE_S = 3600.0


@dataclass(frozen=True)
class Compaction:
    """Result of a compaction: how many closed segments are Parquet now, and why others are not."""

    converted: int = 0
    left: tuple[str, ...] = ()


def run_has_ended(run: Path) -> bool:
    """Return whether a run has ended, by its record."""
    return bool(read_record_file(run).get("ended"))


def compact(
    telemetry: Path, *, deadline: float | None = None, monotonic: Callable[[], float] = time.monotonic
) -> Compaction:
    """Make Parquet of each closed segment that is smaller so.

    Parameters
    ----------
    deadline
        Time of `monotonic` at which no further one is begun.

    Raises
    ------
    OSError
        The folder can't be read.
    """
    converted, left = 0, []
    _sweep(telemetry)
    for path in sorted(telemetry.glob(f"*{CLOSED}")):
        if deadline is not None and monotonic() > deadline:
            left.append(f"{path.name}: there was no time left")
            continue
        try:
            converted += _convert(path)
        except FileNotFoundError:
            continue  # another process was faster
        except (OSError, ValueError) as error:
            left.append(f"{path.name}: {error}")
    return Compaction(converted, tuple(left))


def _convert(path: Path) -> bool:
    about = path.lstat()
    if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid():
        raise ValueError("it is not your file")
    stem = path.with_name(path.name.removesuffix(CLOSED))
    target = stem.with_name(stem.name + PARQUET)
    table = read_stream(path)
    state = table.segments[0]
    if state.state != "closed":
        raise ValueError(f"it is {state.state}")
    if not is_whole(target, table.rows):
        with _part(target) as part:
            write_parquet(table, part, provenance=_provenance(table))
            if not is_whole(part, table.rows):
                raise ValueError("it can't be read back from Parquet")
            if part.stat().st_size >= about.st_size:
                return False
            _publish(part, target, about)
    for level in LEVELS:
        # A summary repeats samples: one that is damaged is read from them.
        with contextlib.suppress(OSError, ValueError):
            pack_summary(summary_path(stem, level), _put)
    path.unlink()
    _sync(path.parent)
    return True


def _provenance(table: SampleTable) -> Provenance:
    state = table.segments[0]
    return Provenance(
        state.node,
        state.recorder,
        state.source,
        table.simulated,
        state.interval,
        state.devices,
        extra_metrics(table),
    )


@contextlib.contextmanager
def _part(target: Path) -> Iterator[Path]:
    """Yield a file beside its target; gone at the end unless it was renamed."""
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=_PART)
    os.close(handle)
    path = Path(name)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _put(path: Path, content: bytes) -> None:
    with _part(path) as part:
        part.write_bytes(content)
        _publish(part, path, path.stat())


def _publish(part: Path, target: Path, about: os.stat_result) -> None:
    _sync(part)
    # As old as its samples: a reader of other times needn't open it.
    os.utime(part, ns=(about.st_atime_ns, about.st_mtime_ns))
    part.replace(target)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sweep(folder: Path) -> None:
    for path in folder.glob(f".*{_PART}"):
        with contextlib.suppress(OSError):
            if time.time() - path.lstat().st_mtime > _STALE_S:
                path.unlink()
