"""Stream the entries and file contents of SquashFS images and OCI or Docker archives, without unpacking them.

``unsquashfs -pf`` first writes a definition of each entry and then the content of the files, which it
decompresses in parallel. It writes link targets verbatim, so a target with line breaks could forge
definitions. Therefore `squashfs_entries` lists the image first, and accepts it only if every line has the
form of an entry.
"""

import functools
import io
import json
import lzma
import os
import re
import shutil
import stat
import subprocess
import tarfile
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, cast

from gipfel_cluster.model import GipfelError

from ...telemetry.files import open_regular

_TIMEOUT_S = 120
_STREAM_S = 900.0
_MAX_LISTING_BYTES = 512 << 20
_MAX_CONTENT_BYTES = 256 << 30
#: Largest ratio of unpacked to packed size, which is not checked up to `_UNSUSPICIOUS_BYTES` of content. Real
#: images unpack to three to ten times their size.
_MAX_RATIO, _UNSUSPICIOUS_BYTES = 100, 1 << 30
_MAX_ENTRIES = 2_000_000
#: MiB of memory that unsquashfs may use for each of its two queues: data blocks, and fragments.
_QUEUE = "64"
_LISTED = re.compile(
    rb"([-dlbcps])([-rwxsStT]{9}) \d+/\d+ +(?:(\d+)|\d+, *\d+) \d{4}-\d\d-\d\d \d\d:\d\d (/[^\n]*)?"
)
_DEFINED = re.compile(rb"((?:[^\\ ]|\\.)+) R \d+ [0-7]+ \d+ \d+ (\d+) (\d+)(?: \d+)?")
_DATA = b"\n#\n# START OF DATA - DO NOT MODIFY\n#\n"
_KINDS = {ord("-"): stat.S_IFREG, ord("d"): stat.S_IFDIR, ord("l"): stat.S_IFLNK}
_CHUNK = 1 << 16


class Entry(NamedTuple):
    """A file or directory; `path` without a leading slash, `mode` as of stat, `size` in bytes."""

    path: str
    mode: int
    size: int


class Unreadable(GipfelError):  # noqa: N818 - it is what a scan reports, not a fault of the program
    """An image that can't be read."""


def _check_content(path: Path, size: int) -> None:
    """Raise if the unpacked files are implausibly large for the image's size, as in a decompression bomb."""
    if size > max(_UNSUSPICIOUS_BYTES, min(_MAX_CONTENT_BYTES, _MAX_RATIO * path.stat().st_size)):
        raise Unreadable(f"{path} unpacks to {size / 1e9:.0f} GB or more, which is too much for its size.")


def squashfs_entries(path: Path) -> list[Entry]:
    """Return all entries of an image.

    Raises
    ------
    Unreadable
        The image is broken, or the name of an entry has a line break.
    """
    if shutil.which("unsquashfs") is None:
        raise Unreadable("A SquashFS image can't be read without unsquashfs.", "Install squashfs-tools.")
    command = ("unsquashfs", "-lln", "-d", "", str(path.absolute()))
    try:
        done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise Unreadable(f"Reading {path} took longer than {_TIMEOUT_S} s.") from None
    lines = done.stdout.split(b"\n")
    if done.returncode != 0 or len(done.stdout) > _MAX_LISTING_BYTES or len(lines) > _MAX_ENTRIES:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise Unreadable(f"{path} can't be read: {said[-1][:200] if said else 'unsquashfs failed'}.")
    entries = []
    for line in lines:
        matched = _LISTED.fullmatch(line)
        if matched is None and line:
            raise Unreadable(f"{path} could not be judged: the name of a file in it has a line break.")
        if matched is not None and matched[4]:
            entries.append(_entry(matched))
    return entries


def _entry(matched: re.Match[bytes]) -> Entry:
    kind = _KINDS.get(matched[1][0], stat.S_IFCHR)
    name = matched[4][1:]
    if kind == stat.S_IFLNK:
        name = name.partition(b" -> ")[0]
    return Entry(name.decode(errors="surrogateescape"), kind | _bits(matched[2]), int(matched[3] or 0))


