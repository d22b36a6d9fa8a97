"""Run an ssh server while a command runs: start it, announce its port, and end it with the command.

``python -I -m gipfel_cluster.hooks.inside.serve PIDFD``: PIDFD is a pidfd of the command's process, or -1 if
the kernel has none. An error is one line on stderr and does not affect the command.

`SshServerSpec` is the configuration from the hook on the host, in an environment variable. ``sshd`` runs as
the user on the first free port. Only the host key is on disk; a user's containers share it, so that their
entry in ``known_hosts`` stays valid.
"""

import contextlib
import dataclasses
import json
import os
import pwd
import re
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...model import one_line, report_line
from ...process.tree import kill_tree
from ...runs import write_atomically
from .start import VARIABLE

_SAFE_PATH = re.compile(r"/[A-Za-z0-9._+@/-]*")
#: A name without blanks and without characters that AllowUsers reads as a pattern or a host.
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
_PORT_ATTEMPTS = 100
_LAST_PORT = 65535
_SESSION = ("-I", "-m", "gipfel_cluster.hooks.inside.session")
_LISTENS = re.compile(rb"^Server listening on ", re.MULTILINE)
_PORT_TAKEN = re.compile(rb"^(error: )?Bind to port \d+ on .* failed: ", re.MULTILINE)


@dataclass(frozen=True)
class SshServerSpec:
    """An ssh server to start for a command; all paths are paths in the container.

    ``programs`` maps ``sshd`` and its helpers (``ssh-keygen``, ``sftp-server``, ``sshd-session``,
    ``sshd-auth``) to paths. ``keys`` are lines of an ``authorized_keys`` file. ``folder`` contains the host
    key. A file with the port and a log are written to ``run_directory``, and the server's process id to
    ``pid_file``; neither is written if its path is empty.
    """

    programs: dict[str, str]
    keys: tuple[str, ...]
    port: int
    folder: str
    node: str = ""
    run_directory: str = ""
    pid_file: str = ""

    def to_json(self) -> str:
        """Return the specification as one line of JSON."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "SshServerSpec":
        """Return the specification that `to_json` wrote."""
        content = json.loads(text)
        return cls(**content | {"keys": tuple(content["keys"])})


class ServerError(Exception):
    """An ssh server can't be started; the message is one line for the user."""


@dataclass(frozen=True)
class Server:
    """A listening server for one user; ``output`` is the pipe with its log, ``key`` its private host key."""

    process: "subprocess.Popen[bytes]"
    port: int
    user: str
    output: int
    key: bytes


def start_server(spec: SshServerSpec, *, user: str, key: bytes) -> Server:
    """Start the server on the requested port, or on the first free one of the 100 ports from there.

    Raises
    ------
    ServerError
        No port is free, or ``sshd`` does not start.
    """
    keys = _private_file("keys", "".join(f"{line}\n" for line in spec.keys).encode())
    secret = _private_file("key", key)
    for port in range(spec.port, min(spec.port + _PORT_ATTEMPTS, _LAST_PORT + 1)):
        content = server_configuration(
            port,
            user=user,
            host_key=secret,
            authorized_keys=keys,
            session=(sys.executable, *_SESSION, str(os.getpid()), spec.programs.get("sftp-server", "-")),
            programs=spec.programs,
            pid_file=spec.pid_file,
        )
        started = _start_sshd(spec.programs["sshd"], _private_file("configuration", content.encode()))
        if started is not None:
            process, output = started
            return Server(process, port, user, output, key)
    raise ServerError(f"no port from {spec.port} to {port} is free.")


def _private_file(name: str, content: bytes) -> str:
    """Create a file in memory; return a path by which only this user's processes can open it."""
    file = os.memfd_create(name)
    os.fchmod(file, 0o600)
    os.write(file, content)
    return f"/proc/{os.getpid()}/fd/{file}"


def _start_sshd(sshd: str, configuration: str) -> "tuple[subprocess.Popen[bytes], int] | None":
    """Start ``sshd`` and wait until it listens; return None if the port is taken."""
    reader, writer = os.pipe()
    # -D: not a daemon, so that it stays our child; -e: log to stderr. The container's LD_PRELOAD is not set.
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
    log = b""
    end = time.monotonic() + _START_SECONDS
    # If the port is taken, it may listen on it for the other address family, IPv4 or IPv6.
    while not _PORT_TAKEN.search(log):
        if _LISTENS.search(log):
            return process, reader
        is_ready = select.select([reader], [], [], max(0.0, end - time.monotonic()))[0]
        piece = os.read(reader, 4096) if is_ready else b""
        if not piece:
            break
        log += piece.replace(b"\r", b"")
    process.kill()
    process.wait()
    os.close(reader)
    if _PORT_TAKEN.search(log):
        return None
    last = log.decode(errors="replace").strip().rpartition("\n")[2].strip()
    raise ServerError(f"sshd did not start: {last or f'no answer within {_START_SECONDS:.0f} s'}.")


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
    """Return the configuration file for ``sshd -f``.

    Parameters
    ----------
    host_key, authorized_keys
        Paths of files that only the user can open.
    session
        The argv that runs a session; no word has special characters of a shell.
    programs
        Paths of ``sftp-server``, ``sshd-session`` and ``sshd-auth``, as far as they exist.

    Raises
    ------
    ValueError
        A path holds characters other than letters, digits and ``. _ + @ - /``.
    """
    for path in (host_key, authorized_keys, *programs.values(), *filter(None, [pid_file])):
        if not _SAFE_PATH.fullmatch(path):
            raise ValueError(f"{path!r} can't be written into a configuration")
    lines = [
        f"Port {port}",
        f"HostKey {host_key}",
        f"AuthorizedKeysFile {authorized_keys}",
        # In a user namespace the parent directories belong to an unmapped user, which sshd refuses.
        "StrictModes no",
        f"PidFile {pid_file or 'none'}",
        f"ForceCommand exec {' '.join(session)}",
    ]
    if _PLAIN_NAME.fullmatch(user):
        # A name with special characters needs no AllowUsers: sshd can't become another user anyway.
        lines.append(f"AllowUsers {user}")
    for name, keyword in (("sshd-session", "SshdSessionPath"), ("sshd-auth", "SshdAuthPath")):
        if name in programs:
            lines.append(f"{keyword} {programs[name]}")
    if "sftp-server" in programs:
        lines.append(f"Subsystem sftp {programs['sftp-server']}")
    return "\n".join(lines) + "\n" + _FIXED_SETTINGS


