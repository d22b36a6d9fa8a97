"""Whole lines of a text file that may still grow, and the base class of their readers."""

from .growing_file import GrowingFile
from .scalar import Names

#: Longer lines hold no metrics; they are dropped and counted. Shorter than a piece of the file.
MAX_LINE_BYTES = 1 << 20


class TextLines:
    """Reader of the lines of a file; an unfinished last line is left for later.

    Attributes
    ----------
    dropped
        Number of lines that were too long.
    """

    def __init__(self, file: GrowingFile) -> None:
        self._file = file
        self._skipping = False
        self._restarts = 0
        self.dropped = 0

    @property
    def restarts(self) -> int:
        """Number of times that the file was replaced, truncated or rewritten."""
        return self._file.restarts

    def read(self, *, last: bool = False) -> list[bytes] | None:
        """Return the next lines without their ends; None where there are no more for now.

        Parameters
        ----------
        last
            True where the file will not grow any more: its unfinished last line is a line.
        """
        piece = self._file.read()
        if self._file.restarts != self._restarts:
            self._restarts, self._skipping = self._file.restarts, False
        if not piece:
            return None
        end = piece.rfind(b"\n") + 1
        at_end = self._file.offset + len(piece) >= self._file.size
        if last and at_end:
            end = len(piece)
        elif not end:
            if len(piece) <= MAX_LINE_BYTES:
                return None
            # The middle of a line that is too long.
            self.dropped += not self._skipping
            self._skipping, end = True, len(piece)
            self._file.advance(end, piece)
            return []
        self._file.advance(end, piece)
        lines = piece[:end].split(b"\n")
        if self._skipping:
            lines, self._skipping = lines[1:], False
        kept = [line for line in lines if line and len(line) <= MAX_LINE_BYTES]
        self.dropped += sum(len(line) > MAX_LINE_BYTES for line in lines)
        return kept


class LineReader:
    """Base class of readers of text files: the file's lines, its names, and what was dropped."""

    def __init__(self, file: GrowingFile, rank: int | None = None) -> None:
        self._lines = TextLines(file)
        self._rank = rank
        self._names = Names()
        self._bad = 0

    @property
    def damaged(self) -> int:
        """Number of lines, cells and names that were dropped."""
        return self._bad + self._lines.dropped