@functools.cache
def _bits(text: bytes) -> int:
    bits = 0
    for place, letter in enumerate(text.decode()):
        if letter not in "-ST":
            bits |= 0o400 >> place
        if letter in "sStT":
            bits |= (stat.S_ISUID, stat.S_ISGID, stat.S_ISVTX)[place // 3]
    return bits


class _Definition(NamedTuple):
    path: str
    size: int
    offset: int


class Bounded(io.RawIOBase):
    """The next `size` bytes of a stream as a file; after :meth:`drain` the stream is just behind them."""

    def __init__(self, stream: BinaryIO, size: int) -> None:
        self._stream, self._left = stream, size

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Read the next bytes into a buffer."""
        content = self._stream.read(min(len(buffer), self._left))
        self._left -= len(content)
        if not content and self._left and len(buffer):
            raise Unreadable("The image ends before the content of the files that it lists.")
        buffer[: len(content)] = content
        return len(content)

    def drain(self) -> None:
        """Read and discard the bytes that are left."""
        while self._left:
            content = self._stream.read(min(_CHUNK, self._left))
            if not content:
                raise Unreadable("The image ends before the content of the files that it lists.")
            self._left -= len(content)


def squashfs_files(path: Path, entries: list[Entry]) -> Iterator[tuple[Entry, BinaryIO]]:
    """Yield each regular file with its content, in the order of the stream.

    Parameters
    ----------
    entries
        The entries that :func:`squashfs_entries` returned for the image.

    Raises
    ------
    Unreadable
        The image is broken, too large, or takes too long.
    """
    known = {each.path: each for each in entries if stat.S_ISREG(each.mode)}
    _check_content(path, sum(each.size for each in known.values()))
    with _stream(path) as stream:
        at = 0
        for each in _definitions(stream, path):
            if each.offset < at:
                # Another hard link to a file that was read before.
                continue
            entry = known.get(each.path)
            if entry is None or each.offset != at:
                raise Unreadable(f"{path} could not be judged: its listing and its content differ.")
            content = Bounded(stream, each.size)
            yield entry, cast("BinaryIO", io.BufferedReader(content))
            content.drain()
            at += each.size


@contextmanager
def _stream(path: Path) -> Iterator[BinaryIO]:
    command = ("unsquashfs", "-no-progress", "-da", _QUEUE, "-fr", _QUEUE, "-pf", "/dev/stdout")
    with subprocess.Popen(
        (*command, str(path.absolute())), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        # Kill the program at the time limit: if anything cuts the stream off, the image is not judged.
        clock = threading.Timer(_STREAM_S, process.kill)
        clock.start()
        try:
            yield cast("BinaryIO", process.stdout)
        finally:
            clock.cancel()
            process.kill()


def _definitions(stream: BinaryIO, path: Path) -> list[_Definition]:
    header = bytearray()
    while not header.endswith(_DATA):
        line = stream.readline(_CHUNK)
        header += line
        if not line or len(header) > _MAX_LISTING_BYTES:
            raise Unreadable(
                f"{path} can't be read by unsquashfs. Reading the content of files needs unsquashfs 4.5 or "
                "newer."
            )
    found = []
    for line in bytes(header[: -len(_DATA)]).split(b"\n"):
        if matched := _DEFINED.fullmatch(line):
            name = re.sub(rb"\\(.)", rb"\1", matched[1]).decode(errors="surrogateescape")
            found.append(_Definition(name, int(matched[2]), int(matched[3])))
    return sorted(found, key=lambda each: each.offset)


_MANIFEST_LIMIT = 16 << 20
#: Deepest nesting of indexes: an index may name other indexes, or even itself.
_MAX_INDEX = 4
#: Attestations of a build, which an index lists beside its images.
_ATTESTATION = "application/vnd.in-toto+json"
_STREAM: Final = "r|*"
_BROKEN = (
    tarfile.TarError, KeyError, IndexError, ValueError, TypeError, AttributeError, EOFError, zlib.error,
    lzma.LZMAError, RecursionError, OverflowError, OSError,
)  # fmt: skip


def is_archive(path: Path) -> bool:
    """Return whether a file is an OCI or Docker archive."""
    try:
        with open_regular(path, follow=True) as file, tarfile.open(fileobj=file) as archive:
            names = set()
            for _, member in zip(range(10_000), archive, strict=False):
                names.add(member.name.removeprefix("./"))
            return bool(names & {"index.json", "manifest.json"})
    except (tarfile.TarError, OSError, ValueError, zlib.error, EOFError):
        return False


def archive_files(path: Path, *, one_image: bool = False) -> Iterator[tuple[Entry, BinaryIO | None]]:
    """Yield the entries of all layers, even those that a later layer removes: the archive still has them.

    The content is None for entries other than regular files. After a broken layer, the others are still read.

    Raises
    ------
    Unreadable
        The archive is broken or too large or, with `one_image`, holds several images.
    """
    total, count = 0, 0
    broken: Exception | None = None
    with archive_errors(path), open_regular(path, follow=True) as file, tarfile.open(fileobj=file) as archive:
        images, blobs = layers(archive)
        if one_image and images > 1:
            raise Unreadable(f"{path} holds {images} images; save each to its own archive.")
        for layer in blobs:
            try:
                for member, stream in members(layer):
                    total, count = total + member.size, count + 1
                    if count > _MAX_ENTRIES:
                        raise Unreadable(f"{path} holds too many files.")
                    _check_content(path, total)
                    kind = (
                        stat.S_IFREG if member.isreg() else stat.S_IFDIR if member.isdir() else stat.S_IFLNK
                    )
                    yield Entry(clean(member.name), kind | (member.mode & 0o7777), member.size), stream
            except _BROKEN as error:
                broken = broken or error
        if broken:
            raise broken


@contextmanager
def archive_errors(path: Path) -> Iterator[None]:
    """Convert errors that tarfile and json raise for a broken archive or member to `Unreadable`."""
    try:
        yield
    except _BROKEN as error:
        raise Unreadable(f"{path} is not a valid OCI archive ({type(error).__name__}).") from error


def layers(archive: tarfile.TarFile) -> tuple[int, list[BinaryIO]]:
    """Return the number of images in an archive, and the layers of all images without duplicates.

    The layers of an image are in their order, the lowest first. Source: OCI image-spec, image-layout.md and
    image-index.md; moby's image/spec for manifest.json.
    """
    names = {member.name.removeprefix("./"): member for member in archive.getmembers()}

    def blob(name: str) -> BinaryIO:
        stream = archive.extractfile(names[name.removeprefix("./")])
        if stream is None:
            raise KeyError(name)
        return cast("BinaryIO", stream)

    def document(name: str) -> Any:
        return json.loads(blob(name).read(_MANIFEST_LIMIT))

    images: dict[tuple[str, ...], None] = {}
    # A program may read either index.json or manifest.json, so the images of both count.
    if "index.json" in names:
        left = [(each, 0) for each in document("index.json")["manifests"]]
        seen: set[str] = set()
        while left:
            entry, depth = left.pop(0)
            name = "blobs/" + entry["digest"].replace(":", "/")
            if name in seen:
                continue
            seen.add(name)
            if name not in names and depth:
                # An index names the images for all platforms, but the archive may contain only one of them.
                continue
            manifest = document(name)
            if depth > _MAX_INDEX:
                raise ValueError("its indexes are nested too deeply")
            left += [(each, depth + 1) for each in manifest.get("manifests", ())]
            images[
                tuple(
                    "blobs/" + layer["digest"].replace(":", "/")
                    for layer in manifest.get("layers", ())
                    if layer.get("mediaType") != _ATTESTATION
                )
            ] = None
    if "manifest.json" in names:
        images.update((tuple(image["Layers"]), None) for image in document("manifest.json"))
    images.pop((), None)
    if not images:
        raise KeyError("layers")
    found = dict.fromkeys(name for image in images for name in image)
    return len(images), [blob(name) for name in found]


def members(layer: BinaryIO) -> Iterator[tuple[tarfile.TarInfo, BinaryIO | None]]:
    """Yield each member of a layer with a forward-only stream of its content; None if it is not a file."""
    with tarfile.open(fileobj=layer, mode=_STREAM) as tar:
        for member in tar:
            yield member, cast("BinaryIO", tar.extractfile(member)) if member.isreg() else None


def clean(name: str) -> str:
    """Return the path of a member relative to the root, without leading ``/`` or ``./``."""
    return os.path.normpath(name).lstrip("/")
