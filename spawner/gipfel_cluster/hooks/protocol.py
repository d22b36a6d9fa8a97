"""Interface of a hook: its parameters and result, and the facts about the machine that it may use."""

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Protocol

from ..engines.devices import ldconfig_output
from ..engines.protocol import ContainerRequest
from ..model import Frozen
from ..runtime.model import Runtime

#: Slingshot (cxi), InfiniBand, Ethernet of 100 Gbit/s or more, or slower Ethernet.
Network = Literal["cxi", "infiniband", "tcp-100g", "tcp"]
_FAST_MBIT = 100_000


class HookResult(Frozen):
    """The request with the hooks' additions, and notes for the user, one sentence each."""

    request: ContainerRequest
    notes: tuple[str, ...] = ()


class HookContext(Frozen):
    """The engine and runtime of the container that a hook changes."""

    engine: str
    #: None if no runtime is mounted into the container.
    runtime: Runtime | None


class Hook(Protocol):
    """The implementation of the annotations ``com.hooks.<name>.*``; it is called only if they enable it."""

    @property
    def name(self) -> str:
        """Return the name in the annotations."""

    def apply(
        self, request: ContainerRequest, settings: Mapping[str, str], context: HookContext, node: "Node"
    ) -> HookResult:
        """Change a request as the annotations say; an unavailable feature is a note, never an error.

        Parameters
        ----------
        settings
            The hook's annotations without ``com.hooks.<name>.``.
        """


class Node:
    """Read-only facts about the machine that this process runs on."""

    def __init__(self, system: Path = Path("/sys"), processes: Path = Path("/proc")) -> None:
        self._system = system
        self._processes = processes

    def user_id(self) -> int:
        """Return the id of the user who runs the container."""
        return os.geteuid()

    def name(self) -> str:
        """Return the name under which other machines reach this one."""
        return socket.gethostname().split(".")[0]

    def network(self) -> Network:
        """Return the fastest network whose devices are present and up."""
        if any(self._system.glob("class/cxi/*")):
            return "cxi"
        if self.infiniband():
            return "infiniband"
        # A speed that is not a number, or below 0, means no link; an interface without a device is virtual.
        real = [each for each in self._system.glob("class/net/*") if (each / "device").exists()]
        speeds = [self._text(each / "speed") for each in real]
        fast = any(speed.isdecimal() and int(speed) >= _FAST_MBIT for speed in speeds)
        return "tcp-100g" if fast else "tcp"

    def infiniband(self) -> tuple[str, ...]:
        """Return the names of the InfiniBand devices with an active port, without RoCE devices."""
        found = set()
        for state in self._system.glob("class/infiniband/*/ports/*/state"):
            layer = self._text(state.with_name("link_layer"))
            if "ACTIVE" in self._text(state) and layer == "InfiniBand":
                found.add(state.parents[2].name)
        return tuple(sorted(found))

    def libraries(self) -> dict[str, str]:
        """Return the shared libraries of ``ldconfig -p``: name -> path."""
        return parse_libraries(ldconfig_output())

    def is_socket(self, path: str) -> bool:
        """Return whether a path is a socket."""
        return Path(path).is_socket()

    def listens(self, port: int) -> bool:
        """Return whether a process on this machine listens on a TCP port."""
        for table in ("net/tcp", "net/tcp6"):
            for line in self._text(self._processes / table).splitlines()[1:]:
                _, local, _, state, *_ = line.split()
                if state == "0A" and int(local.rpartition(":")[2], 16) == port:
                    return True
        return False

    def _text(self, path: Path) -> str:
        try:
            return path.read_text().strip()
        except OSError:
            return ""


def parse_libraries(text: str) -> dict[str, str]:
    """Parse the output of ``ldconfig -p``: name -> first path, which is the one that the loader uses."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, arrow, path = line.strip().partition(" => ")
        if arrow:
            found.setdefault(name.split(" ")[0], path)
    return found
