"""Scan a directory to be packed: list its entries sorted by path, and refuse what can't be packed."""

import errno
import os
import posixpath
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from gipfel_cluster.model import GipfelError

from ..telemetry.files import open_regular
from .fetch import FETCHED_NAME, Fetched, read_fetched
from .manifest import MANIFEST_NAME, Entry, display_path
from .squashfs import MAX_DEPTH, MAX_ENTRIES

#: Prefix of the extended attributes that are kept; others (ACLs, labels, capabilities) are machine-specific.
_KEPT_XATTR_PREFIX = "user."
_MAX_XATTR_BYTES = 32 << 10
_MAX_LISTED = 10


@dataclass(frozen=True, slots=True)
class FileVersion:
    """Metadata of a file that differ after it was replaced or modified; times in nanoseconds since 1970."""

    device: int
    inode: int
    size: int
    modified: int
    changed: int

    @classmethod
    def of(cls, state: os.stat_result) -> "FileVersion":
        """Return the version for the result of stat."""
        return cls(state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)


@dataclass(frozen=True, slots=True)
class ScannedEntry:
    """An entry of the source before its content is hashed."""

    entry: Entry
    version: FileVersion


@dataclass(frozen=True)
class Source:
    """Data to be packed: entries sorted by path, the mode and version of the root, and notes for the user.

    This class reads a directory; subclasses read an image or shards.
    """

    path: Path
    mode: int
    version: FileVersion
    entries: tuple[ScannedEntry, ...]
    notes: tuple[str, ...]

    @property
    def data_bytes(self) -> int:
        """Return the total size of all files in bytes; a hard-linked file counts once."""
        return sum(each.entry.size for each in self.entries if each.entry.kind == "file")

    def files(self) -> list[ScannedEntry]:
        """Return the regular files, without additional hard links."""
        return [each for each in self.entries if each.entry.kind == "file"]

    def open(self, scanned: ScannedEntry) -> BinaryIO:
        """Open a file's content; without a change, the descriptor's version equals that of `scanned`."""
        return open_regular(self.path / os.fsdecode(scanned.entry.path))

    def changed(self) -> list[bytes]:
        """Return the directories that changed since the scan."""
        directories = [each for each in self.entries if each.entry.kind == "directory"]
        changed = []
        for path, version in [
            (b"", self.version),
            *((each.entry.path, each.version) for each in directories),
        ]:
            try:
                now = FileVersion.of(os.lstat(self.path / os.fsdecode(path)))
            except OSError:
                now = None
            if now != version:
                changed.append(path or b".")
        return changed