_KEY_NAME = "host_ed25519"
_KEYGEN_SECONDS = 20
_LOG_BYTES = 1 << 20


def main(command: int) -> int:
    """Run the server until the command ends; return its exit status."""
    spec = SshServerSpec.from_json(os.environb.pop(VARIABLE).decode())
    try:
        server = _start(spec)
    except (ServerError, OSError, ValueError, subprocess.SubprocessError) as error:
        report_line(one_line(f"this container has no ssh server: {error}"))
        return 1
    _announce(spec, server)
    with open(os.devnull, "wb") as nothing:  # noqa: PTH123
        # Readers of the command's stderr wait until all its writers have closed it.
        os.dup2(nothing.fileno(), 2)
    _write_log(spec, server, command)
    return 0


def _start(spec: SshServerSpec) -> Server:
    try:
        user = pwd.getpwuid(os.getuid())
    except KeyError:
        raise ServerError(f"the container's /etc/passwd has no user {os.getuid()}.") from None
    shell = user.pw_shell or "/bin/sh"
    if not os.access(shell, os.X_OK):
        raise ServerError(f"the image has no shell {shell}.")
    return start_server(spec, user=user.pw_name, key=host_key(Path(spec.folder), spec.programs["ssh-keygen"]))


def _announce(spec: SshServerSpec, server: Server) -> None:
    line = f"ssh -p {server.port} {server.user}@{spec.node}"
    report_line(one_line(f"reach this container by: {line}"))
    if not spec.run_directory:
        return
    public = public_key(server.key, spec.programs["ssh-keygen"])
    announcement = {
        "command": line,
        "node": spec.node,
        "port": server.port,
        "user": server.user,
        "known_hosts": f"[{spec.node}]:{server.port} {public}",
    }
    with contextlib.suppress(OSError):
        write_atomically(
            Path(spec.run_directory, f"ssh-{spec.node}.json"), json.dumps(announcement, indent=2) + "\n"
        )


def _write_log(spec: SshServerSpec, server: Server, command: int) -> None:
    """Write the server's output to its log, at most 1 MiB, until the server or the command has ended."""
    poll = select.poll()
    poll.register(server.output, select.POLLIN)
    if command >= 0:
        poll.register(command, select.POLLIN)
    log = _log(spec)
    room = _LOG_BYTES
    try:
        while server.output in (ready := {number for number, _ in poll.poll()}) and command not in ready:
            piece = os.read(server.output, 4096)
            if not piece:
                return
            os.write(log, piece[:room])
            room -= len(piece[:room])
    finally:
        # Ends sessions too: not every engine gives a container its own PID namespace.
        server.process.terminate()
        kill_tree(os.getpid())


def _log(spec: SshServerSpec) -> int:
    path = Path(spec.run_directory, f"ssh-{spec.node}.log") if spec.run_directory else Path(os.devnull)
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def host_key(folder: Path, keygen: str) -> bytes:
    """Return the user's host key, created on first use; nodes that create it at the same time share one.

    Raises
    ------
    OSError
        The directory can't be written to, or ``ssh-keygen`` does not exist.
    subprocess.SubprocessError
        ``ssh-keygen`` failed.
    """
    path = folder / _KEY_NAME
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            new_key = Path(temporary, _KEY_NAME)
            make_key(new_key, keygen)
            with contextlib.suppress(FileExistsError):
                os.link(new_key, path)
    return path.read_bytes()


def make_key(path: Path, keygen: str) -> None:
    """Create a key pair without a passphrase; the public key gets the suffix ``.pub``."""
    subprocess.run(
        [keygen, "-q", "-t", "ed25519", "-N", "", "-C", "gipfel", "-f", str(path)],
        env={"PATH": os.defpath},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_KEYGEN_SECONDS,
        check=True,
    )


def public_key(content: bytes, keygen: str) -> str:
    """Return the public key of a private key as ``ssh-ed25519 AAAA…``, for ``known_hosts``."""
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
