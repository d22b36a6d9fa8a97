"""The Container Engine of Alps: a plugin of Slurm that reads the EDF itself."""

from collections.abc import Sequence

from ..model import GipfelError
from .protocol import ContainerRequest, Invocation
from .srun import missing_srun, mounts_option
from .values import bound_names, check_values, plain_names


class ContainerEngine:
    """Starts a step with ``srun --environment``: the EDF stays the user's own file.

    What Gipfel adds goes into the options that the plugin takes beside an EDF.
    Source: CSCS documentation, Container Engine, "Using container options of srun".
    """

    name = "ce"

    def missing(self) -> str | None:
        """Say in one line why this machine can't run it, or None."""
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
