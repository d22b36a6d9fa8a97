"""The engines that are plugins of Slurm: the Container Engine of Alps, and upstream Pyxis.

The functions below them render the container options of srun that both share.
"""

import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence

from ..edf.model import Edf, Mount, annotation_variables
from ..edf.mounts import read_reference, unsupported_store_error
from ..model import GipfelError
from .protocol import ContainerRequest, Invocation, check_values, edf_variables, protected_names, valid_names

#: A comma separates mounts, a colon the fields of one, and neither can be escaped. Source: Pyxis, args.c.
_SEPARATORS = frozenset(",:")
_SRUN_HELP_SECONDS = 10
_LAUNCHER_VARIABLES = frozenset(("PATH", "HOME", "TMPDIR", "GLIBC_TUNABLES", "GCONV_PATH", "LOCPATH"))
_LAUNCHER_PREFIXES = ("LD_", "SLURM_", "SRUN_", "APPTAINER_", "SINGULARITY_")
_PYXIS_DEVICES = (
    "The engine pyxis ignores devices: the container gets those that the site's Enroot configures."
)
_ENTRYPOINT_LOG = "com.pyxis.entrypoint_log"


class ContainerEngine:
    """Starts a step with ``srun --environment``, so that the plugin reads the user's EDF file.

    Gipfel's mounts and variables go into the options that the plugin accepts with an EDF.
    Source: CSCS documentation, Container Engine, "Using container options of srun".
    """

    name = "ce"

    def unavailable_reason(self) -> str | None:
        """Return in one line why this machine can't run the engine, or None."""
        return missing_srun(self.name, "--environment")

    def render(self, request: ContainerRequest, *, python: str | Sequence[str]) -> Invocation:  # noqa: ARG002
        """Render a request as a job step.

        Raises
        ------
        GipfelError
            The EDF has no file, or a mount of the request has a comma or a colon in its path.
        """
        check_values(request)
        edf = request.edf
        if edf.path is None:
            raise GipfelError(
                f"The engine ce reads EDF files, and {edf.name!r} has none.", "Write it into a file."
            )
        options = [*mounts_option(request.mounts)]
        if request.workdir and request.workdir != edf.workdir:
            options.append(f"--container-workdir={request.workdir}")
        if names := valid_names(protected_names(request)):
            options.append(f"--container-env={','.join(names)}")
        return Invocation(
            argv=("srun", f"--environment={edf.path}", *request.step, *options, *request.command),
            environment=dict(request.environment),
            notes=self._notes(request),
        )

    def _notes(self, request: ContainerRequest) -> tuple[str, ...]:
        overridden = [name for name in request.edf.env if name in protected_names(request)]
        notes = {
            "The EDF has no image: no container is started unless srun's --container-image names one.": (
                not request.edf.image
            ),
            "The engine ce ignores the key devices: the container gets the devices that its site "
            "configures.": request.edf.devices,
            "The site's plugin must support the flag sqsh in --container-mounts as it does in an EDF.": (
                any("sqsh" in mount.flags for mount in request.mounts)
            ),
            f"In the engine ce the EDF's {', '.join(overridden)} overrides the job's.": overridden,
        }
        return tuple(note for note, applies in notes.items() if applies)


class Pyxis:
    """Starts a step with ``srun --container-image``."""

    name = "pyxis"

    def unavailable_reason(self) -> str | None:
        """Return in one line why this machine can't run the engine, or None."""
        return missing_srun(self.name, "--container-image")

    def render(self, request: ContainerRequest, *, python: str | Sequence[str]) -> Invocation:  # noqa: ARG002
        """Render a request as a job step.

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
        values, unset = edf_variables(request)
        workdir = request.workdir or edf.workdir
        # Variables that srun reads itself are set inside the container, which they are meant for.
        inside = {name: value for name, value in values.items() if is_read_by_launcher(name)}
        values = {name: value for name, value in values.items() if name not in inside}
        exported = valid_names(dict.fromkeys((*values, *protected_names(request))))
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
            *([f"--container-env={','.join(exported)}"] if exported else []),
            *env_command(unset, inside),
            *request.command,
        )
        environment = {
            name: value
            for name, value in request.environment.items()
            if name not in unset or is_read_by_launcher(name)
        }
        return Invocation(
            argv=argv,
            environment={**environment, **values, **annotation_variables(edf.annotations)},
            notes=(_PYXIS_DEVICES,) if edf.devices else (),
        )


def _image(edf: Edf) -> str:
    # Pyxis looks for anything that begins neither with "/" nor with "./" in a registry.
    if edf.image_path:
        return edf.image
    reference = read_reference(edf.image)
    if reference.store == "podman":
        raise unsupported_store_error("pyxis", edf.image, reference)
    # Without its scheme another image of the same name would be pulled from Docker Hub.
    return f"{'dockerd://' if reference.store == 'dockerd' else ''}{reference.enroot}"


def missing_srun(engine: str, option: str) -> str | None:
    """Return in one line why this machine can't start steps, or None.

    Parameters
    ----------
    option
        The option that srun has only if the engine's plugin is installed.
    """
    if shutil.which("srun") is None:
        return f"The engine {engine} needs Slurm's srun, which is not on PATH."
    try:
        done = subprocess.run(
            ("srun", "--help"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SRUN_HELP_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"The engine {engine} could not be tested on this machine: {error}."
    if option.encode() not in done.stdout:
        return (
            f"The engine {engine} needs a plugin of Slurm, and srun on this machine has no option {option}."
        )
    return None


def mounts_option(mounts: Iterable[Mount]) -> tuple[str, ...]:
    """Return the option ``--container-mounts``; empty without mounts.

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
                f"The path {path!r} of a mount has a comma or a colon, which srun can't escape.",
                "Rename the directory, or mount it through a link without them.",
            )
    return str(mount)


def env_command(unset: Iterable[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """Return the ``env`` command that unsets and sets variables inside the container; empty if none."""
    options = [word for name in unset for word in ("-u", name)]
    assigned = [f"{name}={value}" for name, value in values.items()]
    return ("env", *options, *assigned) if options or assigned else ()


def is_read_by_launcher(name: str) -> bool:
    """Return whether the program that starts a container reads a variable itself.

    It must get the host's value and not the container's: otherwise srun is not found, or loads the
    container's libraries.
    """
    return name in _LAUNCHER_VARIABLES or name.startswith(_LAUNCHER_PREFIXES)
