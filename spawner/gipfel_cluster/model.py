"""Base classes of values that cross a boundary and of errors that people read, and checks of commands."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict

#: As the first word of a command, the interpreter of the runtime inside the container.
PYTHON = "{python}"

_BREAKS = re.compile("[\x00-\x1f\x7f\x85\u2028\u2029]")
_MOST_VARIABLES_BYTES = 32 << 10
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# They would change the host's programs around the container, or what the scheduler granted.
_HOST_FAMILIES = ("SLURM_", "SBATCH_", "SRUN_", "JUPYTERHUB_", "LD_", "PYTHON", "GCONV_", "BASH_")
_HOST_NAMES = frozenset(("PATH", "HOME", "USER", "LOGNAME", "SHELL", "ENV", "IFS", "TMPDIR"))


class Frozen(BaseModel):
    """An immutable value that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)


class GipfelError(Exception):
    """An error that a person can act on: the problem, and the fix.

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
    """Return a text with every control character and line break turned into a space."""
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


def check_command(words: Sequence[str], most: int) -> None:
    """Refuse a command that can't be executed.

    Parameters
    ----------
    most
        Bytes of all words together.

    Raises
    ------
    ValueError
        The first word is empty, a word holds a NUL, or they are too long.
    """
    if not words[0] or any("\0" in word for word in words):
        raise ValueError("the command needs a first word and holds no NUL")
    if sum(len(word.encode(errors="replace")) for word in words) > most:
        raise ValueError(f"the command is longer than {most >> 10} KiB")


def check_variables(variables: Mapping[str, str], own: str) -> None:
    """Refuse invalid variables, and those that are the job's own.

    Parameters
    ----------
    own
        Prefix of further names that belong to the host.

    Raises
    ------
    ValueError
        One of them, or they are more than 32 KiB.
    """
    for name, content in variables.items():
        if not _VARIABLE.fullmatch(name) or "\0" in content:
            raise ValueError("holds what can't be an environment variable")
        if name.startswith((*_HOST_FAMILIES, own)) or name in _HOST_NAMES:
            raise ValueError(f"{name} is the job's own")
    if sum(len(name) + len(content) for name, content in variables.items()) > _MOST_VARIABLES_BYTES:
        raise ValueError(f"is longer than {_MOST_VARIABLES_BYTES >> 10} KiB")
