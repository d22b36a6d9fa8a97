"""A table at a terminal that is drawn again in its place."""

import shutil
import sys
from collections.abc import Sequence


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
