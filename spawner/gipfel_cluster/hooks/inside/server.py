"""``sshd`` of a plain user, on the first free port; nothing of it but the host key is on a disk.

`SshOrder` is what the hook on the host asks for; it travels in an environment variable.
"""

import dataclasses
import json
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

_SAFE = re.compile(r"/[A-Za-z0-9._+@/-]*")
#: Neither blanks nor what AllowUsers takes for a pattern or a host.
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_FIXED_SETTINGS = """\
AuthenticationMethods publickey
PubkeyAuthentication yes
PasswordAuthentication no
KbdInteractiveAuthentication no
HostbasedAuthentication no
AuthorizedKeysCommand none
AuthorizedPrincipalsFile none
TrustedUserCAKeys none
PermitRootLogin no
PermitUserEnvironment no
PermitUserRC no
PermitTTY yes
AllowTcpForwarding yes
AllowStreamLocalForwarding yes
AllowAgentForwarding no
GatewayPorts no
X11Forwarding no
PermitTunnel no
PrintMotd no
PrintLastLog no
UseDNS no
LoginGraceTime 30
LogLevel INFO
"""
_START_SECONDS = 15.0
_PORTS = 100
_LAST_PORT = 65535
_SESSION = ("-I", "-m", "gipfel_cluster.hooks.inside.session")
_LISTENS = re.compile(rb"^Server listening on ", re.MULTILINE)
_TAKEN = re.compile(rb"^(error: )?Bind to port \d+ on .* failed: ", re.MULTILINE)


@dataclass(frozen=True)
class SshOrder:
    """An ssh server to be started beside a command; every path is one of the container.

    ``programs`` maps ``sshd`` and what it needs (``ssh-keygen``, ``sftp-server``, ``sshd-session``,
    ``sshd-auth``) to paths. ``keys`` are lines of an ``authorized_keys``. ``folder`` keeps the host key,
    ``notice`` is where the port is written down (empty for nowhere), ``pid_file`` may be empty.
    """

    programs: dict[str, str]
    keys: tuple[str, ...]
    port: int
    folder: str
    node: str = ""
    notice: str = ""
    pid_file: str = ""

    def to_json(self) -> str:
        """Write the order as one line."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "SshOrder":
        """Read what `to_json` wrote."""
        content = json.loads(text)
        return cls(**content | {"keys": tuple(content["keys"])})


class ServerError(Exception):
    """An ssh server that can't be started: one line for a person."""


@dataclass(frozen=True)
class Server:
    """A server that listens; ``output`` is the pipe with its log."""

    process: "subprocess.Popen[bytes]"
    port: int
    user: str
    output: int
    key: bytes


def start_server(order: SshOrder, *, user: str, key: bytes) -> Server:
    """Start it on the port that was asked for, or on the next free one of 100.

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
            process, output = started
            return Server(process, port, user, output, key)
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
    # -D: no daemon, so that it is ours; -e: its log on stderr. The container's LD_PRELOAD is not for it.
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
    end = time.monotonic() + _START_SECONDS
    while not (_LISTENS.search(said) or _TAKEN.search(said)):
        piece = b""
        if select.select([reader], [], [], max(0.0, end - time.monotonic()))[0]:
            piece = os.read(reader, 4096)
        if not piece:
            process.kill()
            process.wait()
            os.close(reader)
            last = said.decode(errors="replace").strip().rpartition("\n")[2].strip()
            raise ServerError(f"sshd did not start: {last or f'no answer within {_START_SECONDS:.0f} s'}.")
        said += piece.replace(b"\r", b"")
    if _TAKEN.search(said):
        # It may have got the port for the other kind of addresses.
        process.kill()
        process.wait()
        os.close(reader)
        return None
    return process, reader


def server_configuration(
    port: int,
    *,
    user: str,
    host_key: str,
    authorized_keys: str,
    session: tuple[str, ...],
    programs: Mapping[str, str],
    pid_file: str = "",
) -> str:
    """Write what ``sshd -f`` reads.

    Parameters
    ----------
    host_key, authorized_keys
        Paths of files that only the user can open.
    session
        The words that run a session; each is free of what a shell reads.
    programs
        Paths of ``sftp-server``, ``sshd-session`` and ``sshd-auth``, where there are any.

    Raises
    ------
    ValueError
        A path holds something else than letters, digits and ``. _ + @ - /``.
    """
    for path in (host_key, authorized_keys, *programs.values(), *filter(None, [pid_file])):
        if not _SAFE.fullmatch(path):
            raise ValueError(f"{path!r} can't be written into a configuration")
    lines = [
        f"Port {port}",
        f"HostKey {host_key}",
        f"AuthorizedKeysFile {authorized_keys}",
        # In a user namespace the directories above belong to no known user, which sshd refuses.
        "StrictModes no",
        f"PidFile {pid_file or 'none'}",
        f"ForceCommand exec {' '.join(session)}",
    ]
    if _PLAIN_NAME.fullmatch(user):
        # For other names: sshd can't become another user, and refuses every other name.
        lines.append(f"AllowUsers {user}")
    for name, keyword in (("sshd-session", "SshdSessionPath"), ("sshd-auth", "SshdAuthPath")):
        if name in programs:
            lines.append(f"{keyword} {programs[name]}")
    if "sftp-server" in programs:
        lines.append(f"Subsystem sftp {programs['sftp-server']}")
    return "\n".join(lines) + "\n" + _FIXED_SETTINGS
