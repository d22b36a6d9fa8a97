"""Write a directory as WebDataset shards: tar files that are read sequentially.

A sample consists of the files whose paths are equal up to the first dot of the name; it is never split
between shards. ``index.json`` has the layout that ``wids`` in the package webdataset reads, and the hash of
every shard. The directory of shards is created complete, or not at all. Source of the rules:
https://github.com/webdataset/webdataset, ``base_plus_ext`` and ``wids_index.py``
"""

import hashlib
import os
import posixpath
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field

from gipfel_cluster.model import Frozen, GipfelError
from gipfel_cluster.runs import write_atomically

from ..telemetry.files import open_regular, sync_directory
from .manifest import Digest, Origin, display_path, display_paths, read_croissant
from .pack import READERS, origin_of, work_directory
from .source import ScannedEntry, Source, scan
from .stream import SourceStream, open_archive

INDEX_NAME = "index.json"
CROISSANT_NAME = "croissant.json"
#: Size of a shard in bytes: large enough that readers seldom open files, small enough to have many to
#: shuffle.
SHARD_BYTES = 1_000_000_000

_KEY = re.compile(rb"((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)
_HEADER_BYTES = 512


class Shard(Frozen):
    """A tar file of the index; `filesize` in bytes."""

    url: str = Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,200}\.tar$")
    filesize: int = Field(ge=0)
    nsamples: int = Field(ge=0)
    nfiles: int = Field(ge=0)
    sha256: Digest


class ShardIndex(Frozen):
    """``index.json`` beside shards. `root` is the hash of all shards' hashes; sizes in bytes.

    `croissant_sha256` is the hash of ``croissant.json`` beside the shards, None without one.
    """

    model_config = ConfigDict(populate_by_name=True)

    kind: Literal["wids-shard-index-v1"] = Field("wids-shard-index-v1", alias="__kind__")
    wids_version: Literal[1] = 1
    name: str
    data_bytes: int = Field(ge=0)
    root: Digest
    origin: Origin
    croissant: dict[str, Any] | None = None
    croissant_sha256: Digest | None = None
    shardlist: tuple[Shard, ...]

    @property
    def files(self) -> int:
        """Return the number of files in all shards."""
        return sum(each.nfiles for each in self.shardlist)


@dataclass(frozen=True)
class ShardRequest:
    """The directory to pack, the target and settings of shards.

    `shard_bytes` is the largest size of a shard that has several samples; `readers` is the number of threads
    that read files.
    """

    source: Path
    target: Path
    shard_bytes: int = SHARD_BYTES
    readers: int = READERS
    on_plan: Callable[[Source, int], None] = lambda _source, _shards: None
    on_progress: Callable[[int], None] = lambda _: None


def write_shards(request: ShardRequest) -> ShardIndex:
    """Write shards and their index into a new directory.

    Raises
    ------
    GipfelError
        An entry can't be in a shard, a file changed meanwhile, or the target exists or can't be written.
    """
    target = request.target.absolute()
    if target.exists() or not target.parent.is_dir():
        problem = "exists already" if target.exists() else "can't be created: its parent does not exist"
        raise GipfelError(f"{target} {problem}.", "Give a new directory in one that exists.")
    target = target.parent.resolve() / target.name
    source = _as_files(scan(request.source))
    if target.is_relative_to(source.path):
        raise GipfelError(f"{target} is inside the directory to be packed.", "Give a path outside of it.")
    parts = list(_divide(source, request.shard_bytes))
    request.on_plan(source, len(parts))
    with work_directory(target) as work:
        # Unique by the process ID: an earlier packing that was stopped may still remove its directory.
        folder = work / f"{os.getpid()}"
        folder.mkdir()
        shards, read = [], 0
        for number, part in enumerate(parts):
            path = folder / f"shard-{number:06d}.tar"
            shards.append(_write_shard(path, part, request, read))
            read += part.data_bytes
        index = _index(source, shards, target.name)
        for name, text in _metadata(source, index).items():
            write_atomically(folder / name, text)
            (folder / name).chmod(0o666 & ~_umask(folder))
        sync_directory(folder)
        folder.rename(target)
        sync_directory(target.parent)
    return index


def root_of_shards(shards: list[Shard] | tuple[Shard, ...]) -> str:
    """Return the root hash of shards: SHA-256 of their hashes, in the order of the index."""
    return hashlib.sha256(b"".join(bytes.fromhex(each.sha256) for each in shards)).hexdigest()


def split_name(path: bytes) -> tuple[bytes, bytes] | None:
    """Split a path into the sample's key and the extension; None for a name that WebDataset readers skip."""
    found = _KEY.fullmatch(path)
    return (found[1], found[2]) if found else None


