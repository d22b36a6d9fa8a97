"""A node's end of the fan-in: its ticks go to the head node, encrypted, and never delay its recorder.

Each tick is kept until the head has acknowledged it, and sent again after a while: a head that was away, or
restarted, gets what it missed. It leaves out by its number what it gets twice. The keys authorize the
senders; each job has its own.
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
#: Ticks that wait for the head; beyond, the oldest are dropped and counted.
CAPACITY = 600
#: How long a tick's acknowledgement may take before it is sent again.
_PATIENCE_S = 3.0
_LONGEST_MESSAGE = 16 * 2**20


@dataclass(frozen=True, repr=False)
class FanInKeys:
    """Two CURVE key pairs as Z85 text: the head's, and the one that all nodes of the job share.

    They travel in the environment alone. A sender's has no ``server_secret``.
    """

    server: str
    client: str
    client_secret: str
    server_secret: str = ""

    @classmethod
    def make(cls) -> "FanInKeys":
        """Make new keys."""
        server, server_secret = (key.decode() for key in zmq.curve_keypair())
        client, client_secret = (key.decode() for key in zmq.curve_keypair())
        return cls(server, client, client_secret, server_secret)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "FanInKeys | None":
        """Return the keys in a process's environment; None where there are none.

        Raises
        ------
        SourceError
            A variable holds no key.
        """
        given = [environment.get(name, "") for name in (_SERVER, _CLIENT, _CLIENT_SECRET, _SERVER_SECRET)]
        if not all(given[:3]):
            return None
        # 32 bytes in Z85.
        if any(len(key) != 40 for key in given if key):
            raise SourceError(
                "The keys of the fan-in are not valid CURVE keys.", "The job makes them; restart it."
            )
        return cls(*given)

    def to_environment(self, *, head: bool = False) -> dict[str, str]:
        """Return variables for a sender, or for the head, which holds the server's secret too."""
        given = {_SERVER: self.server, _CLIENT: self.client, _CLIENT_SECRET: self.client_secret}
        return {**given, _SERVER_SECRET: self.server_secret} if head else given


class FanInSender:
    """Sender of ticks to the head; belongs to one thread and never waits, except in :meth:`close`.

    Parameters
    ----------
    endpoint
        ``tcp://HOST:PORT`` of the head.
    capacity
        Ticks that are kept for a head that doesn't answer.

    Raises
    ------
    SourceError
        The endpoint can't be one.
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
        #: This process: the next of the same name counts from 1 again.
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
            # Without a head ticks wait here, where they can be dropped by age.
            zmq.IMMEDIATE: 1,
            zmq.RECONNECT_IVL: 200,
            zmq.RECONNECT_IVL_MAX: 5000,
            zmq.HEARTBEAT_IVL: 2000,
            zmq.HEARTBEAT_TIMEOUT: 6000,
            zmq.MAXMSGSIZE: _LONGEST_MESSAGE,
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
                f"There is no live stream to {endpoint!r}: {error}.", "It must be tcp://HOST:PORT."
            ) from error

    @property
    def waiting(self) -> int:
        """Ticks that the head has not acknowledged."""
        return len(self._waiting)

    def send(self, tick: Tick) -> None:
        """Send a tick, now or when the head is there."""
        self._number += 1
        self._waiting[self._number] = tick
        while len(self._waiting) > self._capacity:
            oldest, _ = self._waiting.popitem(last=False)
            self._sent.pop(oldest, None)
            self.dropped += 1
        self._exchange()

    def close(self, *, limit: float = 2.0) -> None:
        """Give the head some seconds to take what waits, and close the socket."""
        ends = self._monotonic() + limit
        self._exchange()
        while self._waiting and self._monotonic() < ends:
            self._socket.poll(50)
            self._exchange()
        self._release()

    def _exchange(self) -> None:
        """Take acknowledgements, and send what was not sent or not acknowledged in time."""
        self._acknowledged()
        now = self._monotonic()
        for number, tick in list(self._waiting.items()):
            if now - self._sent.get(number, -_PATIENCE_S) < _PATIENCE_S:
                continue
            content = replace(tick, dropped=self.dropped).encode()
            try:
                self._socket.send_multipart([self._sender, number.to_bytes(8), content], zmq.NOBLOCK)
            except zmq.Again:
                return
            self._sent[number] = now

    def _acknowledged(self) -> None:
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
