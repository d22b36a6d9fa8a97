"""Read WebDataset shards as a source to be packed, and verify them.

Shards are not trusted: their members must be regular files or directories with names inside the directory,
and sizes are bounded. Nothing is unpacked; files are read from their position in the shard.
"""

import io
import os
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from pydantic import ValidationError

from gipfel_cluster.model import GipfelError

from ..telemetry.files import open_regular, read_json
from .manifest import MANIFEST_NAME, Entry, display_path
from .source import FileVersion, ScannedEntry, Source
from .squashfs import MAX_DEPTH, MAX_ENTRIES
from .verify import Verification
from .webdataset import (
    CROISSANT_NAME,
    INDEX_NAME,
    ShardIndex,
    hash_file,
    parents_of,
    root_of_shards,
    sample_of,
)

_MAX_INDEX_BYTES = 64 << 20
_MAX_SHARDS = 100_000
#: Largest read in bytes: `tarfile` requests longer reads only for a tar header with a forged length.
_MAX_READ_BYTES = 1 << 20
_BLOCK = 512
_BUFFER_BYTES = 1 << 20
_NOTHING = FileVersion(0, 0, 0, 0, 0)


class ShardReadError(GipfelError):
    """The storage returned an error while shards were read, so it is unknown whether they are complete."""

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(
            f"{path} can't be read: {error.strerror or error}.", "Check the path and its permissions."
        )


class _Place(NamedTuple):
    shard: Path
    start: int


@dataclass(frozen=True)
class _ShardSource(Source):
    places: Mapping[bytes, _Place]
    shards: Mapping[Path, FileVersion]

    def open(self, scanned: ScannedEntry) -> BinaryIO:
        """Open a member of a shard."""
        place = self.places[scanned.entry.path]
        file = open_regular(place.shard)
        return cast(
            "BinaryIO", io.BufferedReader(_Slice(file, place.start, scanned.entry.size), _BUFFER_BYTES)
        )

    def changed(self) -> list[bytes]:
        """Return the shards that changed since they were scanned."""
        return [
            os.fsencode(path.name)
            for path, version in self.shards.items()
            if not path.exists() or FileVersion.of(path.lstat()) != version
        ]


def scan_shards(path: Path) -> Source:
    """Return a source with the members of all shards in a directory, as if they were in one directory.

    Raises
    ------
    GipfelError
        A shard is missing, is damaged or differs from the index, or a member can't be packed.
    """
    try:
        path = path.resolve(strict=True)
        names = sorted(each.name for each in path.iterdir() if each.name.endswith(".tar"))
        version = FileVersion.of(path.stat())
    except OSError as error:
        raise ShardReadError(path, error) from error
    if not names or len(names) > _MAX_SHARDS:
        raise GipfelError(f"{path} has {len(names)} tar files.", f"Give one with 1 to {_MAX_SHARDS} shards.")
    index = read_index(path)
    if index:
        _check_shards(path, index, names)
    places: dict[bytes, _Place] = {}
    entries: dict[bytes, ScannedEntry] = {}
    shards = {path / name: FileVersion.of((path / name).lstat()) for name in names}
    for shard, state in shards.items():
        for entry, start in _members(shard):
            if len(entries) >= MAX_ENTRIES or entry.path in entries:
                problem = "is there twice" if entry.path in entries else "is one too many"
                raise _refused(shard, f"{display_path(entry.path)} {problem}")
            places[entry.path] = _Place(shard, start)
            entries[entry.path] = ScannedEntry(entry, state)
    if index:
        _check_counts(path, index, entries, places)
    beside = CROISSANT_NAME.encode() not in entries and (path / CROISSANT_NAME).is_file()
    if index.croissant is not None if index else beside:
        places |= _croissant(path, index, entries, shards)
    _add_directories(path, entries)
    ordered = tuple(entries[each] for each in sorted(entries))
    notes = () if index else (f"There is no {INDEX_NAME}, so the shards' hashes can't be checked",)
    return _ShardSource(path, 0o755, version, ordered, notes, places, shards)


