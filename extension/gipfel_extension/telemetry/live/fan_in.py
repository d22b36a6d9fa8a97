"""Sender of the fan-in: sends a node's ticks to the head node, encrypted and without delaying the recorder.

Each tick is kept until the head node acknowledges it, and is resent after a timeout, so that a restarted head
node receives the ticks that it missed. The head node drops duplicates by their numbers. Each job has its own
keys, which authorize the senders.
"""

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import zmq

from ..sample import SourceError
from .ticks import Tick

_SERVER, _SERVER_SECRET = "GIPFEL_FAN_IN_SERVER", "GIPFEL_FAN_IN_SERVER_SECRET"
_CLIENT, _CLIENT_SECRET = "GIPFEL_FAN_IN_CLIENT", "GIPFEL_FAN_IN_CLIENT_SECRET"
#: Maximum number of unacknowledged ticks; beyond it the oldest are dropped and counted.
CAPACITY = 600
#: Seconds without acknowledgement after which a tick is resent.
_ACK_TIMEOUT_S = 3.0
_MAX_MESSAGE = 16 * 2**20


@dataclass(frozen=True, repr=False)
class FanInKeys:
    """Two CURVE key pairs as Z85 text: that of the head node, and the one that all nodes of the job share.

    They are passed only in the environment. Senders have no ``server_secret``.
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
        #: Id of this process, whose successor counts from 1 again.
        self._sender = os.urandom(8)
        self._number = 0
        self._waiting: OrderedDict[int, Tick] = OrderedDict()
        self._sent: OrderedDict[int, float] = OrderedDict()
        self.dropped = 0
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        options = {
            zmq.LINGER: 0,
            zmq.SNDHWM: 1000,
            # Without a connection ticks wait here, where the oldest can be dropped.
            zmq.IMMEDIATE: 1,
            zmq.RECONNECT_IVL: 200,
            zmq.RECONNECT_IVL_MAX: 5000,
            zmq.HEARTBEAT_IVL: 2000,
            zmq.HEARTBEAT_TIMEOUT: 6000,
            zmq.MAXMSGSIZE: _MAX_MESSAGE,
            zmq.IPV6: 1,
        }
        for option, value in options.items():
            self._socket.setsockopt(option, value)
        self._socket.curve_serverkey = keys.server.encode()
        self._socket.curve_publickey = keys.client.encode()
        self._socket.curve_secretkey = keys.client_secret.encode()
        try:
            self._socket.connect(endpoint)
        except zmq.ZMQError as error:
            self._release()
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
        self._waiting[self._number] = tick
        while len(self._waiting) > self._capacity:
            oldest, _ = self._waiting.popitem(last=False)
            self._sent.pop(oldest, None)
            self.dropped += 1
        self._exchange()

    def close(self, *, limit: float = 2.0) -> None:
        """Wait up to `limit` seconds until the head node acknowledges all ticks, and close the socket."""
        deadline = self._monotonic() + limit
        self._exchange()
        while self._waiting and self._monotonic() < deadline:
            self._socket.poll(50)
            self._exchange()
        self._release()

    def _exchange(self) -> None:
        """Receive acknowledgements, and send the ticks that are unsent or not acknowledged in time."""
        self._receive_acknowledgements()
        now = self._monotonic()
        for number, tick in list(self._waiting.items()):
            if now - self._sent.get(number, -_ACK_TIMEOUT_S) < _ACK_TIMEOUT_S:
                continue
            content = replace(tick, dropped=self.dropped).encode()
            try:
                self._socket.send_multipart([self._sender, number.to_bytes(8), content], zmq.NOBLOCK)
            except zmq.Again:
                return
            self._sent[number] = now

    def _receive_acknowledgements(self) -> None:
        while True:
            try:
                parts = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(parts) == 2 and parts[0] == self._sender:
                number = int.from_bytes(parts[1])
                self._waiting.pop(number, None)
                self._sent.pop(number, None)

    def _release(self) -> None:
        self._socket.close(0)
        self._context.term()
