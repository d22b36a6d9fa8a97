"""Upstream Pyxis: a plugin of Slurm that runs images by Enroot and knows no EDF."""

from collections.abc import Sequence

from ..edf.annotations import annotation_variables
from ..edf.model import Edf
from ..model import GipfelError
from .protocol import ContainerRequest, Invocation
from .references import foreign_store, read_reference
from .srun import behind, is_launchers, missing_srun, mounts_option
from .values import bound_names, check_values, plain_names, settings

_ENTRYPOINT_LOG = "com.pyxis.entrypoint_log"


class Pyxis:
    """Starts a step with ``srun --container-image``."""

    name = "pyxis"

    def missing(self) -> str | None:
        """Say in one line why this machine can't run it, or None."""
        return missing_srun(self.name, "--container-image")

    def render(self, request: ContainerRequest, *, python: str | Sequence[str]) -> Invocation:  # noqa: ARG002
        """Turn a request into a step of srun.

        Raises
        ------
        GipfelError
            A mount is a SquashFS file or has a comma or a colon in its path, or the image is none.
        """
        check_values(request)
        edf = request.edf
        mounts = (*edf.mounts, *request.mounts)
        for mount in mounts:
            if "sqsh" in mount.flags:
                raise GipfelError(
                    f"The engine pyxis can't mount the SquashFS file {mount.source}.",
                    "Unpack it into a folder, or choose another engine.",
                )
        values, unset = settings(request)
        workdir = request.workdir or edf.workdir
        # Those that srun reads itself are set in the container, where they are meant for.
        inside = {name: value for name, value in values.items() if is_launchers(name)}
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
            *behind(unset, inside),
            *request.command,
        )
        gone = {name for name in unset if not is_launchers(name)}
        environment = {name: value for name, value in request.environment.items() if name not in gone}
        return Invocation(
            argv=argv,
            environment={**environment, **values, **annotation_variables(edf.annotations)},
            notes=_notes(edf),
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


def _notes(edf: Edf) -> tuple[str, ...]:
    notes = []
    if edf.devices:
        notes.append("The engine pyxis has no devices: the container gets what the site's Enroot gives.")
    return tuple(notes)
