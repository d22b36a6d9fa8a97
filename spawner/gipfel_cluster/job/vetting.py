"""How far a vetting before a server's start is, as the job tells its hub."""

from typing import Annotated, Literal

from pydantic import Field

from ..model import Frozen, Line

#: Nodes that are told one by one; of the others only how many they are.
MOST_ROWS = 16

Word = Literal["pass", "degraded", "inconclusive", "not_run", "fail", "running", "waiting"]
_Count = Annotated[int, Field(ge=0, le=100_000)]


class NodeProgress(Frozen):
    """One node: a verdict so far, ``running`` or ``waiting``, and what runs there or is wrong."""

    node: Line = Field(min_length=1, max_length=64)
    state: Word
    words: Line = Field("", max_length=160)


class VettingProgress(Frozen):
    """A vetting of a job's nodes, while it runs and once when it has ended.

    ``rows`` are the nodes of most interest; ``bad`` counts those that something is wrong with so far;
    ``outcome`` is one sentence at the end.
    """

    protocol: Line = Field(max_length=64)
    nodes: _Count
    done: _Count
    bad: _Count = 0
    ended: bool = False
    rows: tuple[NodeProgress, ...] = Field((), max_length=MOST_ROWS)
    outcome: Line = Field("", max_length=300)
