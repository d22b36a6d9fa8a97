"""``com.hooks.dcgm``: DCGM's client library and socket, for tools that query the node's ``nv-hostengine``."""

import re
from collections.abc import Mapping

from ..edf.model import Mount
from ..engines.protocol import ContainerRequest
from .protocol import HookContext, HookResult, Node

#: A separate directory: in a directory of the image the library could hide a file, or not be found.
MOUNT_DIRECTORY = "/opt/gipfel/dcgm"

#: The default socket and port of ``nv-hostengine``. Source: DCGM documentation, nv-hostengine -d and -p.
SOCKET, PORT = "/tmp/nv-hostengine", 5555  # noqa: S108 - NVIDIA's choice

_LIBRARY = re.compile(r"libdcgm\.so(\.\d+)?")
_SEARCH_PATH = "LD_LIBRARY_PATH"


class Dcgm:
    """Mounts the host's ``libdcgm`` and the socket of its ``nv-hostengine`` into a container."""

    name = "dcgm"

    def apply(
        self,
        request: ContainerRequest,
        settings: Mapping[str, str],  # noqa: ARG002
        context: HookContext,
        node: Node,
    ) -> HookResult:
        """Add mounts for the library and the socket; a missing one is a note."""
        notes: list[str] = []
        mounts: list[Mount] = []
        environment = dict(request.environment)
        libraries = {name: path for name, path in node.libraries().items() if _LIBRARY.fullmatch(name)}
        is_container = context.engine != "host"
        if not libraries:
            notes.append("com.hooks.dcgm: the node has no libdcgm.so, so the image must contain one.")
        elif is_container:
            mounts += [
                Mount(source=path, destination=f"{MOUNT_DIRECTORY}/{name}", flags=("ro",))
                for name, path in sorted(libraries.items())
            ]
            environment[_SEARCH_PATH] = ":".join(
                filter(None, [MOUNT_DIRECTORY, environment.get(_SEARCH_PATH, "")])
            )
            if request.edf.env.get(_SEARCH_PATH):
                notes.append(
                    f"com.hooks.dcgm: the EDF sets {_SEARCH_PATH}; add {MOUNT_DIRECTORY} to it for libdcgm."
                )
        if node.is_socket(SOCKET):
            mounts += [Mount(source=SOCKET, destination=SOCKET)] if is_container else []
        elif not node.listens(PORT):
            notes.append(f"com.hooks.dcgm: no nv-hostengine runs on the node ({SOCKET}, port {PORT}).")
        update = {"mounts": (*request.mounts, *mounts), "environment": environment}
        return HookResult(request=request.model_copy(update=update), notes=tuple(notes))
