"""An ssh server beside a command: started, announced, and ended with it.

``python -I -m gipfel_cluster.hooks.inside.serve PIDFD``: the command's process, or -1 where the machine can't
give one. An error is one line on stderr; the command runs all the same. A user's containers share one host
key, which is made once and kept, as ``known_hosts`` needs it.
"""

import contextlib
import json
import os
import pwd
import select
import subprocess
import sys
import tempfile
from pathlib import Path

from ...model import one_line
from ...process.tree import kill_tree
from ...runs import write_atomically
from .server import Server, ServerError, SshOrder, start_server
from .variable import VARIABLE

_KEY_NAME = "host_ed25519"
_KEYGEN_SECONDS = 20
_LOG_BYTES = 1 << 20


def main(command: int) -> int:
    """Serve until the command ends."""
    order = SshOrder.from_json(os.environb.pop(VARIABLE).decode())
    try:
        server = _start(order)
    except (ServerError, OSError, ValueError, subprocess.SubprocessError) as error:
        _report(f"this container can't be reached by ssh: {error}")
        return 1
    _announce(order, server)
    with open(os.devnull, "wb") as nothing:  # noqa: PTH123
        # Whoever reads the command's stderr waits for its end.
        os.dup2(nothing.fileno(), 2)
    _keep(order, server, command)
    return 0


def _start(order: SshOrder) -> Server:
    try:
        user = pwd.getpwuid(os.getuid())
    except KeyError:
        raise ServerError(f"the container's /etc/passwd has no user {os.getuid()}.") from None
    shell = user.pw_shell or "/bin/sh"
    if not os.access(shell, os.X_OK):
        raise ServerError(f"the image has no shell {shell}.")
    key = host_key(Path(order.folder), order.programs["ssh-keygen"])
    return start_server(order, user=user.pw_name, key=key)


def _announce(order: SshOrder, server: Server) -> None:
    line = f"ssh -p {server.port} {server.user}@{order.node}"
    _report(f"reach this container by: {line}")
    if not order.notice:
        return
    public = public_half(server.key, order.programs["ssh-keygen"])
    notice = {
        "command": line,
        "node": order.node,
        "port": server.port,
        "user": server.user,
        "known_hosts": f"[{order.node}]:{server.port} {public}",
    }
    with contextlib.suppress(OSError):
        write_atomically(Path(order.notice, f"ssh-{order.node}.json"), json.dumps(notice, indent=2) + "\n")


def _keep(order: SshOrder, server: Server, command: int) -> None:
    """Log the server's output, at most 1 MiB, until it or the command has ended."""
    poll = select.poll()
    poll.register(server.output, select.POLLIN)
    if command >= 0:
        poll.register(command, select.POLLIN)
    log = _log(order)
    room = _LOG_BYTES
    try:
        while server.output in (ready := {number for number, _ in poll.poll()}) and command not in ready:
            piece = os.read(server.output, 4096)
            if not piece:
                return
            os.write(log, piece[:room])
            room -= len(piece[:room])
    finally:
        # Sessions too: not every engine gives a container processes of its own.
        server.process.terminate()
        kill_tree(os.getpid())


def _log(order: SshOrder) -> int:
    path = Path(order.notice, f"ssh-{order.node}.log") if order.notice else Path(os.devnull)
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def _report(line: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"gipfel: {one_line(line)}\n".encode())


def host_key(folder: Path, keygen: str) -> bytes:
    """Read the user's host key, or make it; two nodes that make one at once end with the same.

    Raises
    ------
    OSError
        The directory can't be written to, or there is no ``ssh-keygen``.
    subprocess.SubprocessError
        ``ssh-keygen`` failed.
    """
    kept = folder / _KEY_NAME
    if not kept.exists():
        with tempfile.TemporaryDirectory(dir=folder) as beside:
            fresh = Path(beside, _KEY_NAME)
            make_key(fresh, keygen)
            with contextlib.suppress(FileExistsError):
                os.link(fresh, kept)
    return kept.read_bytes()


def make_key(path: Path, keygen: str) -> None:
    """Make a key pair without a passphrase; the public half is beside it, in ``.pub``."""
    subprocess.run(
        [keygen, "-q", "-t", "ed25519", "-N", "", "-C", "gipfel", "-f", str(path)],
        env={"PATH": os.defpath},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_KEYGEN_SECONDS,
        check=True,
    )


def public_half(content: bytes, keygen: str) -> str:
    """Return ``ssh-ed25519 AAAA…`` of a private key, for ``known_hosts``."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, _KEY_NAME)
        path.touch(mode=0o600)
        path.write_bytes(content)
        done = subprocess.run(
            [keygen, "-y", "-f", str(path)],
            env={"PATH": os.defpath},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_KEYGEN_SECONDS,
            check=True,
        )
    return " ".join(done.stdout.split()[:2])


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
