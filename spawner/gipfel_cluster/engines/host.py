"""The engine ``host``: runs commands without a container, with the EDF's variables and workdir."""

import shutil
from collections.abc import Sequence

from ..edf.model import Mount
from ..environment import compose
from ..model import GipfelError
from .protocol import ContainerRequest, Invocation


class Host:
    """Runs a command on the host."""

    name = "host"

    def unavailable_reason(self) -> str | None:
        """Return None: every machine can run it."""
        return None

    def render(self, request: ContainerRequest, *, python: str | Sequence[str]) -> Invocation:  # noqa: ARG002
        """Render a request as the command itself, started in its directory.

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
            raise GipfelError("There is no command to run.", "Give a command.")
        folder = request.workdir or edf.workdir
        enter = (shutil.which("env") or "env", f"--chdir={folder}") if folder else ()
        return Invocation(
            argv=(*enter, *request.command),
            environment=compose(request.environment, {}, edf.env, request.protected),
            notes=tuple(self._notes(request)),
        )

    def _notes(self, request: ContainerRequest) -> list[str]:
        notes = [
            f"The mount {mount} has no effect, because the EDF has no image."
            for mount in (*request.edf.mounts, *request.mounts)
            if not _is_same_path(mount)
        ]
        notes += [
            f"The mount {mount} is not read-only, because the EDF has no image."
            for mount in request.edf.mounts
            if _is_same_path(mount) and "ro" in mount.flags
        ]
        ignored = {"entrypoint = true": request.edf.entrypoint, "writable = false": not request.edf.writable}
        notes += [
            f"{key} has no effect, because the EDF has no image." for key, is_set in ignored.items() if is_set
        ]
        if request.edf.devices:
            notes.append("All devices of the host are visible, because the EDF has no image.")
        return notes


def _is_same_path(mount: Mount) -> bool:
    return mount.source == mount.destination and "sqsh" not in mount.flags
