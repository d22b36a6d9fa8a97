"""``com.hooks.ssh``: a port into the running container, for the owner of a key."""

import os
from collections.abc import Mapping
from pathlib import Path

from ..edf.model import Mount
from ..engines.protocol import ContainerRequest
from ..model import GipfelError
from ..runs import make_private
from ..runtime.model import Runtime
from .authorized_keys import read_keys
from .inside.order import SshOrder
from .inside.variable import VARIABLE
from .node import Node
from .protocol import Hooked, Surroundings

#: The Container Engine's, see its documentation.
DEFAULT_PORT = 15263

# `-m` and the site module would load 50 modules that the command waits for.
_BECOME = (
    "import sys; sys.path.append('%s/lib/python%d.%d/site-packages' % (sys.prefix, *sys.version_info[:2]));"
    "from gipfel_cluster.hooks.inside.start import main; sys.exit(main(sys.argv[1:]))"
)
_START = ("-I", "-S", "-c", _BECOME)
_NEEDED = ("sshd", "ssh-keygen")
_PROGRAMS = (*_NEEDED, "sftp-server", "sshd-session", "sshd-auth")


class Ssh:
    """Runs the runtime's ``sshd`` as the user beside the command."""

    name = "ssh"

    def apply(
        self, request: ContainerRequest, settings: Mapping[str, str], where: Surroundings, node: Node
    ) -> Hooked:
        """Put the server's start before the command; where it can't be, say so and change nothing."""
        notes: list[str] = []
        try:
            runtime = _usable(where, node)
            keys, skipped = read_keys(settings.get("authorize_ssh_key", ""))
            notes += [f"com.hooks.ssh.authorize_ssh_key: {each}" for each in skipped]
            order = SshOrder(
                programs={name: path for name in _PROGRAMS if (path := runtime.program(name))},
                keys=keys,
                port=_port(settings.get("port", "")),
                folder=_host_key_folder(request.environment.get("HOME", ""), make=not request.only_shown),
                node=request.environment.get("GIPFEL_NODE", "") or node.name(),
                notice=request.environment.get("GIPFEL_RUN", ""),
                pid_file=settings.get("pidfile_container", ""),
            )
        except GipfelError as error:
            why = f"com.hooks.ssh has no effect: {error.problem}. {error.fix}"
            return Hooked(request=request, notes=(*notes, why))
        if "sftp-server" not in order.programs:
            notes.append("com.hooks.ssh: the runtime has no sftp-server, so sftp and scp won't work.")
        if settings.get("pidfile_host"):
            notes.append(
                "com.hooks.ssh.pidfile_host has no effect: the container doesn't know its processes' "
                "numbers on the host."
            )
        return Hooked(request=_with_server(request, runtime, order), notes=tuple(notes))


def _usable(where: Surroundings, node: Node) -> Runtime:
    runtime = where.runtime
    if where.engine == "host":
        raise GipfelError("there is no container to reach", "Log in to the node itself.")
    if node.user_id() == 0:
        raise GipfelError("no server is started for root", "Start the job as a plain user.")
    if runtime is None:
        raise GipfelError("no runtime is mounted into this container", "Start it as a job.")
    missing = [name for name in _NEEDED if runtime.program(name) is None]
    if missing:
        raise GipfelError(
            f"the runtime {runtime.root} has no {' and no '.join(missing)}",
            "Build it on a machine that has OpenSSH's server.",
        )
    return runtime


def _with_server(request: ContainerRequest, runtime: Runtime, order: SshOrder) -> ContainerRequest:
    mounts = [Mount(source=order.folder, destination=order.folder)]
    if not any(mount.destination == runtime.prefix for mount in request.mounts):
        mounts.append(runtime.mount)
    return request.model_copy(
        update={
            "command": (runtime.python, *_START, *request.command),
            "mounts": (*request.mounts, *mounts),
            "environment": {**request.environment, os.fsdecode(VARIABLE): order.to_json()},
        }
    )


def _port(text: str) -> int:
    if not text:
        return DEFAULT_PORT
    if not (text.isascii() and text.isdecimal() and len(text) <= 5 and 1024 <= int(text) <= 65535):
        raise GipfelError(f"{text!r} is no port that a user may open", "Give one from 1024 to 65535.")
    return int(text)


def _host_key_folder(home: str, *, make: bool) -> str:
    """Name ``~/.gipfel/ssh``, and make it: the host key's, mounted into every container with this hook."""
    try:
        folder = Path(home or Path.home(), ".gipfel", "ssh")
    except RuntimeError as error:
        raise GipfelError("there is no home folder to keep the server's key in", "Set HOME.") from error
    if not make:
        return str(folder)
    try:
        make_private(folder)
        folder.chmod(0o700)
    except OSError as error:
        raise GipfelError(
            f"{folder}, which keeps the server's key, can't be made ({error.strerror})", "Is the disk full?"
        ) from error
    return str(folder)
