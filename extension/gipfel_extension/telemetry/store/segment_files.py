"""The files of a telemetry folder: which segments there are, from when to when, each once."""

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SUFFIX = ".arrows"
CLOSED = ".closed.arrows"
PARQUET = ".closed.parquet"

#: Clocks of file server and node may differ, and a clock may be set back while a segment is written: only
#: what is outside a range by more seconds than this is left out without being opened.
_SKEW_NS = 3660 * 10**9
_START = re.compile(r"-(\d{1,19})-\d+$")


@dataclass(frozen=True)
class SegmentFile:
    """One segment on disk.

    Parameters
    ----------
    stem
        Its path without ``.arrows`` or ``.closed.…``; what belongs to it has this in front.
    start_ns
        UTC time at which it was begun; None where its name has none.
    written_ns
        UTC time of its last change.
    """

    path: Path
    stem: Path
    start_ns: int | None
    written_ns: int

    @property
    def closed(self) -> bool:
        """True where its writer has marked it as complete."""
        return self.path.name.endswith((CLOSED, PARQUET))

    def within(self, since_ns: int | None, until_ns: int | None) -> bool:
        """Return whether it may hold samples of a time range; None is open."""
        if since_ns is not None and self.written_ns + _SKEW_NS < since_ns:
            return False
        return until_ns is None or self.start_ns is None or self.start_ns - _SKEW_NS <= until_ns


def segment_begin(node: str, recorder: str) -> str:
    """Return how the names of a recorder's segments begin; the time and a number follow."""
    prefix = "" if recorder == "job" else f"{recorder}-"
    return prefix + ("".join(c if c.isalnum() or c in "._-" else "_" for c in node) or "node")


def segment_files(folder: Path) -> list[SegmentFile]:
    """Return the segments of a folder by name; of one that is there as stream and as Parquet, the Parquet."""
    found: dict[str, SegmentFile] = {}
    for path, status in _regular(folder):
        name = path.name
        for suffix in (PARQUET, CLOSED, SUFFIX):
            if name.endswith(suffix):
                stem = path.with_name(name.removesuffix(suffix))
                known = found.get(stem.name)
                if known is None or suffix == PARQUET:
                    start = _START.search(stem.name)
                    begun = int(start.group(1)) if start else None
                    found[stem.name] = SegmentFile(path, stem, begun, status.st_mtime_ns)
                break
    return [found[name] for name in sorted(found)]


def current_path(path: Path) -> Path:
    """Return a segment's path now: since the last listing it may have been closed, or made Parquet."""
    stem = path.name.removesuffix(PARQUET).removesuffix(CLOSED).removesuffix(SUFFIX)
    for suffix in (PARQUET, CLOSED, SUFFIX):
        candidate = path.with_name(stem + suffix)
        if candidate.exists():
            return candidate
    return path


def _regular(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield regular files: a pipe never comes to an end."""
    try:
        entries = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if not entry.name.endswith((SUFFIX, PARQUET)):
            continue
        try:
            status = entry.stat()
        except OSError:
            # Gone since the listing, to come back under its next name: found by who opens it.
            path = current_path(Path(entry.path))
            try:
                status = path.stat()
            except OSError:
                continue
        else:
            path = Path(entry.path)
        if stat.S_ISREG(status.st_mode):
            yield path, status
