"""The base class of models, and validation of commands and variables; with it what `messages` has."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from .messages import BREAKS, GipfelError, ReportOSError, one_line, pluralize, printable, report_line

__all__ = [
    "BREAKS",
    "DEFER_BUILD",
    "PYTHON",
    "Frozen",
    "GipfelError",
    "NodeName",
    "OneLine",
    "ReportOSError",
    "check_command",
    "check_variables",
    "first_problem",
    "one_line",
    "pluralize",
    "printable",
    "report_line",
]

#: Placeholder for the first word of a command: the interpreter of the runtime inside the container.
PYTHON = "{python}"

_MAX_VARIABLES_BYTES = 32 << 10
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# These would change the host's programs that start the container, or the resources that the scheduler
# granted.
_HOST_FAMILIES = ("SLURM_", "SBATCH_", "SRUN_", "JUPYTERHUB_", "LD_", "PYTHON", "GCONV_", "BASH_")
_HOST_NAMES = frozenset(("PATH", "HOME", "USER", "LOGNAME", "SHELL", "ENV", "IFS", "TMPDIR"))


#: Build validators on first use: a command imports many more models than it uses.
DEFER_BUILD = ConfigDict(defer_build=True)


class Frozen(BaseModel):
    """An immutable pydantic model that rejects unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, defer_build=True)


def _unbroken(value: str) -> str:
    if BREAKS.search(value):
        raise ValueError("must not contain a line break or a control character")
    return value


#: A string without line breaks and control characters, which is safe in a script, a page or an argument.
OneLine = Annotated[str, AfterValidator(_unbroken)]
NodeName = Annotated[OneLine, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,252}$")]


def first_problem(error: ValidationError) -> tuple[str, str]:
    """Return key and message of the first error, without the value, which may be long or secret."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")


def split_list(text: str) -> tuple[str, ...]:
    """Return the entries of a list that is separated by spaces or commas."""
    return tuple(text.replace(",", " ").split())


def check_command(argv: Sequence[str], max_bytes: int) -> Sequence[str]:
    """Return a command; raise an error if it can't be executed.

    Parameters
    ----------
    max_bytes
        Limit for the length of all words together.

    Raises
    ------
    ValueError
        The first word is empty, a word contains a NUL, or the words are too long.
    """
    if not argv[0] or any("\0" in word for word in argv):
        raise ValueError("the command must have a first word and must not contain a NUL")
    if sum(len(word.encode(errors="replace")) for word in argv) > max_bytes:
        raise ValueError(f"the command is longer than {max_bytes >> 10} KiB")
    return argv


def check_variables(variables: Mapping[str, str], reserved_prefix: str) -> Mapping[str, str]:
    """Return variables; raise an error for invalid ones, and for those that a request must not set.

    Parameters
    ----------
    reserved_prefix
        Prefix of further names that a request must not set.

    Raises
    ------
    ValueError
        A name is invalid or reserved, or the variables are larger than 32 KiB.
    """
    for name, content in variables.items():
        if not _VARIABLE.fullmatch(name) or "\0" in content:
            raise ValueError("must be a valid environment variable")
        if name.startswith((*_HOST_FAMILIES, reserved_prefix)) or name in _HOST_NAMES:
            raise ValueError(f"{name} is set by the job and can't be changed")
    if sum(len(name) + len(content) for name, content in variables.items()) > _MAX_VARIABLES_BYTES:
        raise ValueError(f"is longer than {_MAX_VARIABLES_BYTES >> 10} KiB")
    return variables
