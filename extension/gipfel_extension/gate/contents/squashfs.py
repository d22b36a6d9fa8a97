"""The entries of a SquashFS image, and the content of all of its files as one stream, nothing unpacked.

``unsquashfs -pf`` writes definitions of all entries and then the content of the files, which it decompresses
in parallel. It writes the targets of links as they are, so that a target with line breaks could forge
definitions; a listing in which each line has the form of an entry shows that there are none.
"""

import io
import re
import shutil
import stat
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from gipfel_cluster.model import GipfelError

from .permissions import Entry

_TIMEOUT_S = 120
_STREAM_S = 900.0
_MAX_LISTING_BYTES = 512 << 20
_MAX_CONTENT_BYTES = 256 << 30
_MAX_ENTRIES = 2_000_000
#: MiB that unsquashfs may keep of files and of fragments.
_QUEUE = "64"
_LISTED = re.compile(
    rb"([-dlbcps])([-rwxsStT]{9}) \d+/\d+ +(?:(\d+)|\d+, *\d+) \d{4}-\d\d-\d\d \d\d:\d\d (/[^\n]*)?"
)
_DEFINED = re.compile(rb"((?:[^\\ ]|\\.)+) R \d+ [0-7]+ \d+ \d+ (\d+) (\d+)(?: \d+)?")
_DATA = b"\n#\n# START OF DATA - DO NOT MODIFY\n#\n"
_KINDS = {ord("-"): stat.S_IFREG, ord("d"): stat.S_IFDIR, ord("l"): stat.S_IFLNK}
_CHUNK = 1 << 16


class Unreadable(GipfelError):  # noqa: N818 - it is what a scan reports, not a fault of the program
    """An image that can't be read."""


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
            raise Unreadable(f"{path} can't be judged: the name of a file in it has a line break.")
        if matched is not None and matched[4]:
            entries.append(_entry(matched))
    return entries


def _entry(matched: re.Match[bytes]) -> Entry:
    kind = _KINDS.get(matched[1][0], stat.S_IFCHR)
    name = matched[4][1:]
    if kind == stat.S_IFLNK:
        name = name.partition(b" -> ")[0]
    return Entry(name.decode(errors="surrogateescape"), kind | _bits(matched[2]), int(matched[3] or 0))


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
    """The next bytes of a stream, which is then at their end once :meth:`drain` was called."""

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
            raise Unreadable("It ends before the files that it names.")
        buffer[: len(content)] = content
        return len(content)

    def drain(self) -> None:
        """Read what is left."""
        while self._left:
            content = self._stream.read(min(_CHUNK, self._left))
            if not content:
                raise Unreadable("It ends before the files that it names.")
            self._left -= len(content)


def squashfs_files(path: Path, entries: list[Entry]) -> Iterator[tuple[Entry, BinaryIO]]:
    """Yield each regular file with its content, in the order of the stream.

    Parameters
    ----------
    entries
        Those of :func:`squashfs_entries`.

    Raises
    ------
    Unreadable
        The image is broken, too large, or takes too long.
    """
    known = {each.path: each for each in entries if stat.S_ISREG(each.mode)}
    if sum(each.size for each in known.values()) > _MAX_CONTENT_BYTES:
        raise Unreadable(f"{path} unpacks to more than {_MAX_CONTENT_BYTES >> 30} GiB.")
    with _stream(path) as stream:
        at = 0
        for each in _definitions(stream, path):
            if each.offset < at:
                # Another name of a file that was read before.
                continue
            entry = known.get(each.path)
            if entry is None or each.offset != at:
                raise Unreadable(f"{path} can't be judged: its listing and its content differ.")
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
        # A stream that ends too early is not judged, regardless of the cause.
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
            raise Unreadable(f"{path} can't be read by unsquashfs. Its content needs version 4.5 or newer.")
    found = []
    for line in bytes(header[: -len(_DATA)]).split(b"\n"):
        if matched := _DEFINED.fullmatch(line):
            name = re.sub(rb"\\(.)", rb"\1", matched[1]).decode(errors="surrogateescape")
            found.append(_Definition(name, int(matched[2]), int(matched[3])))
    return sorted(found, key=lambda each: each.offset)
