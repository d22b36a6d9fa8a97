"""Read a source once, several files at a time, and write it as a tar stream for mksquashfs.

The stream has every name, mode and extended attribute; mksquashfs sets the times. Each file is hashed while
it is read, and its version is compared with the scan before and after. If a file has changed, the rest of its
content is filled with zeros and the stream continues, so that the error can name all changed files.
"""

import hashlib
import io
import os
import tarfile
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import IO, BinaryIO

from gipfel_cluster.model import GipfelError

from .manifest import MANIFEST_NAME, Entry, Packing, display_paths, manifest_lines, to_text
from .source import FileVersion, ScannedEntry, Source

#: Called with the bytes read so far.
Progress = Callable[[int], None]

_READ_AHEAD_BYTES = 4 << 20  # larger files are read piece by piece
_READ_AHEAD_FILES = 32
_COPY_BYTES = 1 << 20
_KINDS = {
    "file": tarfile.REGTYPE,
    "directory": tarfile.DIRTYPE,
    "symlink": tarfile.SYMTYPE,
    "hardlink": tarfile.LNKTYPE,
}


class SourceStream:
    """A source as a tar stream; `write` returns its entries with their hashes."""

    def __init__(self, source: Source, packing: Packing | None, readers: int, progress: Progress) -> None:
        self._source = source
        self._packing = packing
        self._readers = readers
        self._progress = progress
        self._read = 0
        self._changed: list[bytes] = []
        self._not_fetched: list[bytes] = []

    def write(self, output: IO[bytes], scratch: Path) -> tuple[tuple[Entry, ...], str]:
        """Write the stream, with the manifest as its last file; return the entries and the manifest's hash.

        Raises
        ------
        GipfelError
            Files changed while they were read; the message names them.
        BrokenPipeError
            mksquashfs has ended.
        """
        archive = open_archive(output)
        entries = self.copy_to(archive)
        digest = self._add_manifest(archive, entries, scratch)
        archive.close()
        return tuple(entries), digest

    def copy_to(self, archive: tarfile.TarFile) -> list[Entry]:
        """Write all entries to an open archive; return them with their hashes. Raise as `write` does."""
        entries = []
        with ThreadPoolExecutor(self._readers) as pool:
            try:
                for scanned, content in self._contents(pool):
                    entries.append(self._add(archive, scanned, content))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        self._changed += self._source.changed()
        if self._changed:
            raise GipfelError(
                f"The data changed while it was packed: {display_paths(self._changed)}.",
                "Pack it again when nothing writes to it.",
            )
        if self._not_fetched:
            raise GipfelError(
                f"Items are not what was fetched by URL: {display_paths(self._not_fetched)}.",
                "Remove them and fetch them again.",
            )
        return entries

    def _contents(
        self, pool: ThreadPoolExecutor
    ) -> Iterator[tuple[ScannedEntry, "Future[bytes | None] | None"]]:
        """Yield all entries in order, small files with a future of their content, which is read ahead."""
        waiting: deque[tuple[ScannedEntry, Future[bytes | None] | None]] = deque()
        for scanned in self._source.entries:
            is_small = scanned.entry.kind == "file" and scanned.entry.size <= _READ_AHEAD_BYTES
            waiting.append((scanned, pool.submit(self._read_small, scanned) if is_small else None))
            if len(waiting) > _READ_AHEAD_FILES:
                yield waiting.popleft()
        yield from waiting

    def _read_small(self, scanned: ScannedEntry) -> bytes | None:
        """Return a file's content; None if the file has changed since the scan."""
        try:
            with self._source.open(scanned) as file:
                content = file.read(scanned.entry.size + 1)
                same = FileVersion.of(os.fstat(file.fileno())) == scanned.version
        except OSError:
            return None
        return content if same and len(content) == scanned.entry.size else None

    def _add(
        self, archive: tarfile.TarFile, scanned: ScannedEntry, content: "Future[bytes | None] | None"
    ) -> Entry:
        entry = scanned.entry
        if entry.kind == "removed":
            # A tombstone is only in the manifest.
            return entry
        member = _member(entry)
        if entry.kind != "file":
            archive.addfile(member)
            return entry
        if content is None:
            return self._add_large(archive, member, scanned)
        data = content.result()
        if data is None:
            self._changed.append(entry.path)
            data = bytes(entry.size)
        archive.addfile(member, io.BytesIO(data))
        self._advance(entry.size)
        return self._hashed(entry, hashlib.sha256(data).hexdigest())

    def _add_large(self, archive: tarfile.TarFile, member: tarfile.TarInfo, scanned: ScannedEntry) -> Entry:
        try:
            with self._source.open(scanned) as file:
                reader = _HashingReader(file, self._advance)
                archive.addfile(member, reader)  # type: ignore[arg-type] # reads only
                same = FileVersion.of(os.fstat(file.fileno())) == scanned.version
        except BrokenPipeError:
            raise
        except OSError as error:
            raise GipfelError(
                f"{display_paths([scanned.entry.path])} can't be read: {error.strerror}.", "Check the file."
            ) from error
        if not same or reader.was_short:
            self._changed.append(scanned.entry.path)
        return self._hashed(scanned.entry, reader.digest.hexdigest())

    def _hashed(self, entry: Entry, digest: str) -> Entry:
        if entry.sha256 not in {"", digest} and entry.path not in self._changed:
            (self._not_fetched if entry.url else self._changed).append(entry.path)
        return replace(entry, sha256=digest)

    def _advance(self, count: int) -> None:
        self._read += count
        self._progress(self._read)

    def _add_manifest(self, archive: tarfile.TarFile, entries: list[Entry], scratch: Path) -> str:
        assert self._packing is not None  # noqa: S101 - of an image; shards have an index instead
        digest = hashlib.sha256()
        with tempfile.TemporaryFile(dir=scratch) as file:
            for line in manifest_lines(entries, self._packing):
                digest.update(line)
                file.write(line)
            size = file.tell()
            file.seek(0)
            entry = Entry(MANIFEST_NAME, "file", 0o444, size)
            archive.addfile(_member(entry), file)
        return digest.hexdigest()