def verify_shards(path: Path) -> Verification:
    """Verify shards against their index; `chunks` in the result is the number of shards.

    Raises
    ------
    ShardReadError
        The directory, its index or a shard can't be read.
    """
    problems = []
    source = None
    index = None
    try:
        index = read_index(path)
        if index is None:
            problems.append(f"{INDEX_NAME} is missing, so the shards can't be checked.")
        source = scan_shards(path)
    except ShardReadError:
        raise
    except GipfelError as error:
        problems.append(str(error))
    return Verification(
        valid=not problems,
        problems=tuple(problems),
        chunks=len(index.shardlist) if index else 0,
        files=len(source.files()) if source else 0,
        root=index.root if index else None,
    )


def read_index(path: Path) -> ShardIndex | None:
    """Return the index in a directory of shards; None if there is none.

    Raises
    ------
    GipfelError
        The index can't be read, is inconsistent, or was not written by ``gipfel data pack``.
    """
    name = path / INDEX_NAME
    try:
        found = ShardIndex.model_validate(read_json(name, _MAX_INDEX_BYTES))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ShardReadError(name, error) from error
    except ValueError as error:
        reason = "it is not an index of gipfel" if isinstance(error, ValidationError) else str(error)
        raise GipfelError(
            f"{name} is not valid: {reason}.", "Copy it again, or remove it to read the shards without it."
        ) from None
    if found.root != root_of_shards(found.shardlist):
        raise GipfelError(f"{name} is not valid: its root hash is not that of its shards.", "Copy it again.")
    return found


def check_shard_names(path: Path, index: ShardIndex, names: list[str]) -> None:
    """Compare the names and sizes of shards with their index, without reading them.

    Raises
    ------
    GipfelError
        A shard is missing, is not in the index, or has another size.
    """
    expected = {each.url: each for each in index.shardlist}
    missing, more = sorted(expected.keys() - set(names)), sorted(set(names) - expected.keys())
    if missing or more:
        name, problem = (missing[0], "is missing") if missing else (more[0], "is not in the index")
        raise GipfelError(f"{path / name} {problem}.", "Copy the shards again.")
    try:
        wrong = [name for name in names if (path / name).lstat().st_size != expected[name].filesize]
    except OSError as error:
        raise ShardReadError(Path(error.filename or path), error) from error
    if wrong:
        raise _damaged(path / wrong[0])


def _check_shards(path: Path, index: ShardIndex, names: list[str]) -> None:
    check_shard_names(path, index, names)
    expected = {each.url: each.sha256 for each in index.shardlist}
    try:
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            hashes = pool.map(hash_file, [path / name for name in names])
            wrong = [name for name, found in zip(names, hashes, strict=True) if found != expected[name]]
    except OSError as error:
        raise ShardReadError(Path(error.filename or path), error) from error
    if wrong:
        raise _damaged(path / wrong[0])


def _check_counts(
    path: Path, index: ShardIndex, entries: Mapping[bytes, ScannedEntry], places: Mapping[bytes, _Place]
) -> None:
    """Compare the members of the shards with the index, whose hashes say nothing about its numbers."""
    files = Counter(place.shard.name for place in places.values())
    samples = Counter(
        name for name, _ in {(place.shard.name, sample_of(each)) for each, place in places.items()}
    )
    for each in index.shardlist:
        found = {"files": (files[each.url], each.nfiles), "samples": (samples[each.url], each.nsamples)}
        for noun, (there, expected) in found.items():
            if there != expected:
                raise _other_count(path / each.url, there, expected, noun)
    size = sum(each.entry.size for each in entries.values())
    if size != index.data_bytes:
        raise _other_count(path, size, index.data_bytes, "bytes of files")


def _other_count(path: Path, found: int, expected: int, noun: str) -> GipfelError:
    return GipfelError(
        f"{path} has {found} {noun}, and {INDEX_NAME} says {expected}.", "Copy or write the shards again."
    )


def _damaged(shard: Path) -> GipfelError:
    return GipfelError(f"{shard} is damaged: it is not as the index says.", "Copy it again.")


