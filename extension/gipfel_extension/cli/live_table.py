"""A table at a terminal that is drawn again in its place.

Lines for the person at the terminal.
"""

import re
import shutil
import sys
from collections.abc import Sequence

import click


class LiveTable:
    """Draws lines on stderr over the ones that it drew before; only where that is a terminal."""

    def __init__(self) -> None:
        self._drawn = 0

    @staticmethod
    def possible() -> bool:
        """Whether stderr is a terminal that understands it."""
        return sys.stderr.isatty()

    def draw(self, lines: Sequence[str]) -> None:
        """Draw, at most as many lines as the terminal has."""
        size = shutil.get_terminal_size()
        shown = [line[: size.columns - 1] for line in lines[: max(1, size.lines - 1)]]
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        # Each line is cleared to its end, and what is left of a longer table below.
        sys.stderr.write(up + "".join(f"{line}\x1b[K\n" for line in shown) + "\x1b[J")
        sys.stderr.flush()
        self._drawn = len(shown)


_BREAKS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def tell(line: str) -> None:
    """Write one line to stderr, after ``gipfel:``; whatever breaks lines or drives a terminal is a space."""
    text = _BREAKS.sub(" ", line).rstrip().encode(errors="replace").decode()
    click.echo(f"gipfel: {text}", err=True)


def examples(*lines: str) -> str:
    """Lines for the end of a command's help, kept as they are."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
