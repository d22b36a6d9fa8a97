"""Verify an image against its summary and its manifest, without mounting it; compare two data sets.

SquashFS has no checksums of its own: a changed byte of an uncompressed image is read without an error.
Verification has three levels: the chunks (hashes of the image's bytes, in the summary), the tree (image and
manifest have the same entries with the same mode, size and target), and the content of every file. Extended
attributes are covered only by the chunks.
"""

import hashlib
import json
import os
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from gipfel_cluster.model import Frozen, GipfelError

from ..telemetry.files import open_regular
from .manifest import (
    CHUNK_BYTES,
    CROISSANT_PATH,
    MANIFEST_NAME,
    MAX_CROISSANT_BYTES,
    Entry,
    Summary,
    display_path,
    parse_croissant,
    parse_manifest,
    read_summary,
)
from .pack import hash_chunk
from .source import ScannedEntry, scan
from .squashfs import MAX_ENTRIES, ImageReadError, Node, SquashfsFile, read_blocks, walk

_MAX_PROBLEMS = 20
_MAX_LINE_BYTES = 512 << 10
_SPECIAL = frozenset(("block device", "character device", "fifo", "socket"))
_SET_ID = 0o6000


class Verification(Frozen):
    """Result of `verify`.

    `problems` has up to 20 lines; `chunks` and `files` are the numbers that were read and compared; `root` is
    the root hash, None without a summary.
    """

    valid: bool
    problems: tuple[str, ...]
    chunks: int
    files: int
    root: str | None


def verify(path: Path, *, percent: float = 100.0, seed: int | None = None) -> Verification:
    """Verify an image.

    Parameters
    ----------
    percent
        Percentage of the chunks and files whose content is read, selected at random; above 0, up to 100.
    seed
        Seed of the random selection.

    Raises
    ------
    GipfelError
        The image, or a part of it, can't be read.
    """
    sampled = _Sampler(percent, seed)
    problems: list[str] = []
    summary = None
    try:
        summary = read_summary(path)
        if summary is None:
            problems.append(f"{path.name}.json is missing, so the image's bytes can't be checked.")
    except GipfelError as error:
        problems.append(str(error))
    chunks = files = 0
    if summary is not None:
        chunks, damaged = _check_chunks(path, summary, sampled)
        problems += damaged
    with SquashfsFile(path) as image:
        try:
            nodes = {node.path: node for node in walk(image)}
            problems += unsafe_entries(nodes.values())
            entries = read_entries(image, nodes, None if summary is None else summary.manifest)
            problems += _tree_differences(entries, nodes)
            if summary is not None:
                problems += _summary_differences(image, nodes, summary, entries)
            files, changed = _check_contents(image, entries, nodes, sampled)
            problems += changed
        except ImageReadError:
            raise
        except GipfelError as error:
            problems.append(str(error))
    return Verification(
        valid=not problems,
        problems=tuple(problems[:_MAX_PROBLEMS]),
        chunks=chunks,
        files=files,
        root=None if summary is None else summary.root,
    )


def load_entries(path: Path) -> dict[bytes, Entry]:
    """Return the entries of an image's manifest by path.

    Raises
    ------
    GipfelError
        The image or its manifest can't be read.
    """
    with SquashfsFile(path) as image:
        top: dict[bytes, Node] = {}
        for node in walk(image):
            if b"/" in node.path or node.path == MANIFEST_NAME:
                top[node.path] = node
                break
        return read_entries(image, top, None)


def read_entries(image: SquashfsFile, nodes: dict[bytes, Node], digest: str | None) -> dict[bytes, Entry]:
    """Return the entries of the manifest in an open image, by path.

    Parameters
    ----------
    digest
        Expected SHA-256 of the manifest, if known.
    """
    node = nodes.get(MANIFEST_NAME)
    if node is None or node.kind != "file":
        raise GipfelError(
            f"{image.path} has no manifest: it was not packed by gipfel.",
            "Pack the data with `gipfel data pack`.",
        )
    found = hashlib.sha256()
    try:
        lines = _lines(read_blocks(image, node), found)
        entries = {entry.path: entry for entry in _limited(parse_manifest(lines))}
    except (ValueError, RecursionError) as error:
        raise GipfelError(
            f"The manifest of {image.path} is not valid: {error}.", "Copy or pack it again."
        ) from None
    if digest not in {None, found.hexdigest()}:
        raise GipfelError(
            f"The manifest in {image.path} is not the one of its summary.", "Copy or pack it again."
        )
    return entries


def _limited(entries: Iterator[Entry]) -> Iterator[Entry]:
    for number, entry in enumerate(entries):
        if number >= MAX_ENTRIES:
            # A few megabytes of compressed data may hold enough lines to fill the memory.
            raise ValueError("it has too many lines")
        yield entry


def _lines(blocks: Iterator[bytes], digest: "hashlib._Hash") -> Iterator[bytes]:
    rest = b""
    for block in blocks:
        digest.update(block)
        *lines, rest = (rest + block).split(b"\n")
        yield from lines
        if len(rest) > _MAX_LINE_BYTES:
            raise ValueError("a line is too long")
    if rest:
        raise ValueError("it is cut off")


class _Sampler:
    def __init__(self, percent: float, seed: int | None) -> None:
        self._share = percent / 100
        self._random = random.Random(seed)  # noqa: S311 - a sample, not a secret

    def __call__(self) -> bool:
        return self._share >= 1 or self._random.random() < self._share


