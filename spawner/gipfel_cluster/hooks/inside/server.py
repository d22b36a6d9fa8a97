"""``sshd`` of a plain user, on the first free port; nothing of it but the host key is on a disk."""

import os
import re
import select
import subprocess
import sys
import time
from dataclasses import dataclass

from .configuration import server_configuration
from .order import SshOrder

_SECONDS = 15.0
_PORTS = 100
_LAST_PORT = 65535
_SESSION = ("-I", "-m", "gipfel_cluster.hooks.inside.session")
_LISTENS = re.compile(rb"^Server listening on ", re.MULTILINE)
_TAKEN = re.compile(rb"^(error: )?Bind to port \d+ on .* failed: ", re.MULTILINE)


class ServerError(Exception):
    """An ssh server that can't be started: one line for a person."""


@dataclass(frozen=True)
class Server:
    """A server that listens: ``words`` is where it says what happens."""

    process: "subprocess.Popen[bytes]"
    port: int
    user: str
    words: int
    key: bytes


def start_server(order: SshOrder, *, user: str, key: bytes) -> Server:
    """Start it on the port that was asked for, or on the next of 100 that nobody listens on.

    Raises
    ------
    ServerError
        No port is free, or ``sshd`` does not start.
    """
    keys = _private_file("keys", "".join(f"{line}\n" for line in order.keys).encode())
    secret = _private_file("key", key)
    for port in range(order.port, min(order.port + _PORTS, _LAST_PORT + 1)):
        content = server_configuration(
            port,
            user=user,
            host_key=secret,
            authorized_keys=keys,
            session=(sys.executable, *_SESSION, str(os.getpid()), order.programs.get("sftp-server", "-")),
            programs=order.programs,
            pid_file=order.pid_file,
        )
        started = _start(order.programs["sshd"], _private_file("configuration", content.encode()))
        if started is not None:
            process, words = started
            return Server(process, port, user, words, key)
    raise ServerError(f"no port from {order.port} to {port} is free.")


def _private_file(name: str, content: bytes) -> str:
    """Keep a file in memory, and name it so that this user's processes alone can open it."""
    file = os.memfd_create(name)
    os.fchmod(file, 0o600)
    os.write(file, content)
    return f"/proc/{os.getpid()}/fd/{file}"


def _start(sshd: str, configuration: str) -> "tuple[subprocess.Popen[bytes], int] | None":
    """Start it and wait until it listens; None where the port is taken."""
    reader, writer = os.pipe()
    # -D: no daemon, so that it is ours; -e: its words on stderr. The container's LD_PRELOAD is not for it.
    process = subprocess.Popen(
        [sshd, "-D", "-e", "-f", configuration],
        env={"PATH": os.defpath},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=writer,
        start_new_session=True,
        cwd="/",
    )
    os.close(writer)
    said = b""
    end = time.monotonic() + _SECONDS
    while not (_LISTENS.search(said) or _TAKEN.search(said)):
        piece = b""
        if select.select([reader], [], [], max(0.0, end - time.monotonic()))[0]:
            piece = os.read(reader, 4096)
        if not piece:
            process.kill()
            process.wait()
            os.close(reader)
            last = said.decode(errors="replace").strip().rpartition("\n")[2].strip()
            raise ServerError(f"sshd did not start: {last or f'no word within {_SECONDS:.0f} s'}.")
        said += piece.replace(b"\r", b"")
    if _TAKEN.search(said):
        # It may have got the port for the other kind of addresses.
        process.kill()
        process.wait()
        os.close(reader)
        return None
    return process, reader
