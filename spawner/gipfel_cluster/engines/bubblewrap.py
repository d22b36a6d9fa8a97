"""The engine that needs no service and no root: an image of this machine, bubblewrap, and a plain user."""

import shutil
import subprocess
from collections.abc import Sequence

from .hardware import Hardware
from .prepared import prepared_invocation
from .protocol import ContainerRequest, Invocation

_PROBE = ("unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc", "true")
_PROBE_SECONDS = 10


class Bubblewrap:
    """Runs a command in an image of this machine, whose files it never changes."""

    name = "bubblewrap"

    def __init__(self, hardware: Hardware = Hardware()) -> None:
        self._hardware = hardware

    def missing(self) -> str | None:
        """Say in one line why this machine can't run it, or None."""
        if shutil.which("bwrap") is None:
            return "The engine bubblewrap needs the program bwrap (Debian package bubblewrap)."
        return refused_namespaces(self.name)

    def render(self, request: ContainerRequest, *, python: str | Sequence[str]) -> Invocation:
        """Turn a request into a call of the sandbox, whose plan is in its environment.

        Raises
        ------
        GipfelError
            The image is in a registry or is none, there is no command, or a program or a device is missing.
        """
        return prepared_invocation(
            request,
            engine=self.name,
            program="bwrap",
            hardware=self._hardware,
            python=python,
        )


def refused_namespaces(engine: str) -> str | None:
    """Say in one line that this machine refuses user namespaces, or None."""
    try:
        probe = subprocess.run(
            _PROBE, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"The engine {engine} could not be tried on this machine: {error}."
    if probe.returncode:
        words = probe.stderr.decode(errors="replace").strip()
        return f"The engine {engine} needs user namespaces, which this machine refuses ({words})."
    return None
