"""Agents as the coordinator sees them, and the tasks that they were given.

`AgentPool` knows which agents have connected and which are lost and why. `Dispatcher` gives tasks to agents;
a `PendingTask` is answered, or lost with its node.
"""

import errno
import hmac
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import zmq

from gipfel_cluster.model import Frozen

from .messages import (
    Bye,
    CheckDone,
    Heartbeat,
    Hello,
    Leaving,
    PortFound,
    RankDied,
    RanksDone,
    Stop,
    TorchImported,
    Welcome,
    from_agent,
)
from .rendezvous import Listener

#: Seconds without a word from an agent, which speaks once a second.
SILENCE_S = 15.0
#: Seconds in which a broken connection may come back.
_GONE_S = 4.0
_BEAT_S = 1.0
_MOST_AT_ONCE = 1000
#: Seconds that an agent may be late with what its own limits should have ended.
_LATE_S = 20.0
_TICK_S = 0.2


@dataclass
class ConnectedAgent:
    """Agent that has introduced itself."""

    identity: bytes
    hello: Hello
    last_heard: float = field(default_factory=time.monotonic)
    gone_since: float | None = None


class AgentPool:
    """Agents of a run.

    Parameters
    ----------
    nodes
        Those that are expected; whoever comes from elsewhere only waits for the end.
    """

    def __init__(self, listener: Listener, nodes: Sequence[str], *, silence_s: float = SILENCE_S) -> None:
        self._listener = listener
        self._nodes = frozenset(nodes)
        self._silence_s = silence_s
        self._by_identity: dict[bytes, ConnectedAgent] = {}
        self._idle: set[bytes] = set()
        self._beaten = 0.0
        self.present: dict[str, ConnectedAgent] = {}
        self.lost: dict[str, str] = {}
        self.notes: list[str] = []
        #: Node to the seconds that importing torch took there.
        self.torch_import_s: dict[str, float] = {}

    def send(self, node: str, message: Frozen) -> None:
        """Send a message to the agent of a node; do nothing where it is lost."""
        agent = self.present.get(node)
        if agent is not None:
            self._send(agent.identity, message)

    def lose(self, node: str, reason: str) -> None:
        """Give an agent up; the first reason stays."""
        agent = self.present.pop(node, None)
        if agent is not None:
            self._by_identity.pop(agent.identity, None)
            # It must end: it may only have been slow.
            self._send(agent.identity, Bye(status=1))
        self.lost.setdefault(node, reason)

    def listen(self, seconds: float) -> Iterator[tuple[str, Frozen]]:
        """Yield messages of agents for so many seconds; heartbeats and greetings are answered here."""
        now = time.monotonic()
        if now - self._beaten > _BEAT_S:
            self._beaten = now
            for identity in (*self._by_identity, *self._idle):
                self._send(identity, Heartbeat())
        if self._listener.socket.poll(int(seconds * 1000)):
            for _ in range(_MOST_AT_ONCE):
                try:
                    identity, *parts = self._listener.socket.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    break
                yield from self._on_message(identity, parts[-1] if parts else b"")
        self._watch()

    def farewell(self, status: int) -> None:
        """Report the end of the run to all agents."""
        for identity in (*self._by_identity, *self._idle):
            self._send(identity, Bye(status=status))

    def _on_message(self, identity: bytes, data: bytes) -> Iterator[tuple[str, Frozen]]:
        message = from_agent(data)
        if isinstance(message, Hello):
            self._greet(identity, message)
            return
        agent = self._by_identity.get(identity)
        if agent is None:
            return
        agent.last_heard = time.monotonic()
        node = agent.hello.node
        if message is None or not _own(message, node):
            self.lose(node, "Its agent sent something that can't be read.")
        elif isinstance(message, Leaving):
            self.lose(node, f"Its agent ended: {message.reason or 'no reason given'}.")
        elif isinstance(message, TorchImported):
            self.torch_import_s[node] = message.seconds
        elif not isinstance(message, Heartbeat):
            yield node, message

    def _greet(self, identity: bytes, hello: Hello) -> None:
        # As bytes: of text it takes ASCII alone, and what a stranger sends must not end the run.
        if not hmac.compare_digest(hello.token.encode(), self._listener.rendezvous.token.encode()):
            return
        node = hello.node
        if identity not in self._by_identity and identity not in self._idle:
            if hello.extra or node in self.present or node in self.lost:
                self._idle.add(identity)
            elif node not in self._nodes:
                self._idle.add(identity)
                self.notes.append(f"{node} is not a node of this run: its agent was not used.")
            else:
                self._by_identity[identity] = self.present[node] = ConnectedAgent(identity, hello)
        self._send(identity, Welcome())

    def _watch(self) -> None:
        now = time.monotonic()
        for node, agent in list(self.present.items()):
            if agent.gone_since is not None and now - agent.gone_since > _GONE_S:
                self.lose(node, "Its agent is gone: it was killed, or the node was cut off.")
            elif now - agent.last_heard > self._silence_s:
                self.lose(
                    node, f"Its agent was stopped or hangs: it has not answered for {self._silence_s:g} s."
                )

    def _send(self, identity: bytes, message: Frozen) -> None:
        agent = self._by_identity.get(identity)
        try:
            self._listener.socket.send_multipart([identity, message.model_dump_json().encode()], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            # Where its queue is full, silence will tell.
            if agent and agent.gone_since is None and error.errno == errno.EHOSTUNREACH:
                agent.gone_since = time.monotonic()
        else:
            if agent:
                agent.gone_since = None


def _own(message: Frozen, node: str) -> bool:
    """Return whether an agent reports on its own node alone."""
    return not isinstance(message, CheckDone) or all(each.node == node for each in message.results)


class RunEnded(Exception):  # noqa: N818 - no mistake
    """The run ends before its checks have: its time is up, or it was interrupted."""


@dataclass
class PendingTask:
    """Task that an agent was given.

    Parameters
    ----------
    answer
        The answer; None until then, and for good where the node was lost.
    died
        Whether one of its ranks has died while others run.
    """

    number: int
    node: str
    due: float
    answer: Frozen | None = None
    done: bool = False
    died: bool = False


@dataclass
class Dispatcher:
    """Gives tasks to agents and collects the answers.

    Parameters
    ----------
    ended
        Why the run must end now; empty as long as it need not.
    tick
        Called a few times a second while something is waited for.
    due
        When the run must end, by `clock`; infinite where it has no limit.
    """

    pool: AgentPool
    ended: Callable[[], str]
    tick: Callable[[], None] = lambda: None
    due: float = math.inf
    clock: Callable[[], float] = time.monotonic
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    _open: dict[int, PendingTask] = field(default_factory=dict)

    def give(self, node: str, make: Callable[[int], Frozen], limit_s: float) -> PendingTask:
        """Have a node do a task that takes at most so many seconds."""
        pending = PendingTask(next(self._numbers), node, time.monotonic() + limit_s + _LATE_S)
        if node in self.pool.present:
            self._open[pending.number] = pending
            self.pool.send(node, make(pending.number))
        else:
            pending.done = True
        return pending

    def pump(self) -> None:
        """Listen for a moment.

        Raises
        ------
        RunEnded
            With the reason.
        """
        for node, message in self.pool.listen(_TICK_S):
            self._on_answer(node, message)
        now = time.monotonic()
        for pending in list(self._open.values()):
            if pending.node not in self.pool.present:
                self._close(pending)
            elif now > pending.due:
                self.pool.lose(pending.node, "Its agent gave no result within the check's time limit.")
                self._close(pending)
        self.tick()
        reason = self.ended()
        if reason:
            raise RunEnded(reason)

    def wait(self, pending_tasks: Sequence[PendingTask]) -> None:
        """Listen until all of them are done."""
        while not all(each.done for each in pending_tasks):
            self.pump()

    def give_up(self, pending: PendingTask) -> None:
        """End what a node does and wait for it no longer."""
        self.pool.send(pending.node, Stop(task=pending.number))
        self._close(pending)

    def _on_answer(self, node: str, message: Frozen) -> None:
        if not isinstance(message, CheckDone | PortFound | RanksDone | RankDied):
            return
        pending = self._open.get(message.task)
        if pending is None or pending.node != node:
            return
        if isinstance(message, RankDied):
            pending.died = True
            return
        pending.answer = message
        self._close(pending)

    def _close(self, pending: PendingTask) -> None:
        pending.done = True
        self._open.pop(pending.number, None)