def sample_of(path: bytes) -> bytes:
    """Return the key of the sample that a file belongs to: its path up to the first dot of its name."""
    return (split_name(path) or (path,))[0]


def _umask(folder: Path) -> int:
    return 0o777 & ~folder.stat().st_mode


def _metadata(source: Source, index: ShardIndex) -> dict[str, str]:
    found = {INDEX_NAME: index.model_dump_json(indent=1, by_alias=True) + "\n"}
    if index.croissant is not None:
        with open_regular(source.path / CROISSANT_NAME) as file:
            found[CROISSANT_NAME] = file.read().decode()
    return found


def _index(source: Source, shards: list[Shard], name: str) -> ShardIndex:
    croissant = read_croissant(source.path)
    return ShardIndex(
        name=os.fsencode(name).decode("utf-8", "backslashreplace"),
        data_bytes=source.data_bytes,
        root=root_of_shards(shards),
        origin=origin_of(source, f"gipfel {version('gipfel')}"),
        croissant=croissant,
        croissant_sha256=None if croissant is None else hash_file(source.path / CROISSANT_NAME),
        shardlist=tuple(shards),
    )


def _as_files(source: Source) -> Source:
    """Return the files of a source sorted by sample; raise GipfelError if a shard can't hold an entry."""
    has_croissant = read_croissant(source.path) is not None
    sizes = {each.entry.path: each.entry.size for each in source.files()}
    refused, files, skipped, seen = [], [], [], set()
    for each in source.entries:
        entry = each.entry
        if entry.kind == "directory" or (has_croissant and entry.path == CROISSANT_NAME.encode()):
            continue
        key = split_name(entry.path)
        # Readers ignore the case of extensions, and decode names as UTF-8.
        name = (key[0], key[1].lower()) if key else (entry.path, None)
        if entry.kind == "symlink" or _is_odd(entry.path) or name in seen:
            refused.append(entry.path)
            continue
        seen.add(name)
        if key is None:
            skipped.append(entry.path)
        size = entry.size if entry.kind == "file" else sizes[entry.target]
        files.append(
            ScannedEntry(replace(entry, kind="file", size=size, target=b"", xattrs=()), each.version)
        )
    if refused:
        raise GipfelError(
            f"WebDataset can't hold {display_paths(refused)}: it takes no symbolic links, no names that are "
            "not UTF-8 or have control characters, no two that differ only in the case of their extension.",
            "Rename or remove them, or pack a SquashFS image.",
        )
    files.sort(key=lambda each: (split_name(each.entry.path) or (each.entry.path,), each.entry.path))
    notes = [*source.notes]
    if skipped:
        notes.append(
            f"WebDataset's readers skip {len(skipped)} file(s) without a dot, "
            f"such as {display_path(skipped[0])}"
        )
    return replace(source, entries=tuple(files), notes=tuple(notes))


def _is_odd(path: bytes) -> bool:
    try:
        return not path.decode().isprintable()
    except UnicodeDecodeError:
        return True


def _divide(source: Source, limit: int) -> Iterator[Source]:
    """Yield the files of each shard; a sample larger than the limit gets a shard of its own."""
    part: list[ScannedEntry] = []
    size = 0
    for sample in _samples(source.entries):
        weight = sum(_HEADER_BYTES + each.entry.size for each in sample)
        if part and size + weight > limit:
            yield replace(source, entries=tuple(part))
            part, size = [], 0
        part += sample
        size += weight
    yield replace(source, entries=tuple(part))


def _samples(entries: tuple[ScannedEntry, ...]) -> Iterator[list[ScannedEntry]]:
    sample: list[ScannedEntry] = []
    before: bytes | None = None
    for each in entries:
        key = sample_of(each.entry.path)
        if sample and key != before:
            yield sample
            sample = []
        sample.append(each)
        before = key
    if sample:
        yield sample


def _write_shard(path: Path, part: Source, request: ShardRequest, before: int) -> Shard:
    stream = SourceStream(part, None, request.readers, lambda read: request.on_progress(before + read))
    with path.open("xb") as file:
        archive = open_archive(file)
        stream.copy_to(archive)
        archive.close()
        file.flush()
        os.fsync(file.fileno())
    return Shard(
        url=path.name,
        filesize=path.stat().st_size,
        nsamples=sum(1 for _ in _samples(part.entries)),
        nfiles=len(part.entries),
        sha256=hash_file(path),
    )


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def parents_of(path: bytes) -> Iterator[bytes]:
    """Yield the directories above a path, the nearest first."""
    while path := posixpath.dirname(path):
        yield path
