"""Fan-in: a node sends its ticks to the head node, encrypted and without delaying the recorder.

Each tick is kept until the head node acknowledges it, and is resent after a timeout, so that a restarted
head node receives the ticks that it missed. The head node drops duplicates by their numbers. Each job has
its own keys, which authorize the senders.

The receiver on the head node publishes the ticks of the job's other nodes for local readers. ``python -m
gipfel_extension.telemetry.live.fan_in`` prints one line of JSON on stdout: ``port``, on which it listens,
and, where it generated keys, ``environment`` with the variables for senders and ``head`` with those for
restarting the receiver. Clients without the job's keys are ignored.
"""

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils import z85

from ..sample import SourceError
from . import MAX_PATH, Tick, open_socket

_SERVER, _SERVER_SECRET = "GIPFEL_FAN_IN_SERVER", "GIPFEL_FAN_IN_SERVER_SECRET"
_CLIENT, _CLIENT_SECRET = "GIPFEL_FAN_IN_CLIENT", "GIPFEL_FAN_IN_CLIENT_SECRET"
#: Maximum number of unacknowledged ticks; beyond it the oldest are dropped and counted.
CAPACITY = 600
#: Seconds without acknowledgement after which a tick is resent.
_ACK_TIMEOUT_S = 3.0
_MAX_MESSAGE = 16 * 2**20


@dataclass(frozen=True, repr=False)
class FanInKeys:
    """Two CURVE key pairs as Z85 text: one of the head node, and one that all nodes of the job share.

    They are passed only in the environment. Senders don't get ``server_secret``.
    """

    server: str
    client: str
    client_secret: str
    server_secret: str = ""

    @classmethod
    def make(cls) -> "FanInKeys":
        """Generate new keys."""
        server, server_secret = (key.decode() for key in zmq.curve_keypair())
        client, client_secret = (key.decode() for key in zmq.curve_keypair())
        return cls(server, client, client_secret, server_secret)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "FanInKeys | None":
        """Return the keys in a process' environment; None where there are none.

        Raises
        ------
        SourceError
            A variable is not a valid key.
        """
        variables = [environment.get(name, "") for name in (_SERVER, _CLIENT, _CLIENT_SECRET, _SERVER_SECRET)]
        if not all(variables[:3]):
            return None
        # 32 bytes in Z85.
        if any(len(key) != 40 for key in variables if key):
            raise SourceError(
                "The keys of the fan-in are not valid CURVE keys.", "Restart the job, which generates them."
            )
        return cls(*variables)

    def to_environment(self, *, head: bool = False) -> dict[str, str]:
        """Return the variables for a sender, or, with `head`, for the head node with the server's secret."""
        variables = {_SERVER: self.server, _CLIENT: self.client, _CLIENT_SECRET: self.client_secret}
        return {**variables, _SERVER_SECRET: self.server_secret} if head else variables


