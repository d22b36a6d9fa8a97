"""Listing of the segment files in a telemetry directory with their time ranges, without duplicates."""

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SUFFIX = ".arrows"
CLOSED = ".closed.arrows"
PARQUET = ".closed.parquet"

#: The clocks of file server and node may differ, and a clock may be set back while a segment is written:
#: files are skipped unopened only where they are outside a time range by more than this.
_SKEW_NS = 3660 * 10**9
_START = re.compile(r"-(\d{1,19})-\d+$")


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
    return prefix + ("".join(c if c.isalnum() or c in "._-" else "_" for c in node) or "node")


def segment_files(folder: Path) -> list[SegmentFile]:
    """Return the segments in a directory, sorted by name; Parquet takes precedence over the stream."""
    found: dict[str, SegmentFile] = {}
    for path, status in _regular(folder):
        name = path.name
        for suffix in (PARQUET, CLOSED, SUFFIX):
            if name.endswith(suffix):
                stem = path.with_name(name.removesuffix(suffix))
                known = found.get(stem.name)
                if known is None or suffix == PARQUET:
                    start = _START.search(stem.name)
                    start_ns = int(start.group(1)) if start else None
                    found[stem.name] = SegmentFile(path, stem, start_ns, status.st_mtime_ns)
                break
    return [found[name] for name in sorted(found)]


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
        if not entry.name.endswith((SUFFIX, PARQUET)):
            continue
        try:
            status = entry.stat()
        except OSError:
            # Renamed since the listing.
            path = current_path(Path(entry.path))
            try:
                status = path.stat()
            except OSError:
                continue
        else:
            path = Path(entry.path)
        if stat.S_ISREG(status.st_mode):
            yield path, status
