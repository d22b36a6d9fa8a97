"""Coordinator's side of the agents: connections and tasks.

`AgentPool` holds the connected agents, and the lost ones with the reason. `Dispatcher` gives tasks to agents;
a `PendingTask` is answered, or lost with its node.
"""

import errno
import hmac
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import zmq

from .messages import (
    AgentEnded,
    CheckDone,
    EndRun,
    Heartbeat,
    Hello,
    Message,
    RankDied,
    Stop,
    TaskMessage,
    TorchImported,
    Welcome,
    from_agent,
)
from .rendezvous import CoordinatorSocket

#: Seconds without a message after which an agent is lost; it sends one every second.
SILENCE_S = 15.0
#: Seconds within which a broken connection must be restored.
_RECONNECT_S = 4.0
_HEARTBEAT_S = 1.0
_MAX_BATCH = 1000
#: Seconds after a task's time limit within which the agent must report the end of the task.
_REPORT_LIMIT_S = 20.0
_TICK_S = 0.2
_INVALID = "Its agent sent an invalid message."


@dataclass
class ConnectedAgent:
    """Agent that has sent `Hello`."""

    identity: bytes
    hello: Hello
    last_heard: float = field(default_factory=time.monotonic)
    disconnected_since: float | None = None


class AgentPool:
    """Connected and lost agents of a run.

    Parameters
    ----------
    nodes
        Expected nodes; an agent of another node is not used, and only told when the run ends.
    """

    def __init__(
        self, listener: CoordinatorSocket, nodes: Sequence[str], *, silence_s: float = SILENCE_S
    ) -> None:
        self._listener = listener
        self._nodes = frozenset(nodes)
        self._silence_s = silence_s
        self._by_identity: dict[bytes, ConnectedAgent] = {}
        self._idle: set[bytes] = set()
        self._last_heartbeat = 0.0
        self.present: dict[str, ConnectedAgent] = {}
        self.lost: dict[str, str] = {}
        self.notes: list[str] = []
        #: Seconds that importing torch took, by node.
        self.torch_import_s: dict[str, float] = {}

    def send(self, node: str, message: Message) -> None:
        """Send a message to the agent of a node, unless it is lost."""
        agent = self.present.get(node)
        if agent is not None:
            self._send(agent.identity, message)

    def gpus(self, nodes: Iterable[str]) -> int:
        """Return the largest number of GPUs that the job has on one of these nodes, without lost ones."""
        return max((self.present[node].hello.gpus for node in nodes if node in self.present), default=0)

    def lose(self, node: str, reason: str) -> None:
        """Mark an agent as lost; a later reason does not replace the first."""
        agent = self.present.pop(node, None)
        if agent is not None:
            self._by_identity.pop(agent.identity, None)
            # It may still run, and must end.
            self._send(agent.identity, EndRun(status=1))
        self.lost.setdefault(node, reason)

    def receive(self, seconds: float) -> Iterator[tuple[str, TaskMessage]]:
        """Yield messages of agents, waiting up to `seconds`; those about the connection are handled here."""
        now = time.monotonic()
        if now - self._last_heartbeat > _HEARTBEAT_S:
            self._last_heartbeat = now
            for identity in (*self._by_identity, *self._idle):
                self._send(identity, Heartbeat())
        if self._listener.socket.poll(int(seconds * 1000)):
            for _ in range(_MAX_BATCH):
                try:
                    identity, *parts = self._listener.socket.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    break
                yield from self._on_message(identity, parts[-1] if parts else b"")
        self._lose_silent()

    def end_run(self, status: int) -> None:
        """Tell all agents to end with this exit status."""
        for identity in (*self._by_identity, *self._idle):
            self._send(identity, EndRun(status=status))

    def _on_message(self, identity: bytes, data: bytes) -> Iterator[tuple[str, TaskMessage]]:
        message = from_agent(data)
        if isinstance(message, Hello):
            self._on_hello(identity, message)
            return
        agent = self._by_identity.get(identity)
        if agent is None:
            return
        agent.last_heard = time.monotonic()
        node = agent.hello.node
        match message:
            case None:
                self.lose(node, _INVALID)
            case CheckDone() if any(each.node != node for each in message.results):
                self.lose(node, _INVALID)
            case AgentEnded():
                self.lose(node, f"Its agent ended: {message.reason or 'no reason given'}.")
            case TorchImported():
                self.torch_import_s[node] = message.seconds
            case TaskMessage():
                yield node, message

    def _on_hello(self, identity: bytes, hello: Hello) -> None:
        # As bytes: compare_digest accepts only ASCII text, and an invalid token must not end the run.
        if not hmac.compare_digest(hello.token.encode(), self._listener.rendezvous.token.encode()):
            return
        node = hello.node
        if identity not in self._by_identity and identity not in self._idle:
            if hello.redundant or node in self.present or node in self.lost:
                self._idle.add(identity)
            elif node not in self._nodes:
                self._idle.add(identity)
                self.notes.append(f"{node} is not a node of this run: its agent was not used.")
            else:
                self._by_identity[identity] = self.present[node] = ConnectedAgent(identity, hello)
        self._send(identity, Welcome())

    def _lose_silent(self) -> None:
        now = time.monotonic()
        for node, agent in list(self.present.items()):
            if agent.disconnected_since is not None and now - agent.disconnected_since > _RECONNECT_S:
                self.lose(node, "Its agent is disconnected: it was killed, or the node lost its network.")
            elif now - agent.last_heard > self._silence_s:
                self.lose(
                    node, f"Its agent was stopped or hangs: it has not responded for {self._silence_s:g} s."
                )

    def _send(self, identity: bytes, message: Message) -> None:
        agent = self._by_identity.get(identity)
        try:
            self._listener.socket.send_multipart([identity, message.encode()], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            # If its queue is full, the agent is lost after `silence_s`.
            if agent and agent.disconnected_since is None and error.errno == errno.EHOSTUNREACH:
                agent.disconnected_since = time.monotonic()
        else:
            if agent:
                agent.disconnected_since = None


class RunEnded(Exception):  # noqa: N818 - not an error
    """The run ends before all its checks are done: its time is up, or it was interrupted."""


@dataclass(eq=False)
class PendingTask:
    """Task that an agent is working on.

    Parameters
    ----------
    due
        When its node counts as lost, by `time.monotonic`.
    answer
        The answer; None before it arrives, and if the node was lost.
    died
        Whether one of its ranks has died while others are running.
    """

    number: int
    node: str
    due: float
    answer: Message | None = None
    done: bool = False
    died: bool = False


@dataclass
class Dispatcher:
    """Dispatcher of tasks to agents, which collects the answers.

    Parameters
    ----------
    end_reason
        Returns why the run must end now; empty if it need not.
    tick
        Called a few times a second while waiting.
    due
        When the run must end, by `clock`; infinite if it has no limit.
    """

    pool: AgentPool
    end_reason: Callable[[], str]
    tick: Callable[[], None] = lambda: None
    due: float = math.inf
    clock: Callable[[], float] = time.monotonic
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    _open: dict[int, PendingTask] = field(default_factory=dict)

    def submit(self, node: str, make: Callable[..., TaskMessage], limit_s: float) -> PendingTask:
        """Give a node a task that must be done within ``limit_s`` seconds.

        ``make`` returns the message for the argument ``task``, its number. The task of a lost node is done at
        once, without an answer.
        """
        pending = PendingTask(next(self._numbers), node, time.monotonic() + limit_s + _REPORT_LIMIT_S)
        if node in self.pool.present:
            self._open[pending.number] = pending
            self.pool.send(node, make(task=pending.number))
        else:
            pending.done = True
        return pending

    def process_messages(self) -> None:
        """Handle messages of agents for up to `_TICK_S`, and mark agents with an overdue task as lost.

        Raises
        ------
        RunEnded
            With the reason.
        """
        for node, message in self.pool.receive(_TICK_S):
            self._on_answer(node, message)
        now = time.monotonic()
        for pending in list(self._open.values()):
            if pending.node not in self.pool.present:
                self._close(pending)
            elif now > pending.due:
                self.pool.lose(pending.node, "Its agent reported no result within the check's time limit.")
                self._close(pending)
        self.tick()
        reason = self.end_reason()
        if reason:
            raise RunEnded(reason)

    def give_up(self, pending: PendingTask) -> None:
        """Stop a task and don't wait for it."""
        self.pool.send(pending.node, Stop(task=pending.number))
        self._close(pending)

    def _on_answer(self, node: str, message: TaskMessage) -> None:
        pending = self._open.get(message.task)
        if pending is None or pending.node != node:
            return
        if isinstance(message, RankDied):
            pending.died = True
        else:
            pending.answer = message
            self._close(pending)

    def _close(self, pending: PendingTask) -> None:
        pending.done = True
        self._open.pop(pending.number, None)