def open_archive(output: IO[bytes]) -> tarfile.TarFile:
    """Return a tar archive that writes to `output`; close it to end the archive."""
    return tarfile.TarFile(
        fileobj=_Output(output),  # type: ignore[arg-type] # writes only
        mode="w", copybufsize=_COPY_BYTES,
        format=tarfile.PAX_FORMAT, encoding="utf-8", errors="surrogateescape",
    )  # fmt: skip


class _Output:
    """A pipe for `tarfile`, with the position that it needs; only closing the archive ends the stream."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._written = 0

    def write(self, data: bytes) -> int:
        """Write all bytes."""
        self._pipe.write(data)
        self._written += len(data)
        return len(data)

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self._written


class _HashingReader:
    """Reads a file in pieces and hashes them; returns zeros after the file's end."""

    def __init__(self, file: BinaryIO, advance: Callable[[int], None]) -> None:
        self._file = file
        self._advance = advance
        self.digest = hashlib.sha256()
        self.was_short = False

    def read(self, count: int) -> bytes:
        """Return exactly `count` bytes."""
        data = self._file.read(count)
        if len(data) < count:
            self.was_short = True
            data += bytes(count - len(data))
        self.digest.update(data)
        self._advance(count)
        return data


def _member(entry: Entry) -> tarfile.TarInfo:
    member = tarfile.TarInfo(to_text(entry.path))
    member.type = _KINDS[entry.kind]
    member.mode = entry.mode
    member.size = entry.size if entry.kind == "file" else 0
    member.linkname = to_text(entry.target)
    member.pax_headers = {f"SCHILY.xattr.{name}": to_text(value) for name, value in entry.xattrs}
    return member
