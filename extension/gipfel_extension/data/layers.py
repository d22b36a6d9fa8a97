"""Layers of a data set: add files without rewriting it, mount it, remove paths from an image.

A layer is a separate image that contains the root hash of the image it extends. Layers of ``data.sqsh`` are
``data.1.sqsh``, ``data.2.sqsh`` and so on, and are mounted beside it, at ``/data.1`` and so on: an EDF
can't merge mounts.

To remove paths, an image is written again without them, with a tombstone for each path in its manifest. The
content of removed files is no longer in the image. The root hash changes, and the summary lists the earlier
root hashes, so that layers of the image stay valid.
"""

import io
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, cast

from gipfel_cluster.model import GipfelError

from ..telemetry.files import open_regular
from .manifest import (
    CROISSANT_PATH,
    MANIFEST_NAME,
    Base,
    Entry,
    Removal,
    Summary,
    display_paths,
    read_summary,
)
from .options import Plan
from .pack import PackRequest, pack, utc_now
from .source import FileVersion, ScannedEntry, Source
from .squashfs import SUFFIX, Node, SquashfsFile, read_blocks, root_mode, walk
from .verify import load_entries, unsafe_entries, verify

_MAX_LAYERS = 100


def layer_path(base: Path, number: int) -> Path:
    """Return the path of an image's layer; `number` counts from 1."""
    return base.with_name(f"{base.name.removesuffix(SUFFIX)}.{number}{SUFFIX}")


def find_layers(base: Path) -> list[Path]:
    """Return the layers beside an image, in their order.

    Raises
    ------
    GipfelError
        A layer was made for another image, or a summary is missing or not valid.
    """
    found: list[Path] = []
    expected = base
    for number in range(1, _MAX_LAYERS + 1):
        path = layer_path(base, number)
        if not path.exists():
            break
        layer = required_summary(path).base
        below = required_summary(expected)
        # Removing paths gives the image below a new root hash, but does not invalidate the layer.
        if layer is None or layer.root not in {below.root, *(each.root for each in below.removals)}:
            raise GipfelError(f"{path} is not a layer of {expected.name} as it is now.", "Add it again.")
        found.append(path)
        expected = path
    return found


def next_layer(base: Path) -> tuple[Path, Base]:
    """Return the path of an image's next layer, and its reference to the image that it extends."""
    layers = find_layers(base)
    if len(layers) >= _MAX_LAYERS:
        raise GipfelError(f"{base} has {_MAX_LAYERS} layers.", "Pack all of the data again.")
    last = layers[-1] if layers else base
    return layer_path(base, len(layers) + 1), Base(file=last.name, root=required_summary(last).root)


def refuse_known_paths(base: Path, source: Source) -> None:
    """Raise if a source has a path that an image or one of its layers has, other than a directory.

    Raises
    ------
    GipfelError
        It has such paths; the message names them.
    """
    known = {
        path: entry.kind for each in (base, *find_layers(base)) for path, entry in load_entries(each).items()
    }
    both = [each.entry for each in source.entries if each.entry.path in known]
    removed = [each.path for each in both if known[each.path] == "removed"]
    if removed:
        raise GipfelError(
            f"{base.name} had {display_paths(removed)}, which was removed.",
            "Leave it out, or pack all of the data again.",
        )
    clashes = [each.path for each in both if {known[each.path], each.kind} != {"directory"}]
    if clashes:
        raise GipfelError(
            f"{base.name} already has {display_paths(clashes)}.",
            "Rename them, or pack all of the data again.",
        )


def mount_lines(image: Path, destination: str) -> list[str]:
    """Return the EDF mounts of an image and its layers, as ``SOURCE:DESTINATION:sqsh``.

    Raises
    ------
    GipfelError
        The image is not whole, has devices or set-user-id files, or its path can't be written in an EDF.
    """
    lines = []
    for number, path in enumerate([image, *find_layers(image)] if read_summary(image) else [image]):
        with SquashfsFile(path) as opened:
            source = os.fspath(opened.path.absolute())
            if unsafe := next(unsafe_entries(walk(opened)), ""):
                raise GipfelError(
                    f"{path} is not safe to mount: {unsafe}",
                    f"`gipfel data verify {path}` lists them. Pack the data again.",
                )
        target = f"{destination}.{number}" if number else destination
        if not source.isprintable() or any(each in source for each in ':$"\\'):
            raise GipfelError(f"{source!a} can't be written in an EDF.", "Rename the file or its directory.")
        lines.append(f"{source}:{target}:sqsh")
    return lines


def required_summary(path: Path) -> Summary:
    """Return the summary beside an image; raise GipfelError if there is none."""
    found = read_summary(path)
    if found is None:
        raise GipfelError(f"{path}.json is missing.", f"Copy it from where {path.name} was packed.")
    return found


_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True)
class RemoveRequest:
    """An image, the paths in it to remove (a directory with everything below it), and progress callbacks."""

    image: Path
    paths: Sequence[bytes]
    environment: Mapping[str, str]
    on_plan: Callable[[Source, Plan], None] = lambda _source, _plan: None
    on_progress: Callable[[int], None] = lambda _: None