def _members(shard: Path) -> Iterator[tuple[Entry, int]]:
    """Yield the members of a shard, and the offset at which their content begins."""
    try:
        file = open_regular(shard)
    except OSError as error:
        raise ShardReadError(shard, error) from error
    with file:
        size = os.fstat(file.fileno()).st_size
        bounded = cast("BinaryIO", _BoundedFile(file))
        try:
            with tarfile.TarFile(fileobj=bounded, encoding="utf-8", errors="surrogateescape") as archive:
                while member := archive.next():
                    # tarfile's list of all members would grow without bound.
                    archive.members.clear()  # type: ignore[attr-defined] # typeshed lacks it
                    if not member.isdir():
                        yield _entry(shard, member, size), member.offset_data
                end = archive.offset
        except OSError as error:
            raise ShardReadError(shard, error) from error
        except (tarfile.TarError, ValueError, EOFError, RecursionError) as error:
            raise _refused(shard, "it is not an uncompressed tar file, or is damaged") from error
        # An invalid header ends the iteration just like the end of the archive, so check what follows.
        file.seek(end)
        if file.read(_BLOCK) != bytes(_BLOCK):
            raise _refused(shard, "it is cut off or damaged")


def _entry(shard: Path, member: tarfile.TarInfo, size: int) -> Entry:
    path = os.path.normpath(member.name).encode("utf-8", "surrogateescape")
    parts = path.split(b"/")
    is_inside = not member.name.startswith("/") and b".." not in parts and path not in {b".", b""}
    if not is_inside or b"\0" in path or len(parts) > MAX_DEPTH or path == MANIFEST_NAME:
        raise _refused(shard, f"{display_path(path)} is not a name in a data set")
    if not member.isreg() or member.issparse() or member.mode & 0o6000:
        raise _refused(shard, f"{display_path(path)} is a link, a device or another special file")
    if not 0 <= member.size <= size - member.offset_data:
        raise _refused(shard, f"{display_path(path)} is cut off")
    return Entry(path, "file", member.mode & 0o777, member.size)


def _croissant(
    path: Path, index: ShardIndex | None, entries: dict[bytes, ScannedEntry], shards: dict[Path, FileVersion]
) -> dict[bytes, _Place]:
    name = CROISSANT_NAME.encode()
    try:
        state = (path / CROISSANT_NAME).lstat()
        digest = hash_file(path / CROISSANT_NAME)
    except FileNotFoundError as error:
        raise GipfelError(f"{path / CROISSANT_NAME} is missing.", "Copy the shards again.") from error
    except OSError as error:
        raise ShardReadError(path / CROISSANT_NAME, error) from error
    if index and digest != index.croissant_sha256:
        raise _damaged(path / CROISSANT_NAME)
    shards[path / CROISSANT_NAME] = FileVersion.of(state)
    entries[name] = ScannedEntry(Entry(name, "file", 0o644, state.st_size), FileVersion.of(state))
    return {name: _Place(path / CROISSANT_NAME, 0)}


def _add_directories(path: Path, entries: dict[bytes, ScannedEntry]) -> None:
    for name in {above for each in entries for above in parents_of(each)}:
        if name in entries:
            raise _refused(path, f"{display_path(name)} is a file and a directory")
        entries[name] = ScannedEntry(Entry(name, "directory", 0o755), _NOTHING)


def _refused(path: Path, reason: str) -> GipfelError:
    return GipfelError(f"{path} can't be packed: {reason}.", "Copy or write the shards again.")


class _BoundedFile:
    """A file for `tarfile` that refuses long reads: the lengths of extended headers are not trusted."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, count: int) -> bytes:
        """Return up to `count` bytes."""
        if count > _MAX_READ_BYTES:
            raise ValueError("a header is too long")
        return self._file.read(count)

    def seek(self, position: int) -> int:
        """Move to a position."""
        return self._file.seek(position)

    def tell(self) -> int:
        """Return the position."""
        return self._file.tell()


class _Slice(io.RawIOBase):
    """A range of a file as a separate file; its descriptor is that of the whole file."""

    def __init__(self, file: BinaryIO, start: int, size: int) -> None:
        self._file = file
        self._position = start
        self._end = start + size

    def readable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the descriptor of the whole file."""
        return self._file.fileno()

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes, up to the end of the range."""
        data = os.pread(self.fileno(), min(len(buffer), self._end - self._position), self._position)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()
