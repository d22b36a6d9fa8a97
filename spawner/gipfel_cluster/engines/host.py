"""The engine without a container: the host itself, with the EDF's variables and directory."""

import shutil
from collections.abc import Sequence

from ..edf.model import Mount
from ..environment import compose
from ..model import GipfelError
from .protocol import ContainerRequest, Invocation


class Host:
    """Runs a command on the host."""

    name = "host"

    def missing(self) -> str | None:
        """Return None: nothing is ever missing."""
        return None

    def render(self, request: ContainerRequest, *, python: str | Sequence[str]) -> Invocation:  # noqa: ARG002
        """Turn a request into the command itself, started in its directory.

        Raises
        ------
        GipfelError
            The EDF has an image, or the command is empty.
        """
        edf = request.edf
        if edf.image:
            raise GipfelError(
                f"The host engine can't run the image {edf.image}.", "Choose an engine for containers."
            )
        if not request.command:
            raise GipfelError("There is no command to run.", "Give one.")
        folder = request.workdir or edf.workdir
        enter = (shutil.which("env") or "env", f"--chdir={folder}") if folder else ()
        return Invocation(
            argv=(*enter, *request.command),
            environment=compose(request.environment, {}, edf.env, request.binding),
            notes=tuple(self._notes(request)),
        )

    def _notes(self, request: ContainerRequest) -> list[str]:
        notes = [
            f"The mount {mount} is not made, because the EDF has no image."
            for mount in (*request.edf.mounts, *request.mounts)
            if not _is_there_already(mount)
        ]
        notes += [
            f"The mount {mount} can be written to, because the EDF has no image."
            for mount in request.edf.mounts
            if _is_there_already(mount) and "ro" in mount.flags
        ]
        asked = {"entrypoint = true": request.edf.entrypoint, "writable = false": not request.edf.writable}
        notes += [
            f"{key} has no effect, because the EDF has no image." for key, set_ in asked.items() if set_
        ]
        if request.edf.devices:
            notes.append("The devices of the EDF are those of the host, because it has no image.")
        return notes


def _is_there_already(mount: Mount) -> bool:
    return mount.source == mount.destination and "sqsh" not in mount.flags