def _check_chunks(path: Path, summary: Summary, sampled: _Sampler) -> tuple[int, list[str]]:
    """Return how many chunks were hashed, and what is wrong with them."""
    try:
        file = open_regular(path, follow=True)
    except OSError as error:
        raise GipfelError(f"{path} can't be read: {error.strerror or error}.", "Check the path.") from error
    with file:
        size = os.fstat(file.fileno()).st_size
        if size != summary.bytes:
            return 0, [f"{path.name} has {size} bytes instead of {summary.bytes}."]
        numbers = [number for number in range(len(summary.chunks)) if sampled()]
        hashes = _hash_chunks(path, file.fileno(), numbers)
    damaged = [
        number for number, found in zip(numbers, hashes, strict=True) if found != summary.chunks[number]
    ]
    places = ", ".join(str(number * CHUNK_BYTES) for number in damaged[:5])
    return len(numbers), [f"{len(damaged)} chunk(s) are damaged, at byte {places}."] if damaged else []


def _hash_chunks(path: Path, descriptor: int, numbers: list[int]) -> list[str]:
    try:
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            return list(pool.map(lambda number: hash_chunk(descriptor, number * CHUNK_BYTES), numbers))
    except OSError as error:
        raise ImageReadError(path, error) from error


def unsafe_entries(nodes: Iterable[Node]) -> Iterator[str]:
    """Yield a sentence for each device, pipe, socket, and set-user-id or set-group-id file."""
    for node in nodes:
        if node.kind in _SPECIAL:
            yield f"{display_path(node.path)} is a {node.kind}."
        elif node.kind == "file" and node.mode & _SET_ID:
            yield f"{display_path(node.path)} is a set-user-id or set-group-id file."


def _summary_differences(
    image: SquashfsFile, nodes: dict[bytes, Node], summary: Summary, entries: dict[bytes, Entry]
) -> Iterator[str]:
    """Yield a sentence for each fact of the summary that differs in the image, which has no origin."""
    name = f"{image.path.name}.json"
    kinds = Counter(each.kind for each in entries.values())
    size = sum(each.size for each in entries.values())
    for noun, said, found in (
        ("files", summary.files, kinds["file"] + kinds["hardlink"]),
        ("bytes of files", summary.data_bytes, size),
    ):
        if said != found:
            yield f"{name} says {said} {noun}, and the manifest {found}."
    removed = sum(each.paths for each in summary.removals)
    # Fetched data may have tombstones of its own.
    if removed > kinds["removed"]:
        yield f"{name} says {removed} removed paths, and the manifest {kinds['removed']}."
    header = json.loads(next(read_blocks(image, nodes[MANIFEST_NAME])).split(b"\n")[0])
    if {**header, **summary.packing.model_dump()} != header:
        yield f"{name} says other settings of packing than the manifest."
    node = nodes.get(CROISSANT_PATH)
    content = b""
    if node is not None and node.kind == "file" and node.size <= MAX_CROISSANT_BYTES:
        content = b"".join(read_blocks(image, node))
    if parse_croissant(content) != summary.croissant:
        yield f"{name} has other Croissant metadata than the image."


def _tree_differences(entries: dict[bytes, Entry], nodes: dict[bytes, Node]) -> Iterator[str]:
    for path in sorted(nodes.keys() - entries.keys() - {MANIFEST_NAME}):
        yield f"{display_path(path)} is not in the manifest."
    for path, entry in entries.items():
        node = nodes.get(path)
        if entry.kind == "removed":
            if node is not None:
                yield f"{display_path(path)} was removed, but is in the image."
        elif node is None:
            yield f"{display_path(path)} is in the manifest, but not in the image."
        elif not _matches(entry, node, nodes):
            yield f"{display_path(path)} is not as the manifest says: its kind, mode, size or target differs."


def _matches(entry: Entry, node: Node, nodes: dict[bytes, Node]) -> bool:
    if entry.kind == "symlink":
        return node.kind == "symlink" and node.target == entry.target
    if node.mode != entry.mode:
        return False
    if entry.kind == "hardlink":
        first = nodes.get(entry.target)
        return first is not None and first.inode == node.inode and node.kind == "file"
    return node.kind == entry.kind and (entry.kind != "file" or node.size == entry.size)


def _check_contents(
    image: SquashfsFile, entries: dict[bytes, Entry], nodes: dict[bytes, Node], sampled: _Sampler
) -> tuple[int, list[str]]:
    """Return how many files were read, and a line for each whose content differs from the manifest."""
    count, problems = 0, []
    for path, entry in entries.items():
        node = nodes.get(path)
        if entry.kind != "file" or node is None or node.size != entry.size or not sampled():
            continue
        count += 1
        digest = hashlib.sha256()
        try:
            for block in read_blocks(image, node):
                digest.update(block)
        except ImageReadError:
            raise
        except GipfelError as error:
            problems.append(f"{display_path(path)}: {error.problem}")
            continue
        if digest.hexdigest() != entry.sha256:
            problems.append(f"{display_path(path)} does not have the content in the manifest.")
    return count, problems


class Difference(Frozen):
    """Differences between two data sets, as paths escaped for display.

    Paths in `changed` differ in kind, mode, content, target or extended attributes.
    """

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        """Return whether both data sets are the same."""
        return not (self.added or self.removed or self.changed)


def compare(first: Path, second: Path) -> Difference:
    """Return the differences of the second data set from the first.

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
