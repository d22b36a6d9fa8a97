"""A vetting run on the terminal while it runs."""

import os
import shutil
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from .terminal import tell

if TYPE_CHECKING:
    from ..vetting.report import VettingReport
    from ..vetting.report_table import Table

_EVERY_S = 10.0
_MOST_ROWS = 16


class Progress:
    """Draws the report anew on a terminal; elsewhere a line now and then says how far it is."""

    def __init__(self) -> None:
        self._stream = sys.stderr
        self._live = _is_terminal(self._stream)
        self._drawn = 0
        self._said = time.monotonic()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._erase()

    def show(self, report: "VettingReport") -> None:
        """Show the state of now; a terminal that has gone away is no reason to end."""
        try:
            self._show(report)
        except (OSError, ValueError):
            self._live = False

    def _show(self, report: "VettingReport") -> None:
        if self._live:
            size = shutil.get_terminal_size()
            lines = table_for(stdout=False).lines(report, most_rows=min(_MOST_ROWS, max(1, size.lines - 12)))
            self._erase()
            # A line that wraps, or scrolls away, could not be erased.
            lines = lines[: max(1, size.lines - 1)]
            self._stream.write("".join(f"{line}\n" for line in lines))
            self._stream.flush()
            self._drawn = len(lines)
        elif time.monotonic() - self._said > _EVERY_S:
            self._said = time.monotonic()
            busy = sum(bool(each.running) for each in report.nodes)
            tell(f"vetting: {len(report.results)} verdicts, {busy} of {len(report.nodes)} nodes are busy")

    def _erase(self) -> None:
        if self._drawn:
            try:
                self._stream.write(f"\033[{self._drawn}F\033[J")
                self._stream.flush()
            except (OSError, ValueError):
                self._live = False
            self._drawn = 0


def table_for(*, stdout: bool) -> "Table":
    """A table as the stream can show it: colors on a terminal alone, letters where nothing else works."""
    from ..vetting.report_table import WIDTH, Table  # noqa: PLC0415

    stream = sys.stdout if stdout else sys.stderr
    live = _is_terminal(stream)
    width = min(WIDTH, shutil.get_terminal_size().columns - 1) if live else WIDTH
    color = live and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    return Table(color=color, plain=not _writes("✓◐", stream), width=width)


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def _writes(text: str, stream: TextIO | None) -> bool:
    try:
        text.encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
