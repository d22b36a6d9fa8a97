"""Terminal output: messages on stderr, examples in help texts, and a table that is redrawn in place."""

import re
import shutil
import sys
from collections.abc import Sequence

import click


class LiveTable:
    """Lines on stderr that are redrawn in place, if it is a terminal."""

    def __init__(self) -> None:
        self._drawn = 0

    @staticmethod
    def is_supported() -> bool:
        """Return whether stderr is a terminal."""
        return sys.stderr.isatty()

    def draw(self, lines: Sequence[str]) -> None:
        """Draw the lines, cut to the size of the terminal."""
        size = shutil.get_terminal_size()
        visible = [line[: size.columns - 1] for line in lines[: max(1, size.lines - 1)]]
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        # Clears each line to its end, and the rest of a longer previous table.
        sys.stderr.write(up + "".join(f"{line}\x1b[K\n" for line in visible) + "\x1b[J")
        sys.stderr.flush()
        self._drawn = len(visible)


_BREAKS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def report_line(line: str) -> None:
    """Write one line to stderr, with the prefix ``gipfel:`` and without control characters."""
    text = _BREAKS.sub(" ", line).rstrip().encode(errors="replace").decode()
    click.echo(f"gipfel: {text}", err=True)


def examples(*lines: str) -> str:
    """Return the examples for the end of a command's help."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
