"""Compose the environment variables of a container from the host's, the image's and the EDF's.

Every start of a container imports this module, so that it imports nothing itself, like ``engines/sandbox``.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: Variables that neither an image nor an EDF may change in a job: the hub passes settings to its server in
#: them, and the scheduler names the granted resources.
PROTECTED_VARIABLES = (
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

#: Variables whose values on the host are paths that do not exist in an image.
PATH_VARIABLES = frozenset(("PATH", "MANPATH", "CPATH", "LIBRARY_PATH", "SHELL", "PYTHONPATH", "PYTHONHOME"))

#: Files that declare an image's variables; later files override earlier ones. Apptainer, Charliecloud and
#: Enroot write them from the image's OCI configuration. Sources: Apptainer's ``insertEnv``, ch-run(1) on
#: ``--set-env``, Enroot's ``docker::_configure``.
IMAGE_FILES = (".singularity.d/env/10-docker2singularity.sh", "ch/environment", "etc/environment")


def parse_environment(text: str) -> dict[str, str]:
    """Parse the variables of one of `IMAGE_FILES`; quotes around a value are not part of it.

    Lines with a NUL, which no variable can contain, are ignored.
    """
    variables = {}
    for line in text.splitlines():
        if "\0" in line:
            # Options are passed on separated by NULs: an image must not be able to add options.
            continue
        rest = line.lstrip()
        first, *others = rest.split(None, 1) or [""]
        exported = first == "export" and bool(others)
        name, is_assignment, value = (others[0] if exported else rest).partition("=")
        if is_assignment and name.isascii() and name.isidentifier():
            variables[name] = _value(name, value, exported=exported)
    return variables


def _value(name: str, text: str, *, exported: bool) -> str:
    if exported and len(text) >= 2 and text[0] == text[-1] == '"':
        # Apptainer writes the image's value as a default, which the host's value overrides. Here the image's
        # value takes precedence.
        inside = text[1:-1]
        start, end = f'${{{name}:-"', '"}'
        if inside.startswith(start) and inside.endswith(end) and len(inside) >= len(start) + len(end):
            inside = inside[len(start) : -len(end)]
        return _unescaped(inside)
    value = text.strip()
    is_quoted = len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'"
    return value[1:-1] if is_quoted else value


def _unescaped(text: str) -> str:
    parts = text.split("\\\\")
    for character in '"`$':
        parts = [part.replace(f"\\{character}", character) for part in parts]
    return "\\".join(parts)


def compose(
    host: "Mapping[str, str]",
    image: "Mapping[str, str]",
    edf: "Mapping[str, str]",
    protected: "Iterable[str]",
) -> dict[str, str]:
    """Compose the environment of a container from the host's variables, the image's and the EDF's.

    The image's override the host's, and the EDF's override both.

    Parameters
    ----------
    edf
        An empty value removes the variable.
    protected
        Names that keep the host's value if the host sets them. ``PREFIX_*`` protects every name with this
        prefix: image and EDF can't add any of them either.
    """
    families = tuple(name[:-1] for name in protected if name.endswith("*"))
    names = {name for name in protected if not name.endswith("*")}

    def may_set(name: str) -> bool:
        return not name.startswith(families) and (name not in names or name not in host)

    variables = dict(host)
    variables |= {name: value for name, value in image.items() if may_set(name)}
    chosen = {name: value for name, value in edf.items() if may_set(name)}
    variables |= chosen
    return {name: value for name, value in variables.items() if value or name not in chosen}


def without_tokens(variables: "Mapping[str, str]") -> dict[str, str]:
    """Return the variables without those whose name contains ``TOKEN``, for a process that needs no token."""
    return {name: value for name, value in variables.items() if "TOKEN" not in name}
