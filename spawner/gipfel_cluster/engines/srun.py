"""The engines that are plugins of Slurm: the Container Engine of Alps, and upstream Pyxis.

Below them: the container options of srun that they share.
"""

import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence

from ..edf.model import Edf, Mount, annotation_variables
from ..edf.reference import foreign_store, read_reference
from ..model import GipfelError
from .protocol import ContainerRequest, Invocation
from .variables import bound_names, check_values, plain_names, settings

#: A comma separates mounts, a colon the fields of one, and neither can be escaped. Source: Pyxis, args.c.
_SEPARATORS = frozenset(",:")
_SECONDS = 10
_ITS_VARIABLES = frozenset(("PATH", "HOME", "TMPDIR", "GLIBC_TUNABLES", "GCONV_PATH", "LOCPATH"))
_ITS_FAMILIES = ("LD_", "SLURM_", "SRUN_", "APPTAINER_", "SINGULARITY_")
_ENTRYPOINT_LOG = "com.pyxis.entrypoint_log"


class ContainerEngine:
    """Starts a step with ``srun --environment``: the EDF stays the user's own file.

    What Gipfel adds goes into the options that the plugin takes beside an EDF.
    Source: CSCS documentation, Container Engine, "Using container options of srun".
    """

    name = "ce"

    def missing(self) -> str | None:
        """Return in one line why this machine can't run it, or None."""
        return missing_srun(self.name, "--environment")

    def render(self, request: ContainerRequest, *, python: str | Sequence[str]) -> Invocation:  # noqa: ARG002
        """Turn a request into a step of srun.

        Raises
        ------
        GipfelError
            The EDF is in no file, or a mount of ours has a comma or a colon in its path.
        """
        check_values(request)
        edf = request.edf
        if edf.path is None:
            raise GipfelError(
                f"The engine ce reads EDF files, and {edf.name!r} is in none.", "Write it into a file."
            )
        options = [*mounts_option(request.mounts)]
        if request.workdir and request.workdir != edf.workdir:
            options.append(f"--container-workdir={request.workdir}")
        if names := plain_names(bound_names(request)):
            options.append(f"--container-env={','.join(names)}")
        return Invocation(
            argv=("srun", f"--environment={edf.path}", *request.step, *options, *request.command),
            environment=dict(request.environment),
            notes=self._notes(request),
        )

    def _notes(self, request: ContainerRequest) -> tuple[str, ...]:
        notes = []
        if not request.edf.image:
            notes.append(
                "The EDF has no image: no container is entered unless srun's --container-image gives one."
            )
        if request.edf.devices:
            notes.append(
                "The engine ce has no key devices: the container gets the devices that its site gives."
            )
        if any("sqsh" in mount.flags for mount in request.mounts):
            notes.append(
                "The site's plugin has to know the flag sqsh in --container-mounts as it does in an EDF."
            )
        changed = [name for name in request.edf.env if name in bound_names(request)]
        if changed:
            notes.append(f"In the engine ce the EDF's {', '.join(changed)} wins over the job's.")
        return tuple(notes)


class Pyxis:
    """Starts a step with ``srun --container-image``."""

    name = "pyxis"

    def missing(self) -> str | None:
        """Return in one line why this machine can't run it, or None."""
        return missing_srun(self.name, "--container-image")

    def render(self, request: ContainerRequest, *, python: str | Sequence[str]) -> Invocation:  # noqa: ARG002
        """Turn a request into a step of srun.

        Raises
        ------
        GipfelError
            A mount is a SquashFS file or has a comma or a colon in its path, or the image is not valid.
        """
        check_values(request)
        edf = request.edf
        mounts = (*edf.mounts, *request.mounts)
        for mount in mounts:
            if "sqsh" in mount.flags:
                raise GipfelError(
                    f"The engine pyxis can't mount the SquashFS file {mount.source}.",
                    "Unpack it into a directory, or choose another engine.",
                )
        values, unset = settings(request)
        workdir = request.workdir or edf.workdir
        # Those that srun reads itself are set in the container, where they are meant for.
        inside = {name: value for name, value in values.items() if read_by_launcher(name)}
        values = {name: value for name, value in values.items() if name not in inside}
        kept = plain_names(dict.fromkeys((*values, *bound_names(request))))
        argv = (
            "srun",
            f"--container-image={_image(edf)}",
            *request.step,
            *mounts_option(mounts),
            *([f"--container-workdir={workdir}"] if workdir else []),
            "--container-writable" if edf.writable else "--container-readonly",
            "--container-entrypoint" if edf.entrypoint else "--no-container-entrypoint",
            *(["--container-entrypoint-log"] if edf.annotations.get(_ENTRYPOINT_LOG) == "true" else []),
            "--no-container-mount-home",
            *([f"--container-env={','.join(kept)}"] if kept else []),
            *env_command(unset, inside),
            *request.command,
        )
        gone = {name for name in unset if not read_by_launcher(name)}
        environment = {name: value for name, value in request.environment.items() if name not in gone}
        return Invocation(
            argv=argv,
            environment={**environment, **values, **annotation_variables(edf.annotations)},
            notes=_pyxis_notes(edf),
        )


def _image(edf: Edf) -> str:
    # Anything that begins neither with "/" nor with "./" is asked of a registry.
    if edf.image_path:
        return edf.image
    reference = read_reference(edf.image)
    if reference.store == "podman":
        raise foreign_store("pyxis", edf.image, reference)
    # Without its scheme another image of the same name would be taken from Docker Hub.
    return f"{'dockerd://' if reference.store == 'dockerd' else ''}{reference.enroot}"


def _pyxis_notes(edf: Edf) -> tuple[str, ...]:
    notes = []
    if edf.devices:
        notes.append("The engine pyxis has no devices: the container gets what the site's Enroot gives.")
    return tuple(notes)


def missing_srun(engine: str, option: str) -> str | None:
    """Return in one line why this machine can't start steps, or None.

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
                "Give the directory a name without them.",
            )
    return str(mount)


def env_command(unset: Iterable[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """Begin a command that takes variables away, and sets some, in the container, where nothing else can."""
    options = [word for name in unset for word in ("-u", name)]
    assigned = [f"{name}={value}" for name, value in values.items()]
    return ("env", *options, *assigned) if options or assigned else ()


def read_by_launcher(name: str) -> bool:
    """Return whether the program that starts a container reads a variable itself.

    The container's value must not reach it, nor may the host's be taken from it: srun itself would not be
    found, or would load the container's libraries.
    """
    return name in _ITS_VARIABLES or name.startswith(_ITS_FAMILIES)
