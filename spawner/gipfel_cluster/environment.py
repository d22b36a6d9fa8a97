"""Compose the variables of a container from the host's, the image's and the EDF's.

Every container starts with this module, by the rules of ``engines/sandbox``: nothing is imported.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
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

#: Lists of places: of the host's values these lead to places that an image hasn't got.
PLACES = frozenset(("PATH", "MANPATH", "CPATH", "LIBRARY_PATH", "SHELL", "PYTHONPATH", "PYTHONHOME"))

#: Where an image says which variables it brings, from the weakest: the files that Apptainer, Charliecloud and
#: Enroot write of its OCI configuration. Sources: Apptainer's ``insertEnv``, ch-run(1) on ``--set-env``,
#: Enroot's ``docker::_configure``.
IMAGE_FILES = (".singularity.d/env/10-docker2singularity.sh", "ch/environment", "etc/environment")


def parse_environment(text: str) -> dict[str, str]:
    """Read the variables of one of `IMAGE_FILES`; quotes around a value are not part of it.

    A line with a NUL, which no variable can hold, is left out.
    """
    variables = {}
    for line in text.splitlines():
        if "\0" in line:
            # Options are handed on with NULs between them: an image must not bring any of its own.
            continue
        rest = line.lstrip()
        first, *others = rest.split(None, 1) or [""]
        exported = first == "export" and bool(others)
        name, is_assignment, value = (others[0] if exported else rest).partition("=")
        if is_assignment and name.isascii() and name.isidentifier():
            variables[name] = _value(name, value, exported=exported)
    return variables


def _value(name: str, written: str, *, exported: bool) -> str:
    if exported and len(written) >= 2 and written[0] == written[-1] == '"':
        # Apptainer's lines: with a default the host's value would win there; in an EDF the image's does.
        inside = written[1:-1]
        start, end = f'${{{name}:-"', '"}'
        if inside.startswith(start) and inside.endswith(end) and len(inside) >= len(start) + len(end):
            inside = inside[len(start) : -len(end)]
        return _unescaped(inside)
    value = written.strip()
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
        return value[1:-1]
    return value


def _unescaped(text: str) -> str:
    parts = text.split("\\\\")
    for character in '"`$':
        parts = [part.replace(f"\\{character}", character) for part in parts]
    return "\\".join(parts)


def compose(
    host: "Mapping[str, str]",
    image: "Mapping[str, str]",
    edf: "Mapping[str, str]",
    binding: "Iterable[str]",
) -> dict[str, str]:
    """Compose the environment of a container: the host's, over it the image's, then the EDF's.

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


def without_tokens(variables: "Mapping[str, str]") -> dict[str, str]:
    """Return variables without secrets, for a process that needs none."""
    return {name: value for name, value in variables.items() if "TOKEN" not in name}