def scan(path: Path, *, action: str = "packed") -> Source:
    """Return a source with the entries of a directory; symbolic links in it are not followed.

    Parameters
    ----------
    action
        Participle for error messages, which says what the caller does with the directory.

    Raises
    ------
    GipfelError
        The directory can't be read, or contains something that can't be packed; the message names it.
    """
    try:
        path = path.resolve(strict=True)
        state = path.stat()
        if not stat.S_ISDIR(state.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise GipfelError(f"{path} can't be {action}: {reason}.", "Give a directory.") from error
    scanner = _Scanner(path)
    entries = sorted(scanner.scan(), key=lambda each: each.entry.path)
    if scanner.refused:
        more = f" and {len(scanner.refused) - _MAX_LISTED} more" if len(scanner.refused) > _MAX_LISTED else ""
        raise GipfelError(
            f"{path} can't be {action}: {', '.join(sorted(scanner.refused)[:_MAX_LISTED])}{more}.",
            "Remove them from the directory, or make them readable.",
        )
    entries = list(_with_origins([*_linked(entries)], read_fetched(path), FileVersion.of(state)))
    return Source(
        path,
        stat.S_IMODE(state.st_mode) & 0o777,
        FileVersion.of(state),
        tuple(entries),
        scanner.notes(),
    )


def _with_origins(
    entries: list[ScannedEntry], fetched: dict[bytes, Fetched], version: FileVersion
) -> list[ScannedEntry]:
    """Return the entries, with URL, time and hash of fetched items, and a tombstone for removed items."""
    found, left = [], dict(fetched)
    for each in entries:
        item = left.pop(each.entry.path, None)
        if item is None or each.entry.kind != "file":
            found.append(each)
            continue
        entry = replace(each.entry, sha256=item.sha256, url=item.url, fetched=item.fetched)
        found.append(replace(each, entry=entry))
    for path, item in left.items():
        entry = Entry(path, "removed", 0, sha256=item.sha256, url=item.url, fetched=item.fetched)
        found.append(ScannedEntry(entry, version))
    return sorted(found, key=lambda each: each.entry.path)


def _linked(entries: list[ScannedEntry]) -> Iterator[ScannedEntry]:
    """Turn additional hard links of a file into links to its first name."""
    first: dict[tuple[int, int], bytes] = {}
    for each in entries:
        entry, key = each.entry, (each.version.device, each.version.inode)
        if entry.kind == "file" and first.setdefault(key, entry.path) != entry.path:
            yield ScannedEntry(Entry(entry.path, "hardlink", entry.mode, target=first[key]), each.version)
        else:
            yield each


class _Scanner:
    def __init__(self, root: Path) -> None:
        self._root = os.fsencode(root)
        self.refused: list[str] = []
        self._dropped: dict[str, int] = {}
        self._external_links: list[bytes] = []

    def scan(self) -> Iterator[ScannedEntry]:
        waiting = [b""]
        count = 0
        while waiting:
            directory = waiting.pop()
            if directory.count(b"/") >= MAX_DEPTH - 1:
                self._refuse(directory, "is nested too deeply")
                continue
            try:
                with os.scandir(self._root + b"/" + directory) as listed:
                    names = [each.name for each in listed]
            except OSError as error:
                self._refuse(directory, f"can't be read ({error.strerror})")
                continue
            for name in names:
                path = directory + b"/" + name if directory else name
                if path in {MANIFEST_NAME, os.fsencode(FETCHED_NAME)}:
                    # A manifest from an earlier packing, or the record of fetched items, which goes into the
                    # new manifest.
                    continue
                count += 1
                if count > MAX_ENTRIES:
                    raise GipfelError(
                        f"There are more than {MAX_ENTRIES} files.", "Pack it in several parts."
                    )
                scanned = self._entry(path)
                if scanned is None:
                    continue
                if scanned.entry.kind == "directory":
                    waiting.append(path)
                yield scanned

    def notes(self) -> tuple[str, ...]:
        notes = [
            f"{name} of {count} file{'' if count == 1 else 's'} is not kept"
            for name, count in sorted(self._dropped.items())
        ]
        if self._external_links:
            first = display_path(min(self._external_links))
            notes.append(
                f"{len(self._external_links)} symbolic link(s) lead out of the directory, such as {first}: "
                "their targets are not packed"
            )
        return tuple(notes)

    def _refuse(self, path: bytes, reason: str) -> None:
        self.refused.append(f"{display_path(path) or '.'} {reason}")

    def _entry(self, path: bytes) -> ScannedEntry | None:
        full_path = self._root + b"/" + path
        try:
            state = os.lstat(full_path)
            kind = self._kind(path, full_path, state.st_mode)
            if not kind:
                return None
            target = os.readlink(full_path) if kind == "symlink" else b""  # noqa: PTH115 - bytes
            xattrs = () if kind == "symlink" else self._xattrs(path, full_path)
        except OSError as error:
            self._refuse(path, f"can't be read ({error.strerror})")
            return None
        if target and _is_outside(path, target):
            self._external_links.append(path)
        mode = 0o777 if kind == "symlink" else stat.S_IMODE(state.st_mode) & 0o777
        size = state.st_size if kind == "file" else 0
        return ScannedEntry(Entry(path, kind, mode, size, "", target, xattrs), FileVersion.of(state))

    def _kind(self, path: bytes, full_path: bytes, mode: int) -> str:
        if stat.S_ISLNK(mode):
            return "symlink"
        if stat.S_ISDIR(mode):
            # A set-group-id or sticky bit of a directory has no effect in a read-only image.
            return "directory"
        if not stat.S_ISREG(mode):
            self._refuse(path, "is a pipe, a socket or a device")
        elif mode & (stat.S_ISUID | stat.S_ISGID):
            self._refuse(path, "is a set-user-id or set-group-id file")
        elif not os.access(full_path, os.R_OK, effective_ids=True):
            self._refuse(path, "can't be read (no permission)")
        else:
            return "file"
        return ""

    def _xattrs(self, path: bytes, full_path: bytes) -> tuple[tuple[str, bytes], ...]:
        try:
            names = os.listxattr(full_path, follow_symlinks=False)
        except OSError as error:
            if error.errno in {errno.ENOTSUP, errno.ENOSYS}:
                return ()
            raise
        kept = []
        for name in sorted(names):
            if not name.startswith(_KEPT_XATTR_PREFIX):
                self._dropped[name] = self._dropped.get(name, 0) + 1
                continue
            value = os.getxattr(full_path, name, follow_symlinks=False)
            if "=" in name or not name.isprintable() or len(value) > _MAX_XATTR_BYTES:
                self._refuse(path, "has an extended attribute whose name or size can't be packed")
            kept.append((name, value))
        return tuple(kept)


def _is_outside(path: bytes, target: bytes) -> bool:
    if target.startswith(b"/"):
        return True
    joined = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    return joined == b".." or joined.startswith(b"../")
