"""Messages between the coordinator and its agents; each is one JSON document."""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from gipfel_cluster.model import Frozen, OneLine

from ..model import CheckResult
from ..probing import ProbeAnswer, ProbeSpec
from ..protocol import ProtocolCheck

#: Maximum size of a message.
MAX_MESSAGE_BYTES = 8 << 20


class Hello(Frozen):
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

    kind: Literal["hello"] = "hello"
    token: str
    node: Annotated[OneLine, Field(min_length=1, max_length=256)]
    address: OneLine
    gpus: Annotated[int, Field(ge=0, le=1024)] = 0
    switch: OneLine = ""
    redundant: bool = False


class Heartbeat(Frozen):
    """The sender is alive; both sides send this once a second."""

    kind: Literal["heartbeat"] = "heartbeat"


class CheckDone(Frozen):
    """Results of a check on this node; `problem` says why there are none."""

    kind: Literal["check_done"] = "check_done"
    task: int
    results: tuple[CheckResult, ...] = ()
    problem: str = ""


class TorchImported(Frozen):
    """The node's fork server has imported torch."""

    kind: Literal["torch_imported"] = "torch_imported"
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]


class PortFound(Frozen):
    """A free port of this node."""

    kind: Literal["port_found"] = "port_found"
    task: int
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


class RanksFinished(Frozen):
    """Results of all ranks of a probe on this node."""

    kind: Literal["ranks_finished"] = "ranks_finished"
    task: int
    results: tuple[RankResult, ...]


class RankDied(Frozen):
    """A rank of a probe has died while others are running."""

    kind: Literal["rank_died"] = "rank_died"
    task: int


class AgentEnded(Frozen):
    """An agent ends; `reason` is empty if the coordinator has ended the run."""

    kind: Literal["agent_ended"] = "agent_ended"
    reason: str = ""


class Welcome(Frozen):
    """The coordinator has accepted this agent."""

    kind: Literal["welcome"] = "welcome"


class RunCheck(Frozen):
    """Run one check of the protocol on this node.

    Parameters
    ----------
    torch
        "now": the check starts after torch has been imported. "later": a later check needs torch, which is
        imported while this one runs.
    """

    kind: Literal["run_check"] = "run_check"
    task: int
    entry: ProtocolCheck
    limit_s: float
    torch: Literal["", "later", "now"] = ""


class FindPort(Frozen):
    """Find a free port on this node."""

    kind: Literal["find_port"] = "find_port"
    task: int


class RunRanks(Frozen):
    """Run these ranks of a probe, with the environment variables of torch.distributed.

    Parameters
    ----------
    ranks
        Their ranks in the world of size `world`, in the order of the local ranks.
    address
        Address by which the other nodes reach this one.
    """

    kind: Literal["run_ranks"] = "run_ranks"
    task: int
    spec: ProbeSpec
    ranks: tuple[int, ...]
    world: int
    master: str
    port: int
    address: str


class Stop(Frozen):
    """Stop the task with this number."""

    kind: Literal["stop"] = "stop"
    task: int


class EndRun(Frozen):
    """The run has ended; `status` is the exit status for the agent's task."""

    kind: Literal["end_run"] = "end_run"
    status: int


FromAgent = Annotated[
    Hello | Heartbeat | CheckDone | TorchImported | PortFound | RanksFinished | RankDied | AgentEnded,
    Field(discriminator="kind"),
]
FromCoordinator = Annotated[
    Welcome | Heartbeat | RunCheck | FindPort | RunRanks | Stop | EndRun, Field(discriminator="kind")
]
_FROM_AGENT: TypeAdapter[FromAgent] = TypeAdapter(FromAgent)
_FROM_COORDINATOR: TypeAdapter[FromCoordinator] = TypeAdapter(FromCoordinator)


def from_agent(data: bytes) -> FromAgent | None:
    """Parse a message of an agent; return None if it is not valid."""
    try:
        return _FROM_AGENT.validate_json(data)
    except (ValidationError, RecursionError):
        return None


def from_coordinator(data: bytes) -> FromCoordinator | None:
    """Parse a message of the coordinator; return None if it is not valid."""
    try:
        return _FROM_COORDINATOR.validate_json(data)
    except (ValidationError, RecursionError):
        return None
