"""The agents as the coordinator sees them: who has come, who is lost and why."""

import errno
import hmac
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import zmq

from gipfel_cluster.model import Frozen

from .messages import Beat, Bye, CheckDone, Hello, Leaving, TorchImported, Welcome, from_agent
from .rendezvous import Door

#: Seconds without a word from an agent, which speaks once a second.
SILENCE_S = 15.0
#: Seconds in which a broken connection may come back.
_GONE_S = 4.0
_BEAT_S = 1.0
_MOST_AT_ONCE = 1000


@dataclass
class Peer:
    """An agent that has said hello."""

    identity: bytes
    hello: Hello
    heard: float = field(default_factory=time.monotonic)
    gone_since: float | None = None


class Peers:
    """The agents of a run.

    Parameters
    ----------
    nodes
        Those that are expected; whoever comes from elsewhere only waits for the end.
    """

    def __init__(self, door: Door, nodes: Sequence[str], *, silence_s: float = SILENCE_S) -> None:
        self._door = door
        self._nodes = frozenset(nodes)
        self._silence_s = silence_s
        self._by_identity: dict[bytes, Peer] = {}
        self._idle: set[bytes] = set()
        self._beaten = 0.0
        self.present: dict[str, Peer] = {}
        self.lost: dict[str, str] = {}
        self.notes: list[str] = []
        #: Node to the seconds that importing torch took there.
        self.torch_import_s: dict[str, float] = {}

    def send(self, node: str, message: Frozen) -> None:
        """Say something to the agent of a node; nothing where it is lost."""
        peer = self.present.get(node)
        if peer is not None:
            self._send(peer.identity, message)

    def lose(self, node: str, reason: str) -> None:
        """Give an agent up; the first reason stays."""
        peer = self.present.pop(node, None)
        if peer is not None:
            self._by_identity.pop(peer.identity, None)
            # It is told to end: it may only have been slow.
            self._send(peer.identity, Bye(status=1))
        self.lost.setdefault(node, reason)

    def listen(self, seconds: float) -> Iterator[tuple[str, Frozen]]:
        """What agents say within so many seconds, with their nodes; beats and greetings are answered here."""
        now = time.monotonic()
        if now - self._beaten > _BEAT_S:
            self._beaten = now
            for identity in (*self._by_identity, *self._idle):
                self._send(identity, Beat())
        if self._door.socket.poll(int(seconds * 1000)):
            for _ in range(_MOST_AT_ONCE):
                try:
                    identity, *parts = self._door.socket.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    break
                yield from self._heard(identity, parts[-1] if parts else b"")
        self._watch()

    def farewell(self, status: int) -> None:
        """Tell everybody that the run has ended."""
        for identity in (*self._by_identity, *self._idle):
            self._send(identity, Bye(status=status))

    def _heard(self, identity: bytes, data: bytes) -> Iterator[tuple[str, Frozen]]:
        message = from_agent(data)
        if isinstance(message, Hello):
            self._greet(identity, message)
            return
        peer = self._by_identity.get(identity)
        if peer is None:
            return
        peer.heard = time.monotonic()
        node = peer.hello.node
        if message is None or not _own(message, node):
            self.lose(node, "Its agent sent something that can't be read.")
        elif isinstance(message, Leaving):
            self.lose(node, f"Its agent ended: {message.reason or 'nobody knows why'}.")
        elif isinstance(message, TorchImported):
            self.torch_import_s[node] = message.seconds
        elif not isinstance(message, Beat):
            yield node, message

    def _greet(self, identity: bytes, hello: Hello) -> None:
        # As bytes: of text it takes ASCII alone, and what a stranger sends must not end the run.
        if not hmac.compare_digest(hello.token.encode(), self._door.rendezvous.token.encode()):
            return
        node = hello.node
        if identity not in self._by_identity and identity not in self._idle:
            if hello.extra or node in self.present or node in self.lost:
                self._idle.add(identity)
            elif node not in self._nodes:
                self._idle.add(identity)
                self.notes.append(f"{node} is no node of this run: its agent was not used.")
            else:
                self._by_identity[identity] = self.present[node] = Peer(identity, hello)
        self._send(identity, Welcome())

    def _watch(self) -> None:
        now = time.monotonic()
        for node, peer in list(self.present.items()):
            if peer.gone_since is not None and now - peer.gone_since > _GONE_S:
                self.lose(node, "Its agent is gone: it was killed, or the node was cut off.")
            elif now - peer.heard > self._silence_s:
                self.lose(
                    node, f"Its agent was stopped or hangs: it has not answered for {self._silence_s:g} s."
                )

    def _send(self, identity: bytes, message: Frozen) -> None:
        peer = self._by_identity.get(identity)
        try:
            self._door.socket.send_multipart([identity, message.model_dump_json().encode()], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            # Where its queue is full, silence will tell.
            if peer and peer.gone_since is None and error.errno == errno.EHOSTUNREACH:
                peer.gone_since = time.monotonic()
        else:
            if peer:
                peer.gone_since = None


def _own(message: Frozen, node: str) -> bool:
    """Whether an agent speaks of its own node alone."""
    return not isinstance(message, CheckDone) or all(each.node == node for each in message.results)