def remove(request: RemoveRequest) -> Summary:
    """Replace an image with one that lacks some paths; return the new summary.

    Raises
    ------
    GipfelError
        A path is not in the image, or the image is damaged. The image is then unchanged.
    """
    path = request.image.resolve()
    before = required_summary(path)
    checked = verify(path)
    if not checked.valid:
        # Writing damaged content again would give it a valid hash.
        raise GipfelError(f"{path} is not whole: {checked.problems[0]}", "Copy it or pack it again.")
    entries = load_entries(path)
    kept = without(entries, request.paths)
    count = sum(each.kind == "removed" for each in kept) - sum(
        each.kind == "removed" for each in entries.values()
    )
    removal = Removal(root=before.root, removed=utc_now(), paths=count)
    gone = {each.rstrip(b"/") for each in request.paths}
    croissant = before.croissant if CROISSANT_PATH not in gone else None
    with SquashfsFile(path) as image:
        source = _image_source(image, kept)
        # Keep the time that all files in the image have.
        environment = {**request.environment, "SOURCE_DATE_EPOCH": str(image.superblock.modified)}
        return pack(
            PackRequest(
                source=path,
                target=path,
                replace=True,
                previous=before.model_copy(
                    update={"removals": (*before.removals, removal), "croissant": croissant}
                ),
                environment=environment,
                scan=lambda _: source,
                on_plan=request.on_plan,
                on_progress=request.on_progress,
            )
        )


def without(entries: Mapping[bytes, Entry], paths: Sequence[bytes]) -> list[Entry]:
    """Return entries sorted by path, with tombstones instead of some paths and everything below them.

    Raises
    ------
    GipfelError
        A path is not among the entries.
    """
    wanted = {path.rstrip(b"/") for path in paths}
    missing = sorted(path for path in wanted if path not in entries or entries[path].kind == "removed")
    if missing or not wanted:
        raise GipfelError(
            f"The data set has no {display_paths(missing) or 'such path'}.",
            "List its paths with `gipfel data show --files`.",
        )
    gone = {path for path in entries if wanted & set(_parents(path))}
    first: dict[bytes, bytes] = {}
    found = []
    for path, entry in sorted(entries.items()):
        if path in gone and entry.kind != "removed":
            found.append(
                replace(Entry(path, "removed", 0, sha256=entry.sha256), url=entry.url, fetched=entry.fetched)
            )
        elif entry.kind == "hardlink" and entry.target in gone:
            # The first name of a hard-linked file was removed, so the next one becomes the first.
            name = first.setdefault(entry.target, path)
            content = replace(entries[entry.target], path=path)
            found.append(content if name == path else replace(entry, target=name))
        else:
            found.append(entry)
    return found


def _parents(path: bytes) -> Iterator[bytes]:
    parts = path.split(b"/")
    return (b"/".join(parts[:count]) for count in range(1, len(parts) + 1))


@dataclass(frozen=True)
class _ImageSource(Source):
    image: SquashfsFile
    nodes: Mapping[bytes, Node]
    lock: threading.Lock

    def open(self, scanned: ScannedEntry) -> BinaryIO:
        """Open the content of a file in the image."""
        file = open_regular(self.path, follow=True)
        blocks = read_blocks(self.image, self.nodes[scanned.entry.path])
        return cast("BinaryIO", io.BufferedReader(_BlockReader(file, blocks, self.lock), _BUFFER_BYTES))

    def changed(self) -> list[bytes]:
        """Return the image's name if it has been replaced, else an empty list."""
        now = FileVersion.of(os.stat(self.path))  # noqa: PTH116 - as `version` was made
        return [] if now == self.version else [os.fsencode(self.path.name)]


def _image_source(image: SquashfsFile, manifest: Sequence[Entry]) -> _ImageSource:
    nodes = {node.path: node for node in walk(image) if node.path != MANIFEST_NAME}
    version = FileVersion.of(os.stat(image.path))  # noqa: PTH116
    entries = tuple(ScannedEntry(entry, version) for entry in manifest)
    return _ImageSource(image.path, root_mode(image), version, entries, (), image, nodes, threading.Lock())


class _BlockReader(io.RawIOBase):
    """Reader of a file in an image, from an iterator of its blocks; its descriptor is that of the image."""

    def __init__(self, file: BinaryIO, blocks: Iterator[bytes], lock: threading.Lock) -> None:
        self._file = file
        self._blocks = blocks
        self._lock = lock
        self._rest = b""

    def readable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the image's descriptor."""
        return self._file.fileno()

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer from the rest of the current block, or from the next block."""
        while not self._rest:
            # The image's caches are not thread-safe.
            with self._lock:
                block = next(self._blocks, None)
            if block is None:
                return 0
            self._rest = block
        count = min(len(buffer), len(self._rest))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        return count

    def close(self) -> None:
        """Close the descriptor."""
        self._file.close()
        super().close()
