"""Messages between the coordinator and its agents."""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from gipfel_cluster.model import Frozen, OneLine

from ..model import CheckResult
from ..probing import ProbeAnswer, ProbeSpec
from ..protocol import ProtocolCheck

#: Maximum size of a message.
MAX_MESSAGE_BYTES = 8 << 20


class Message(Frozen):
    """Base class of messages."""

    def encode(self) -> bytes:
        """Return the message as one line: the name of its class, and its fields as JSON."""
        return f"{type(self).__name__} {self.model_dump_json()}".encode()


class TaskMessage(Message):
    """Base class of messages about the task with a number."""

    task: int


class Hello(Message):
    """An agent introduces itself; it repeats this until it gets `Welcome`.

    Parameters
    ----------
    token
        The secret of the run.
    address
        Address by which other nodes reach this one.
    gpus
        Number of GPUs that the job has on this node.
    switch
        Name of its switch, where Slurm provides it.
    redundant
        True if another task of the node is its agent; this one only waits for the end.
    """

    token: str
    node: Annotated[OneLine, Field(min_length=1, max_length=256)]
    address: OneLine
    gpus: Annotated[int, Field(ge=0, le=1024)] = 0
    switch: OneLine = ""
    redundant: bool = False


class Heartbeat(Message):
    """The sender is alive; both sides send this once a second."""


class CheckDone(TaskMessage):
    """Results of a check on this node; `problem` says why there are none."""

    results: tuple[CheckResult, ...] = ()
    problem: str = ""


class TorchImported(Message):
    """The node's fork server has imported torch."""

    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]


class PortFound(TaskMessage):
    """A free port of this node."""

    port: Annotated[int, Field(ge=1, le=65535)]


class RankResult(Frozen):
    """Result of one rank of a probe.

    Parameters
    ----------
    died
        True if it was killed or stopped by a signal that Gipfel did not send.
    """

    rank: int
    answer: ProbeAnswer
    died: bool = False


class RanksFinished(TaskMessage):
    """Results of all ranks of a probe on this node."""

    results: tuple[RankResult, ...]


class RankDied(TaskMessage):
    """A rank of a probe has died while others are running."""


class AgentEnded(Message):
    """An agent ends; `reason` is empty if the coordinator has ended the run."""

    reason: str = ""


class Welcome(Message):
    """The coordinator has accepted this agent."""


class RunCheck(TaskMessage):
    """Run one check of the protocol on this node.

    Parameters
    ----------
    torch
        "now": the check starts after torch has been imported. "later": a later check needs torch, which is
        imported while this one runs.
    """

    entry: ProtocolCheck
    limit_s: float
    torch: Literal["", "later", "now"] = ""


class FindPort(TaskMessage):
    """Find a free port on this node."""


class RunRanks(TaskMessage):
    """Run these ranks of a probe, with the environment variables of torch.distributed.

    Parameters
    ----------
    ranks
        Their ranks in the world of size `world`, in the order of the local ranks.
    address
        Address by which the other nodes reach this one.
    """

    spec: ProbeSpec
    ranks: tuple[int, ...]
    world: int
    master: str
    port: int
    address: str


class Stop(TaskMessage):
    """Stop the task with this number."""


class EndRun(Message):
    """The run has ended; `status` is the exit status for the agent's task."""

    status: int


_FROM_AGENT = (
    Hello, Heartbeat, CheckDone, TorchImported, PortFound, RanksFinished, RankDied, AgentEnded,
)  # fmt: skip
_FROM_COORDINATOR = (Welcome, Heartbeat, RunCheck, FindPort, RunRanks, Stop, EndRun)


def from_agent(data: bytes) -> Message | None:
    """Parse a message of an agent; return None if it is not valid."""
    return _parse(data, _FROM_AGENT)


def from_coordinator(data: bytes) -> Message | None:
    """Parse a message of the coordinator; return None if it is not valid."""
    return _parse(data, _FROM_COORDINATOR)


def _parse(data: bytes, kinds: Iterable[type[Message]]) -> Message | None:
    name, _, fields = data.partition(b" ")
    try:
        kind = next(each for each in kinds if each.__name__.encode() == name)
        return kind.model_validate_json(fields)
    except (StopIteration, ValidationError, RecursionError):
        return None
