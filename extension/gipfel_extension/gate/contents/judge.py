"""Judge a file of an image by its stream, which is read once and forward."""

import io
from typing import BinaryIO, cast

from ..models.judgement import Judgement
from ..models.scan_stream import Forward, scan_member
from ..models.streams import Budget
from .permissions import Entry

_TAIL = (1 << 16) + 22
_ZIP_END = b"PK\x05\x06"


class _WithTail(io.RawIOBase):
    """A stream of which the last bytes are kept."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.tail = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        content = self._file.read(len(buffer))
        self.tail = (self.tail + content)[-_TAIL:] if len(content) < _TAIL else content[-_TAIL:]
        buffer[: len(content)] = content
        return len(content)


def judge_stream(entry: Entry, start: bytes, content: BinaryIO) -> Judgement:
    """Judge a file by its first bytes, which were read before, and the rest of its content."""
    name = entry.path.rpartition("/")[2]
    if len(start) >= entry.size:
        return scan_member(cast("BinaryIO", io.BufferedReader(io.BytesIO(start))), name, Budget(), 0)
    rest = _WithTail(content)
    whole = Forward(cast("BinaryIO", io.BufferedReader(rest)), start, entry.size)
    found = scan_member(cast("BinaryIO", io.BufferedReader(whole)), name, Budget(), 0)
    if start.startswith(b"PK"):
        return found
    while rest.read(1 << 20):
        pass
    if _ends_as_zip(rest.tail):
        why = "an archive follows it in the same file, which can't be read in an image; scan the file itself"
        found = Judgement.union([found, Judgement.unclear(why)])
    return found


def _ends_as_zip(tail: bytes) -> bool:
    at = tail.rfind(_ZIP_END)
    if at < 0 or len(tail) < at + 22:
        return False
    return at + 22 + int.from_bytes(tail[at + 20 : at + 22], "little") == len(tail)
