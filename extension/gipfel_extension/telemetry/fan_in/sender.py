"""A node's end of the fan-in: its ticks go to the head node, encrypted, and never hold up its recorder.

Each tick is kept until the head has acknowledged it, and sent again after a while: a head that was away, or
was started again, gets what it missed. What it gets twice it leaves out by its number.
"""

import os
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

import zmq

from ..live import Tick
from ..sample import SourceError
from .keys import FanInKeys

#: Ticks that wait for the head; beyond, the oldest are dropped and counted.
CAPACITY = 600

#: How long a tick's acknowledgement may take before it is sent again.
_PATIENCE_S = 3.0
_LONGEST_MESSAGE = 16 * 2**20


class FanInSender:
    """Sends ticks to the head; belongs to one thread and never waits, but in :meth:`close`.

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
        """Give the head some seconds to take what waits, and let go."""
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
