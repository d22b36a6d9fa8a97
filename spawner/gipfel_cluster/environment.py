"""The variables of a container: who sets them, and whose word wins.

Only the standard library is imported, because the interpreter that sets a container up may have no more.
"""

import re
from collections.abc import Iterable, Mapping

#: What neither an image nor an EDF may change in a job: the hub's words to its server, and what the scheduler
#: granted.
BINDING = (
    "JUPYTERHUB_*",
    "JPY_*",
    "JUPYTER_*",
    "IPYTHONDIR",
    "GIPFEL_*",
    "SLURM_*",
    "CUDA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "HOME",
    "USER",
    "LOGNAME",
)

#: Where an image says which variables it brings, from the weakest: the files that Apptainer, Charliecloud and
#: Enroot write of its OCI configuration. Sources: Apptainer's ``insertEnv``, ch-run(1) on ``--set-env``,
#: Enroot's ``docker::_configure``.
IMAGE_FILES = (".singularity.d/env/10-docker2singularity.sh", "ch/environment", "etc/environment")

#: Apptainer's line, where a value of the host's would win; in an EDF the image's does.
_DEFAULT = re.compile(r'\s*export\s+([A-Za-z_][A-Za-z0-9_]*)="(?:\$\{\1:-"(.*)"\}|(.*))"')
_ESCAPED = re.compile(r'\\([\\"`$])')
_ASSIGNMENT = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)")


def parse_environment(text: str) -> dict[str, str]:
    """Read the variables of one of `IMAGE_FILES`; quotes around a value are not part of it."""
    variables = {}
    for line in text.splitlines():
        if match := _DEFAULT.fullmatch(line):
            value = match[3] if match[2] is None else match[2]
            variables[match[1]] = _ESCAPED.sub(r"\1", value)
        elif match := _ASSIGNMENT.fullmatch(line):
            value = match[2].strip()
            if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
                value = value[1:-1]
            variables[match[1]] = value
    return variables


def compose(
    host: Mapping[str, str], image: Mapping[str, str], edf: Mapping[str, str], binding: Iterable[str]
) -> dict[str, str]:
    """Put the environment of a container together: the host's, over it the image's, then the EDF's.

    Parameters
    ----------
    edf
        An empty value takes the variable away.
    binding
        Names that keep the host's value, where it has one, whatever image and EDF say. One that ends in ``*``
        stands for a family that is the host's alone: its other members are refused.
    """
    families = tuple(name[:-1] for name in binding if name.endswith("*"))
    names = {name for name in binding if not name.endswith("*")}

    def may_set(name: str) -> bool:
        return not name.startswith(families) and (name not in names or name not in host)

    variables = dict(host)
    variables |= {name: value for name, value in image.items() if may_set(name)}
    for name, value in edf.items():
        if not may_set(name):
            continue
        if value:
            variables[name] = value
        else:
            variables.pop(name, None)
    return variables
