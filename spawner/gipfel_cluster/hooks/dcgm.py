"""``com.hooks.dcgm``: DCGM's client library and socket, for tools that ask the node's service."""

import re
from collections.abc import Mapping

from ..edf.model import Mount
from ..engines.protocol import ContainerRequest
from .protocol import HookContext, HookResult, Node

#: A directory of its own: in a directory of the image the library would hide a file, or not be found.
FOLDER = "/opt/gipfel/dcgm"

#: Where ``nv-hostengine`` listens by default. Source: DCGM documentation, nv-hostengine -d and -p.
SOCKET, PORT = "/tmp/nv-hostengine", 5555  # noqa: S108 - NVIDIA's choice

_LIBRARY = re.compile(r"libdcgm\.so(\.\d+)?")
_SEARCHED = "LD_LIBRARY_PATH"


class Dcgm:
    """Brings the host's ``libdcgm`` and the socket of its ``nv-hostengine`` into a container."""

    name = "dcgm"

    def apply(
        self,
        request: ContainerRequest,
        settings: Mapping[str, str],  # noqa: ARG002
        where: HookContext,
        node: Node,
    ) -> HookResult:
        """Mount what the host has; what it lacks is a note."""
        notes: list[str] = []
        mounts: list[Mount] = []
        environment = dict(request.environment)
        libraries = {name: path for name, path in node.libraries().items() if _LIBRARY.fullmatch(name)}
        contained = where.engine != "host"
        if not libraries:
            notes.append("com.hooks.dcgm: the node has no libdcgm.so, so the image must bring one.")
        elif contained:
            mounts += [
                Mount(source=path, destination=f"{FOLDER}/{name}", flags=("ro",))
                for name, path in sorted(libraries.items())
            ]
            environment[_SEARCHED] = ":".join(filter(None, [FOLDER, environment.get(_SEARCHED, "")]))
            if request.edf.env.get(_SEARCHED):
                notes.append(f"com.hooks.dcgm: {_SEARCHED} is the EDF's: add {FOLDER} to it for libdcgm.so.")
        if node.is_socket(SOCKET):
            mounts += [Mount(source=SOCKET, destination=SOCKET)] if contained else []
        elif not node.listens(PORT):
            notes.append(f"com.hooks.dcgm: no nv-hostengine runs on the node ({SOCKET}, port {PORT}).")
        update = {"mounts": (*request.mounts, *mounts), "environment": environment}
        return HookResult(request=request.model_copy(update=update), notes=tuple(notes))
