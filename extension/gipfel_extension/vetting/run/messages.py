"""Messages between a coordinator and its agents: one JSON document each."""

from typing import Annotated, Literal

from pydantic import Field, JsonValue, TypeAdapter, ValidationError

from gipfel_cluster.model import Frozen, Line

from ..model import CheckResult
from ..probing import ProbeAnswer, ProbeSpec

#: Bytes of the longest message that is read.
LARGEST = 8 << 20


class Hello(Frozen):
    """An agent has connected; repeated until it is welcomed.

    Parameters
    ----------
    token
        The run's secret.
    rank
        The number of its task; -1 where the coordinator started it itself.
    address
        Where other nodes reach this one.
    gpus
        GPUs that the job has on this node.
    switch
        The name of its switch, where Slurm tells it.
    extra
        A further task on a node that has an agent already: it only waits for the end.
    """

    kind: Literal["hello"] = "hello"
    token: str
    node: Annotated[Line, Field(min_length=1, max_length=256)]
    address: Line
    pid: int
    rank: int = -1
    gpus: Annotated[int, Field(ge=0, le=1024)] = 0
    switch: Line = ""
    extra: bool = False


class Heartbeat(Frozen):
    """The sender is alive; sent by both sides, once a second."""

    kind: Literal["beat"] = "beat"


class CheckDone(Frozen):
    """Results of a check on this node; `problem` where they can't be read."""

    kind: Literal["check_done"] = "check_done"
    task: int
    results: tuple[CheckResult, ...] = ()
    problem: str = ""


class TorchImported(Frozen):
    """The node's fork server has imported torch, once for all of its probes."""

    kind: Literal["torch_imported"] = "torch_imported"
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]


class PortFound(Frozen):
    """A free port of this node."""

    kind: Literal["port_found"] = "port_found"
    task: int
    port: Annotated[int, Field(ge=1, le=65535)]


class RankEnd(Frozen):
    """End of one rank of a probe.

    Parameters
    ----------
    died
        It was killed by a signal that did not come from us, or found stopped at the time limit.
    """

    rank: int
    answer: ProbeAnswer
    died: bool = False


class RanksDone(Frozen):
    """Ends of all ranks of a probe on this node."""

    kind: Literal["ranks_done"] = "ranks_done"
    task: int
    ends: tuple[RankEnd, ...]


class RankDied(Frozen):
    """A rank of a probe has died while others run on."""

    kind: Literal["rank_died"] = "rank_died"
    task: int
    rank: int


class Leaving(Frozen):
    """An agent ends; `reason` is empty after the coordinator ended the run."""

    kind: Literal["leaving"] = "leaving"
    reason: str = ""


class Welcome(Frozen):
    """The coordinator knows this agent."""

    kind: Literal["welcome"] = "welcome"


class RunCheck(Frozen):
    """Run one check of the protocol on this node.

    Parameters
    ----------
    torch
        "now": it is started when torch has been imported. "later": a later check needs torch, which is
        imported beside this one.
    """

    kind: Literal["run_check"] = "run_check"
    task: int
    entry: JsonValue
    limit_s: float
    torch: Literal["", "later", "now"] = ""


class FindPort(Frozen):
    """Find a free port."""

    kind: Literal["find_port"] = "find_port"
    task: int


class RunRanks(Frozen):
    """Run these ranks of a probe, with the variables by which torch.distributed finds the others.

    Parameters
    ----------
    ranks
        Their numbers among `world`; their order is that of the local ranks.
    address
        This node's own, by which the others reach it.
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
    """End what runs under this number."""

    kind: Literal["stop"] = "stop"
    task: int


class Bye(Frozen):
    """The run has ended; `status` is the exit status for the agent's task."""

    kind: Literal["bye"] = "bye"
    status: int


FromAgent = Annotated[
    Hello | Heartbeat | CheckDone | TorchImported | PortFound | RanksDone | RankDied | Leaving,
    Field(discriminator="kind"),
]
FromCoordinator = Annotated[
    Welcome | Heartbeat | RunCheck | FindPort | RunRanks | Stop | Bye, Field(discriminator="kind")
]
_FROM_AGENT: TypeAdapter[FromAgent] = TypeAdapter(FromAgent)
_FROM_COORDINATOR: TypeAdapter[FromCoordinator] = TypeAdapter(FromCoordinator)


def from_agent(data: bytes) -> FromAgent | None:
    """Return a message of an agent; None where it is not valid."""
    try:
        return _FROM_AGENT.validate_json(data)
    except (ValidationError, RecursionError):
        return None


def from_coordinator(data: bytes) -> FromCoordinator | None:
    """Return a message of the coordinator; None where it is not valid."""
    try:
        return _FROM_COORDINATOR.validate_json(data)
    except (ValidationError, RecursionError):
        return None
