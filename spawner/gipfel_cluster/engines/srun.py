"""What the engines that are plugins of Slurm have in common: the container's options of srun."""

import shutil
import subprocess
from collections.abc import Iterable, Mapping

from ..edf.model import Mount
from ..model import GipfelError

#: A comma separates mounts, a colon the fields of one, and neither can be escaped. Source: Pyxis, args.c.
_SEPARATORS = frozenset(",:")
_SECONDS = 10
_ITS_VARIABLES = frozenset(("PATH", "HOME", "TMPDIR", "GLIBC_TUNABLES", "GCONV_PATH", "LOCPATH"))
_ITS_FAMILIES = ("LD_", "SLURM_", "SRUN_", "APPTAINER_", "SINGULARITY_")


def missing_srun(engine: str, option: str) -> str | None:
    """Say in one line why this machine can't start steps, or None.

    Parameters
    ----------
    option
        What srun takes only where the engine's plugin is installed.
    """
    if shutil.which("srun") is None:
        return f"The engine {engine} needs Slurm's srun, which is not on PATH."
    try:
        done = subprocess.run(
            ("srun", "--help"), stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"The engine {engine} could not be tried on this machine: {error}."
    if option.encode() not in done.stdout:
        return f"The engine {engine} needs a plugin of Slurm, and srun here has no option {option}."
    return None


def mounts_option(mounts: Iterable[Mount]) -> tuple[str, ...]:
    """Write ``--container-mounts``; nothing where there are none.

    Raises
    ------
    GipfelError
        A path has a comma or a colon.
    """
    written = [_mount(mount) for mount in mounts]
    return (f"--container-mounts={','.join(written)}",) if written else ()


def _mount(mount: Mount) -> str:
    for path in (mount.source, mount.destination):
        if _SEPARATORS & set(path):
            raise GipfelError(
                f"The path {path!r} of a mount has a comma or a colon, which srun can't carry.",
                "Give the folder a name without them.",
            )
    return str(mount)


def behind(unset: Iterable[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """Begin a command that takes variables away, and sets some, in the container, where nothing else can."""
    options = [word for name in unset for word in ("-u", name)]
    assigned = [f"{name}={value}" for name, value in values.items()]
    return ("env", *options, *assigned) if options or assigned else ()


def is_launchers(name: str) -> bool:
    """Tell whether the program that starts a container reads a variable itself.

    The container's value must not reach it, nor may the host's be taken from it: srun itself would not be
    found, or would load the container's libraries.
    """
    return name in _ITS_VARIABLES or name.startswith(_ITS_FAMILIES)
