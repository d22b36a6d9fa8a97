"""Start agents, and connect them to the coordinator.

The rendezvous has the coordinator's address, its public key, and the secret token of the run. Agents get it
in a file that only its owner can read, or in the environment, never in an argument. The coordinator ignores
peers without the token.
"""

import contextlib
import fcntl
import os
import resource
import secrets
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import zmq
from pydantic import ValidationError

from gipfel_cluster.model import Frozen, GipfelError
from gipfel_cluster.runs import write_atomically
from gipfel_cluster.steps import PYTHON, StepSpec, start_step

from ...telemetry.files import read_regular
from .location import Location, LocationKind
from .messages import MAX_MESSAGE_BYTES

_SIOCGIFADDR = 0x8915
#: Environment variable with the rendezvous of agents that a coordinator starts.
RENDEZVOUS_VARIABLE = "GIPFEL_VET_RENDEZVOUS"
_MAX_BYTES = 1 << 20
_CONNECT_S = 3.0
_MAX_DESCRIPTORS = 65536
#: Seconds for which a file says that its run has ended.
_ENDED_FOR_S = 300.0


class Rendezvous(Frozen):
    """Address of the coordinator, its key, and the token of the run.

    Parameters
    ----------
    hosts
        Names and addresses of its node; agents use the first one that accepts a connection.
    port
        Port of the coordinator; 0 after the end of the run.
    key
        Public key of the coordinator (CURVE, Z85).
    """

    hosts: tuple[str, ...]
    port: int
    key: str
    token: str

    def write(self, path: Path) -> None:
        """Write the rendezvous to a file with mode 0600."""
        write_atomically(path, self.model_dump_json())

    @classmethod
    def read(cls, path: Path) -> "Rendezvous | None":
        """Return the rendezvous in a file; None if there is none yet, or it can't be read."""
        try:
            rendezvous = cls.model_validate_json(read_regular(path, _MAX_BYTES))
            # An old file may be of another cluster's job with this number.
            stale = not rendezvous.port and time.time() - path.stat().st_mtime > _ENDED_FOR_S
        except (OSError, ValidationError):
            return None
        return None if stale else rendezvous

    @classmethod
    def ended(cls) -> "Rendezvous":
        """Return a rendezvous that reports the end of the run to late agents."""
        return cls(hosts=(), port=0, key="", token="")

    def reachable(self) -> tuple[str, str] | None:
        """Return the first host that accepts a connection, and this node's address towards it; else None."""
        for host in self.hosts:
            try:
                with socket.create_connection((host, self.port), _CONNECT_S) as link:
                    return host, str(link.getsockname()[0])
            except OSError:
                continue
        return None


class _CurveSocket:
    """Encrypted socket with a key pair of its own."""

    def __init__(self, kind: int) -> None:
        self._context = zmq.Context()
        self.socket: zmq.Socket[bytes] = self._context.socket(kind)
        self._public_key, secret = zmq.curve_keypair()
        self.socket.curve_publickey, self.socket.curve_secretkey = self._public_key, secret
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)

    def close(self) -> None:
        """Close the socket after half a second for pending messages."""
        self.socket.close(linger=500)
        self._context.term()


class CoordinatorSocket(_CurveSocket):
    """Listening socket of the coordinator.

    Raises
    ------
    GipfelError
        No port is available.
    """

    def __init__(self, *, local_only: bool, node: str) -> None:
        super().__init__(zmq.ROUTER)
        self.socket.curve_server = True
        self.socket.setsockopt(zmq.SNDHWM, 10_000)
        # All agents connect at once, and each connection needs a descriptor.
        self.socket.setsockopt(zmq.BACKLOG, 4096)
        _raise_descriptor_limit()
        # Sending to a disconnected agent raises an error instead of dropping the message.
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        try:
            port = self.socket.bind_to_random_port("tcp://127.0.0.1" if local_only else "tcp://*")
        except zmq.ZMQError as error:
            raise GipfelError(f"No port is available on {node}: {error}.") from error
        hosts = ("127.0.0.1",) if local_only else tuple(_names(node))
        key = self._public_key.decode()
        self.rendezvous = Rendezvous(hosts=hosts, port=port, key=key, token=secrets.token_urlsafe(32))


def _raise_descriptor_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = _MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < target:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))


