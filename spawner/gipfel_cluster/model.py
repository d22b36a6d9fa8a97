"""The base of every value that crosses a boundary, and of every error that a person reads."""

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict

_BREAKS = re.compile("[\x00-\x1f\x7f\x85\u2028\u2029]")


class Frozen(BaseModel):
    """A value that nobody changes and that refuses keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)


class GipfelError(Exception):
    """Something that a person can act on: what happened, and what to do next.

    Parameters
    ----------
    problem
        What happened, as one sentence without a line break.
    fix
        What to do next, as one sentence; empty where nothing can be advised.
    """

    def __init__(self, problem: str, fix: str = "") -> None:
        self.problem = one_line(problem)
        self.fix = one_line(fix)
        super().__init__(str(self))

    def __str__(self) -> str:
        return f"{self.problem} {self.fix}".strip()

    def _render_traceback_(self) -> list[str]:
        # IPython asks for it: in a cell, too, this is one sentence and not a stack of our own functions.
        return [str(self)]


def one_line(text: str) -> str:
    """Text with every control character and line break turned into a space."""
    return " ".join(_BREAKS.sub(" ", text).split())


def counted(number: int, word: str) -> str:
    """Return a number and its noun, in the singular where there is one: ``1 node``, ``2 nodes``."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _unbroken(value: str) -> str:
    if _BREAKS.search(value):
        raise ValueError("must not hold a line break or a control character")
    return value


#: A string that may reach a script, a page or an argument: no control character, no line separator.
Line = Annotated[str, AfterValidator(_unbroken)]