class FanInSender:
    """Sender of ticks to the head node; used by one thread, and waits only in :meth:`close`.

    Parameters
    ----------
    endpoint
        ``tcp://HOST:PORT`` of the head node.
    capacity
        Maximum number of unacknowledged ticks.

    Raises
    ------
    SourceError
        The endpoint is invalid.
    """

    def __init__(
        self,
        endpoint: str,
        keys: FanInKeys,
        *,
        capacity: int = CAPACITY,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._monotonic = monotonic
        self._capacity = capacity
        #: Random id of this process: a restarted sender numbers its ticks from 1 again.
        self._sender = os.urandom(8)
        self._number = 0
        #: Unacknowledged ticks by number, each with the time at which it was sent last.
        self._waiting: OrderedDict[int, tuple[Tick, float]] = OrderedDict()
        self.dropped = 0
        self._context = zmq.Context()
        options = {
            zmq.LINGER: 0,
            zmq.SNDHWM: 1000,
            # Without a connection ticks wait in this object, where the oldest can be dropped, not in ZeroMQ.
            zmq.IMMEDIATE: 1,
            zmq.RECONNECT_IVL: 200,
            zmq.RECONNECT_IVL_MAX: 5000,
            zmq.HEARTBEAT_IVL: 2000,
            zmq.HEARTBEAT_TIMEOUT: 6000,
            zmq.MAXMSGSIZE: _MAX_MESSAGE,
            zmq.IPV6: 1,
        }
        self._socket = open_socket(self._context, zmq.DEALER, options)
        self._socket.curve_serverkey = keys.server.encode()
        self._socket.curve_publickey = keys.client.encode()
        self._socket.curve_secretkey = keys.client_secret.encode()
        try:
            self._socket.connect(endpoint)
        except zmq.ZMQError as error:
            self._context.destroy(0)
            raise SourceError(
                f"The live stream can't be sent to {endpoint!r}: {error}.", "Use tcp://HOST:PORT."
            ) from error

    @property
    def waiting(self) -> int:
        """Number of ticks that the head node has not acknowledged."""
        return len(self._waiting)

    def send(self, tick: Tick) -> None:
        """Queue a tick and send what can be sent without waiting."""
        self._number += 1
        self._waiting[self._number] = (tick, -_ACK_TIMEOUT_S)
        while len(self._waiting) > self._capacity:
            self._waiting.popitem(last=False)
            self.dropped += 1
        self._exchange()

    def close(self, *, limit: float = 2.0) -> None:
        """Wait up to `limit` seconds until the head node acknowledges all ticks, and close the socket."""
        deadline = self._monotonic() + limit
        self._exchange()
        while self._waiting and self._monotonic() < deadline:
            self._socket.poll(50)
            self._exchange()
        self._context.destroy(0)

    def _exchange(self) -> None:
        """Receive acknowledgements, and send the ticks that are unsent or not acknowledged in time."""
        self._receive_acknowledgements()
        now = self._monotonic()
        for number, (tick, sent) in self._waiting.items():
            if now - sent < _ACK_TIMEOUT_S:
                continue
            content = replace(tick, dropped=self.dropped).encode()
            try:
                self._socket.send_multipart([self._sender, number.to_bytes(8), content], zmq.NOBLOCK)
            except zmq.Again:
                return
            self._waiting[number] = (tick, now)

    def _receive_acknowledgements(self) -> None:
        while True:
            try:
                parts = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(parts) == 2 and parts[0] == self._sender:
                self._waiting.pop(int.from_bytes(parts[1]), None)


#: Number of tick numbers that are remembered for each sender, to drop duplicates.
_REMEMBERED = 4096
#: Maximum number of sender processes for which these are remembered.
_SENDERS = 4096
_PARENT_CHECK_MS = 200


class FanInReceiver:
    """Receiver of ticks; publishes them on ``<sockets>/fan-in.sock``, like a local recorder.

    Parameters
    ----------
    address
        Address to listen on; ``*`` for every interface.
    port
        0 for any free port.

    Raises
    ------
    SourceError
        It cannot listen, or the socket cannot be created.
    """

    def __init__(self, sockets: Path, keys: FanInKeys, *, address: str = "*", port: int = 0) -> None:
        path = sockets / "fan-in.sock"
        if len(str(path).encode()) > MAX_PATH:
            raise SourceError(f"The socket's path {path} is too long.", "Use a directory with a short path.")
        self._seen: OrderedDict[bytes, OrderedDict[int, None]] = OrderedDict()
        self._context = zmq.Context()
        self._authenticator = ThreadAuthenticator(self._context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback("*", _KeyCheck(keys.client))
        # Enough for ten seconds of 1 000 nodes, so that a reader that was paused misses nothing.
        self._publisher = open_socket(self._context, zmq.PUB, {zmq.SNDHWM: 10_000, zmq.LINGER: 500})
        options = {
            zmq.LINGER: 0,
            zmq.RCVHWM: 10_000,
            zmq.ROUTER_HANDOVER: 1,
            zmq.HEARTBEAT_IVL: 2000,
            zmq.HEARTBEAT_TIMEOUT: 6000,
            zmq.MAXMSGSIZE: _MAX_MESSAGE,
            zmq.IPV6: 1,
        }
        self._router = open_socket(self._context, zmq.ROUTER, options)
        self._router.curve_server = True
        self._router.curve_secretkey = keys.server_secret.encode()
        self._router.curve_publickey = keys.server.encode()
        try:
            self._router.bind(f"tcp://{address}:{port or '*'}")
            self._publisher.bind(f"ipc://{path}")
            path.chmod(0o600)
        except (zmq.ZMQError, OSError) as error:
            self.close()
            raise SourceError(f"The head node can't receive the other nodes' samples: {error}.") from error
        endpoint = str(self._router.get_string(zmq.LAST_ENDPOINT))
        self.port = int(endpoint.rstrip("\0").rpartition(":")[2])

    def run(self, ended: threading.Event, *, parent: int | None = None) -> None:
        """Receive until the event is set or this process' parent is no longer `parent`."""
        while not ended.is_set() and parent in (None, os.getppid()):
            self.receive(_PARENT_CHECK_MS / 1000)

    def receive(self, timeout: float) -> None:
        """Receive ticks, waiting up to `timeout` seconds for the first."""
        self._router.poll(int(1000 * timeout))
        while True:
            try:
                peer, *parts = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(parts) != 3 or len(parts[0]) != 8 or len(parts[1]) != 8:
                continue
            sender, number, content = parts
            if self._is_new(sender, int.from_bytes(number)):
                self._publisher.send(content)
            # A sender that is disconnected will resend.
            with suppress(zmq.ZMQError):
                self._router.send_multipart([peer, sender, number], zmq.NOBLOCK)

    def close(self) -> None:
        """Close all sockets."""
        self._router.close(0)
        self._publisher.close()
        self._authenticator.stop()
        self._context.term()

    def _is_new(self, sender: bytes, number: int) -> bool:
        known = self._seen.setdefault(sender, OrderedDict())
        self._seen.move_to_end(sender)
        if len(self._seen) > _SENDERS:
            self._seen.popitem(last=False)
        if number in known:
            return False
        known[number] = None
        if len(known) > _REMEMBERED:
            known.popitem(last=False)
        return True


class _KeyCheck:
    """Check of clients' public keys; only the job's key is accepted."""

    def __init__(self, client: str) -> None:
        self._client = z85.decode(client.encode())

    def callback(self, _domain: str, key: bytes) -> bool:
        """Return whether a client's public key is the job's; ZeroMQ calls this for each new connection."""
        return key in (self._client, z85.encode(self._client))


def main(arguments: Sequence[str] | None = None) -> int:
    """Receive until SIGTERM, SIGINT or SIGHUP; return 0, or 1 where it cannot listen."""
    options = _parser().parse_args(arguments)
    os.umask(0o077)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: ended.set())
    parent = os.getppid() if options.with_parent == 0 else options.with_parent
    try:
        keys = FanInKeys.from_environment(os.environ)
        generate = keys is None or not keys.server_secret
        keys = FanInKeys.make() if keys is None or generate else keys
        receiver = FanInReceiver(options.sockets, keys, address=options.address, port=options.port)
    except SourceError as error:
        print(f"fan-in: {error}", file=sys.stderr)  # noqa: T201 - written to the job's log
        return 1
    answer: dict[str, Any] = {"port": receiver.port}
    if generate:
        answer |= {"environment": keys.to_environment(), "head": keys.to_environment(head=True)}
    print(json.dumps(answer), flush=True)  # noqa: T201 - read by the job
    receiver.run(ended, parent=parent)
    receiver.close()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m gipfel_extension.telemetry.live.fan_in",
        description="Publish the ticks of a job's other nodes for readers on this node.",
    )
    parser.add_argument("--sockets", type=Path, required=True, help="directory of the live streams' sockets")
    parser.add_argument("--address", default="*", help="address to listen on (default: every interface)")
    parser.add_argument("--port", type=int, default=0, help="port to listen on (default: any free port)")
    parser.add_argument(
        "--with-parent", nargs="?", type=int, const=0, help="end when the parent process, with this id, ends"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