def _names(node: str) -> Iterable[str]:
    """Return names and addresses by which other nodes may reach this one, the most likely first."""
    good: dict[str, None] = {}
    doubtful: dict[str, None] = {}
    for name in dict.fromkeys((node, socket.gethostname())):
        try:
            known = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
        except OSError:
            known = []
        routable = [str(each[4][0]) for each in known if not str(each[4][0]).startswith("127.")]
        # Debian resolves a machine's own name to 127.0.1.1; on other nodes the name may be correct.
        (good if routable else doubtful)[name] = None
        good |= dict.fromkeys(routable)
    own = dict.fromkeys(address for _, address in interfaces() if not address.startswith("127."))
    return good | own | doubtful


class AgentSocket(_CurveSocket):
    """Socket of an agent."""

    def __init__(self, rendezvous: Rendezvous, host: str) -> None:
        super().__init__(zmq.DEALER)
        self.socket.curve_serverkey = rendezvous.key.encode()
        # A fixed identity, so that the agent is recognized after a broken connection.
        self.socket.setsockopt(zmq.IDENTITY, b"A" + secrets.token_bytes(15))
        self.socket.connect(f"tcp://{host}:{rendezvous.port}")

    def send(self, data: bytes) -> None:
        """Send a message; drop it if the queue is full."""
        with contextlib.suppress(zmq.ZMQError):
            self.socket.send(data, zmq.NOBLOCK)


def interface_name(address: str) -> str:
    """Return the name of the interface with this IPv4 address; empty if there is none."""
    return next((name for name, own in interfaces() if own == address), "")


def interfaces() -> Iterator[tuple[str, str]]:
    """Yield each interface of this node and its first IPv4 address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                request = struct.pack("256s", name.encode()[:15])
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue
            yield name, socket.inet_ntoa(answer[20:24])


_AGENT = f"{__package__}.agent"
_SOON_S, _END_S = 3.0, 12.0


class LocalAgent:
    """Agent on this node, as a child process with its own session."""

    def __init__(self, rendezvous: Rendezvous, node: str, environment: Mapping[str, str]) -> None:
        self._node = node
        self._process = subprocess.Popen(
            [sys.executable, "-m", _AGENT, str(os.getpid()), node],
            env={**environment, RENDEZVOUS_VARIABLE: rendezvous.model_dump_json()},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def problem(self, node: str) -> str:
        """Return how the agent ended; empty while it runs."""
        status = self._process.poll()
        if node != self._node or status is None:
            return ""
        ending = f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"
        return f"Its agent {ending}."

    def end(self) -> None:
        """Wait for the agent; terminate it, and finally kill it, if it does not end."""
        for number, seconds in ((signal.SIGTERM, _SOON_S), (signal.SIGKILL, _END_S)):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
                return
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
        self._process.wait(_END_S)


class StepTasks(LocalAgent):
    """Agent on this node, and the other tasks of this Slurm step, which find the rendezvous in a file."""

    def __init__(self, rendezvous: Rendezvous, node: str, environment: Mapping[str, str], file: Path) -> None:
        self._file = file
        rendezvous.write(file)
        super().__init__(rendezvous, node, environment)

    def end(self) -> None:
        """Notify late tasks that the run has ended, and end the agent of this node."""
        with contextlib.suppress(OSError):
            Rendezvous.ended().write(self._file)
        super().end()


class AgentStep:
    """Slurm step with an agent on every node."""

    def __init__(
        self, rendezvous: Rendezvous, nodes: tuple[str, ...], folder: Path, environment: Mapping[str, str]
    ) -> None:
        spec = StepSpec(
            command=(PYTHON, "-m", _AGENT),
            nodes=nodes,
            environment={RENDEZVOUS_VARIABLE: rendezvous.model_dump_json()},
            folder=str(folder),
            name="vet",
            grace_s=10,
        )
        self._handle = start_step(spec, environment)

    def problem(self, node: str) -> str:  # noqa: ARG002 - a step ends as a whole
        """Return how the step ended; empty while it runs."""
        status = self._handle.poll()
        if status is None:
            return ""
        return f"The job step of its agent exited with status {status}. {self._handle.state.problem}".strip()

    def end(self) -> None:
        """Wait for the step; stop it if it does not end."""
        if self._handle.wait(_END_S) is None:
            self._handle.stop()


def start_agents(
    location: Location, rendezvous: Rendezvous, folder: Path, environment: Mapping[str, str]
) -> LocalAgent | AgentStep:
    """Start the agents that do not start by themselves.

    Raises
    ------
    GipfelError
        The Slurm step can't be started.
    """
    if location.kind is LocationKind.STEP:
        return StepTasks(rendezvous, location.node, environment, location.rendezvous(folder))
    if location.kind is LocationKind.ALLOCATION and location.nodes != (location.node,):
        return AgentStep(rendezvous, location.nodes, folder / "vetting", environment)
    return LocalAgent(rendezvous, location.node, environment)
