"""What somebody in a job may give to a process that the host starts for them: its words, its variables."""

import re
from collections.abc import Mapping, Sequence

_MOST = 32 << 10  # bytes of all variables
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# They would change the host's programs around the container, or what the scheduler granted.
_FAMILIES = ("SLURM_", "SBATCH_", "SRUN_", "JUPYTERHUB_", "LD_", "PYTHON", "GCONV_", "BASH_")
_NAMES = frozenset(("PATH", "HOME", "USER", "LOGNAME", "SHELL", "ENV", "IFS", "TMPDIR"))


def check_command(words: Sequence[str], most: int) -> None:
    """Refuse what can't be executed.

    Parameters
    ----------
    most
        Bytes of all words together.

    Raises
    ------
    ValueError
        There is no first word, a word holds a NUL, or they are too long.
    """
    if not words[0] or any("\0" in word for word in words):
        raise ValueError("the command needs a first word and holds no NUL")
    if sum(len(word.encode(errors="replace")) for word in words) > most:
        raise ValueError(f"the command is longer than {most >> 10} KiB")


def check_variables(variables: Mapping[str, str], own: str) -> None:
    """Refuse variables that can't be, or that are the job's own.

    Parameters
    ----------
    own
        With what names of the host's own begin beside those that nobody may give.

    Raises
    ------
    ValueError
        One of them, or they are more than 32 KiB.
    """
    for name, content in variables.items():
        if not _VARIABLE.fullmatch(name) or "\0" in content:
            raise ValueError("holds what can't be an environment variable")
        if name.startswith((*_FAMILIES, own)) or name in _NAMES:
            raise ValueError(f"{name} is the job's own")
    if sum(len(name) + len(content) for name, content in variables.items()) > _MOST:
        raise ValueError(f"is longer than {_MOST >> 10} KiB")
