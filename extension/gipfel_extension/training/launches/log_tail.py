"""The end of what the ranks said, for pages: where it begins, and which lines are about an error."""

import re
from collections.abc import Iterable
from pathlib import Path

from ...telemetry.files import open_regular
from .logs import Cursor, LogLine

#: Read back at most, all ranks together, and of one rank at least.
_MOST_BYTES = 1 << 20
_FEWEST_BYTES = 8 << 10
#: Rank, text, milliseconds since 1970 or None, whether it is about an error.
LogRow = tuple[int, str, int | None, bool]
_TRACEBACK = "Traceback (most recent call last)"
_ERROR = re.compile(
    r"\b[A-Za-z_.]*(?:Error|Exception|Interrupt)\b|\b(?:error|fatal|failed|failure|killed|segfault|abort(?:ed)?)\b"
    r"|Segmentation fault|out of memory|Signal \d+",
    re.IGNORECASE,
)


def tail_cursor(folder: Path, *, ranks: tuple[int, ...] = (), most_bytes: int = _MOST_BYTES) -> Cursor:
    """From where to read so that at most some bytes of each rank follow, beginning with a whole line."""
    files = {}
    for path in folder.glob("rank-*.log"):
        number = path.stem.removeprefix("rank-")
        if number.isdecimal() and (not ranks or int(number) in ranks):
            files[int(number)] = path
    each = max(_FEWEST_BYTES, most_bytes // max(1, len(files)))
    return Cursor(offsets={rank: _start(path, each) for rank, path in files.items()})


def _start(path: Path, most: int) -> int:
    try:
        with open_regular(path) as file:
            size = file.seek(0, 2)
            if size <= most:
                return 0
            file.seek(size - most)
            beginning = file.read(most)
    except OSError:
        return 0
    end = beginning.find(b"\n")
    return size - most + (end + 1 if end >= 0 else 0)


class ErrorLines:
    """Tells which lines are about an error; of a traceback all are.

    Parameters
    ----------
    inside
        Ranks whose next line is in the middle of a traceback.
    """

    def __init__(self, inside: Iterable[int] = ()) -> None:
        self.inside = set(inside)

    def is_error(self, line: LogLine) -> bool:
        """Whether a line, the next of its rank, is about an error."""
        # What torch's launcher and papermill put before a line.
        text = re.sub(r"^\[[^\]]{0,60}\]:", "", line.text)
        if _TRACEBACK in text:
            self.inside.add(line.rank)
            return True
        if line.rank in self.inside:
            if text[:1] not in {" ", "\t", ""}:
                self.inside.discard(line.rank)
            return True
        return bool(_ERROR.search(text))

    def marked(self, lines: Iterable[LogLine]) -> list[LogRow]:
        """Rank, text, milliseconds since 1970 or None, and whether it is about an error."""
        return [
            (
                line.rank,
                line.text.encode(errors="replace").decode(),
                None if line.time_ns is None else line.time_ns // 1_000_000,
                self.is_error(line),
            )
            for line in lines
        ]
