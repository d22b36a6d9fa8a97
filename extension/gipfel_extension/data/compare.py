"""Compare two data sets, each an image or a directory: paths that were added, removed or changed."""

import hashlib
import os
from dataclasses import replace
from pathlib import Path

from gipfel_cluster.model import Frozen, GipfelError

from ..telemetry.files import open_regular
from .manifest import Entry, display_path
from .source import ScannedEntry, scan
from .verify import load_entries


class Difference(Frozen):
    """Paths, escaped for display; `changed` differ in kind, mode, content, target or extended attributes."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        """Return whether both data sets are the same."""
        return not (self.added or self.removed or self.changed)


def compare(first: Path, second: Path) -> Difference:
    """Return what is different in the second data set.

    Raises
    ------
    GipfelError
        One of them can't be read.
    """
    before, after = (_entries(each) for each in (first, second))
    both = before.keys() & after.keys()
    return Difference(
        added=_sorted(after.keys() - before.keys()),
        removed=_sorted(before.keys() - after.keys()),
        changed=_sorted({path for path in both if before[path] != after[path]}),
    )


def _sorted(paths: set[bytes]) -> tuple[str, ...]:
    return tuple(display_path(each) for each in sorted(paths))


def _entries(path: Path) -> dict[bytes, Entry]:
    if not path.is_dir():
        return {name: entry for name, entry in load_entries(path).items() if entry.kind != "removed"}
    source = scan(path, action="compared")
    return {each.entry.path: _hashed(source.path, each) for each in source.entries}


def _hashed(root: Path, scanned: ScannedEntry) -> Entry:
    if scanned.entry.kind != "file":
        return scanned.entry
    try:
        with open_regular(root / os.fsdecode(scanned.entry.path)) as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise GipfelError(
            f"{display_path(scanned.entry.path)} can't be read: {error.strerror}.", "Check the file."
        ) from error
    return replace(scanned.entry, sha256=sha256)
