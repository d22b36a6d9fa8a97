"""Rendezvous: agents find the coordinator by a file or a variable with its port and this run's keys.

Whoever knows the coordinator's key can connect, and it ignores everyone who does not send the token. Both
are in a file that its owner alone can read, or in the environment; never in an argument.
"""

import contextlib
import fcntl
import resource
import secrets
import socket
import struct
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import zmq
from pydantic import ValidationError

from gipfel_cluster.model import Frozen, GipfelError
from gipfel_cluster.runs import write_atomically

from ...telemetry.files import read_regular
from .messages import LARGEST

_SIOCGIFADDR = 0x8915
#: By which agents that a coordinator starts learn the rendezvous.
RENDEZVOUS_VARIABLE = "GIPFEL_VET_RENDEZVOUS"
_MOST_BYTES = 1 << 20
_CONNECT_S = 3.0
_MOST_DESCRIPTORS = 65536
#: Seconds in which whoever comes too late finds a run over.
_OVER_FOR_S = 300.0


class Rendezvous(Frozen):
    """Address of the coordinator, and the secrets to be heard by it.

    Parameters
    ----------
    hosts
        Names and addresses of its node; the first one that answers is taken.
    port
        0 where there is no coordinator any more.
    key
        Its public key (CURVE, Z85).
    """

    hosts: tuple[str, ...]
    port: int
    key: str
    token: str

    def write(self, path: Path) -> None:
        """Write it for the agents of this user; 0600."""
        write_atomically(path, self.model_dump_json())

    @classmethod
    def read(cls, path: Path) -> "Rendezvous | None":
        """Return the content of a file; None where there is none yet, or it can't be read."""
        try:
            found = cls.model_validate_json(read_regular(path, _MOST_BYTES))
            # Another cluster, or one that was set up anew, may have had a job of this number.
            stale = not found.port and time.time() - path.stat().st_mtime > _OVER_FOR_S
        except (OSError, ValidationError):
            return None
        return None if stale else found

    @classmethod
    def over(cls) -> "Rendezvous":
        """Return what late agents find."""
        return cls(hosts=(), port=0, key="", token="")

    def reachable(self) -> tuple[str, str] | None:
        """Return the first of its hosts that answers, and this node's own address on the way there."""
        for host in self.hosts:
            try:
                with socket.create_connection((host, self.port), _CONNECT_S) as link:
                    return host, str(link.getsockname()[0])
            except OSError:
                continue
        return None


class Listener:
    """Socket of the coordinator.

    Raises
    ------
    GipfelError
        No port can be had.
    """

    def __init__(self, *, alone: bool, node: str) -> None:
        self._context = zmq.Context()
        self.socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        public, secret = zmq.curve_keypair()
        self.socket.curve_server = True
        self.socket.curve_secretkey, self.socket.curve_publickey = secret, public
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.MAXMSGSIZE, LARGEST)
        self.socket.setsockopt(zmq.SNDHWM, 10_000)
        # All agents come at once, and each holds a descriptor.
        self.socket.setsockopt(zmq.BACKLOG, 4096)
        _allow_descriptors()
        # A message to an agent that is gone is an error, and not dropped in silence.
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        try:
            port = self.socket.bind_to_random_port("tcp://127.0.0.1" if alone else "tcp://*")
        except zmq.ZMQError as error:
            raise GipfelError(f"No port can be had on {node}: {error}.") from error
        hosts = ("127.0.0.1",) if alone else tuple(_names(node))
        self.rendezvous = Rendezvous(
            hosts=hosts, port=port, key=public.decode(), token=secrets.token_urlsafe(32)
        )

    def close(self) -> None:
        """Close it; what was not delivered by now is lost."""
        self.socket.close(linger=500)
        self._context.term()


def _allow_descriptors() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _names(node: str) -> Iterable[str]:
    """Return the names and addresses by which other nodes may reach this one, the likeliest first."""
    found: dict[str, None] = {}
    doubtful: dict[str, None] = {}
    for name in dict.fromkeys((node, socket.gethostname())):
        try:
            known = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
        except OSError:
            known = []
        addresses = [str(each[4][0]) for each in known]
        good = [each for each in addresses if not each.startswith("127.")]
        # Debian calls a machine 127.0.1.1 itself: others may know better, or mean themselves.
        (found if good else doubtful)[name] = None
        found |= dict.fromkeys(good)
    own = dict.fromkeys(address for _, address in interfaces() if not address.startswith("127."))
    return found | own | doubtful


class Link:
    """Socket of an agent."""

    def __init__(self, rendezvous: Rendezvous, host: str) -> None:
        self._context = zmq.Context()
        self.socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        public, secret = zmq.curve_keypair()
        self.socket.curve_serverkey = rendezvous.key.encode()
        self.socket.curve_secretkey, self.socket.curve_publickey = secret, public
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.MAXMSGSIZE, LARGEST)
        # So that it is the same agent after a broken connection.
        self.socket.setsockopt(zmq.IDENTITY, b"A" + secrets.token_bytes(15))
        self.socket.connect(f"tcp://{host}:{rendezvous.port}")

    def send(self, data: bytes) -> None:
        """Send; dropped where the other side has not taken a thousand before."""
        try:
            self.socket.send(data, zmq.NOBLOCK)
        except zmq.ZMQError:
            return

    def close(self) -> None:
        """Close it, giving what was said last half a second to leave."""
        self.socket.close(linger=500)
        self._context.term()


def interface_of(address: str) -> str:
    """Return the name of the interface with this IPv4 address; empty where there is none."""
    return next((name for name, own in interfaces() if own == address), "")


def interfaces() -> Iterator[tuple[str, str]]:
    """Yield each interface of this node and its first IPv4 address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            try:
                request = struct.pack("256s", name.encode()[:15])
                answer = fcntl.ioctl(asked.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue
            yield name, socket.inet_ntoa(answer[20:24])


def free_port() -> int:
    """Return a free port; it is not held."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as asked:
        asked.bind(("", 0))
        return int(asked.getsockname()[1])
