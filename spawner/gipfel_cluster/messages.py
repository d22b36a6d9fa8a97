"""Errors that are shown to users, and words of messages: for programs that do without pydantic, too."""

import re
import sys
from contextlib import suppress

#: Line breaks and control characters.
BREAKS = re.compile("[\x00-\x1f\x7f\x85\u2028\u2029]")


class GipfelError(Exception):
    """An error that its reader can act on: the problem, and the fix.

    Parameters
    ----------
    problem
        What happened, as one sentence without a line break.
    fix
        What to do next, as one sentence; empty if there is no advice.
    """

    #: Exit status of a command that this error ends.
    exit_status = 1

    def __init__(self, problem: str, fix: str = "") -> None:
        self.problem = one_line(problem)
        self.fix = one_line(fix)
        super().__init__(str(self))

    def __str__(self) -> str:
        return f"{self.problem} {self.fix}".strip()

    def _render_traceback_(self) -> list[str]:
        # IPython calls this: a cell, too, shows one sentence instead of a traceback.
        return [str(self)]


class ReportOSError:
    """Raises a `GipfelError` for an OSError in its ``with`` block: the problem, with the reason, and the fix.

    The file that the error concerns is named as well, unless the problem names it.
    """

    def __init__(self, problem: str, fix: str = "") -> None:
        self._problem, self._fix = problem, fix

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, OSError):
            named = not error.filename or str(error.filename) in self._problem
            file = "" if named else f" ({error.filename})"
            raise GipfelError(f"{self._problem}: {error.strerror or error}{file}.", self._fix) from error


def report_line(text: str) -> None:
    """Write a line to standard error, after the program's name; do without if that is not possible."""
    with suppress(OSError):
        sys.stderr.write(f"gipfel: {text}\n")
        sys.stderr.flush()


def one_line(text: str) -> str:
    """Return a text in which one space replaces each run of white space, line breaks and control characters.

    A question mark replaces half of a surrogate pair, which no output can carry.
    """
    return printable(" ".join(BREAKS.sub(" ", text).split()))


def printable(text: str) -> str:
    """Return a text in which a question mark replaces each surrogate."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def pluralize(number: int, noun: str) -> str:
    """Return a number and its noun, plural unless the number is 1: ``1 node``, ``2 nodes``, ``2 entries``."""
    if number == 1:
        return f"{number} {noun}"
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{number} {noun[:-1]}ies"
    return f"{number} {noun}{'es' if noun.endswith(('s', 'x', 'ch', 'sh')) else 's'}"
