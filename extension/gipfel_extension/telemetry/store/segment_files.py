"""Listing of the segment files in a telemetry directory with their time ranges, without duplicates."""

import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..events import file_name

SUFFIX = ".arrows"
CLOSED = ".closed.arrows"
PARQUET = ".closed.parquet"

#: The clocks of file server and node may differ, and a clock may be set back while a segment is written:
#: files are skipped unopened only where they are outside a time range by more than this.
_SKEW_NS = 3660 * 10**9
#: The stem, in it the start time and a number, and what the state of the segment is known by.
_NAME = re.compile(r"(.*?(?:-(\d{1,19})-\d+)?)(\.closed\.parquet|(?:\.closed)?\.arrows)", re.DOTALL)


@dataclass(frozen=True)
class SegmentFile:
    """One segment on disk.

    Parameters
    ----------
    stem
        The path without ``.arrows`` or ``.closed.…``; the names of related files, such as summaries, start
        with it.
    start_ns
        UTC time at which the segment starts; None where the name has none.
    written_ns
        UTC time of the last modification.
    """

    path: Path
    stem: Path
    start_ns: int | None
    written_ns: int

    @property
    def closed(self) -> bool:
        """True where its writer marked it as complete."""
        return self.path.name.endswith((CLOSED, PARQUET))

    def overlaps(self, since_ns: int | None, until_ns: int | None) -> bool:
        """Return whether the segment may hold samples of a time range; None leaves an end open."""
        if since_ns is not None and self.written_ns + _SKEW_NS < since_ns:
            return False
        return until_ns is None or self.start_ns is None or self.start_ns - _SKEW_NS <= until_ns


def segment_prefix(node: str, recorder: str) -> str:
    """Return the prefix of the file names of a recorder's segments, before time and number."""
    prefix = "" if recorder == "job" else f"{recorder}-"
    return prefix + (file_name(node) or "node")


def segment_files(folder: Path) -> list[SegmentFile]:
    """Return the segments in a directory, sorted by name; Parquet takes precedence over the stream."""
    found: dict[str, SegmentFile] = {}
    for path, status in _regular(folder):
        name = _NAME.fullmatch(path.name)
        if name and (name[1] not in found or name[3] == PARQUET):
            start_ns = int(name[2]) if name[2] else None
            found[name[1]] = SegmentFile(path, path.with_name(name[1]), start_ns, status.st_mtime_ns)
    return [found[stem] for stem in sorted(found)]


def current_path(path: Path) -> Path:
    """Return a segment's current path: since the listing it may have been closed or converted to Parquet."""
    stem = path.name.removesuffix(PARQUET).removesuffix(CLOSED).removesuffix(SUFFIX)
    for suffix in (PARQUET, CLOSED, SUFFIX):
        candidate = path.with_name(stem + suffix)
        if candidate.exists():
            return candidate
    return path


def _regular(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the regular segment files in a directory, with their status."""
    try:
        entries = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        path = Path(entry.path)
        if not entry.name.endswith((SUFFIX, PARQUET)):
            continue
        with suppress(OSError):
            try:
                status = entry.stat()
            except OSError:
                # Renamed since the listing.
                path = current_path(path)
                status = path.stat()
            if stat.S_ISREG(status.st_mode):
                yield path, status
