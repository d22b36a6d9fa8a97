"""The job as the submitting side describes it and the node reads it, and its progress before a start."""

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from ..model import Frozen, Line

#: The environment variable that carries a `JobSpec` as JSON from the submitting side to the node.
JOB_VARIABLE = "GIPFEL_JOB"
#: Nodes that are reported one by one; the others are only counted.
MOST_ROWS = 16
Word = Literal["pass", "degraded", "inconclusive", "not_run", "fail", "running", "waiting"]
_Count = Annotated[int, Field(ge=0, le=100_000)]


class JobSpec(Frozen):
    """A notebook server, a batch notebook or a training launch, with a recorder beside it.

    The command of a launch runs on the host; it starts steps in the containers of the EDF.
    """

    kind: Literal["server", "notebook", "launch"]
    command: tuple[str, ...] = Field(min_length=1, max_length=4096)
    """The argv inside the environment; `PYTHON` is the interpreter there."""
    cluster: Line = Field("local", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,31}$")
    edf: Line = Field("", max_length=4096)
    """Name or path of the EDF; empty for the node's own file system."""
    engine: Line = Field("bubblewrap", max_length=32)
    """The engine for an EDF with an image."""
    runtime: Line = Field("", max_length=4096)
    """The runtime, a folder or a .sqsh file; empty for the interpreter that runs the job."""
    options: dict[str, JsonValue] = Field(default_factory=dict)
    """The user's options, for the record."""
    interval: float | None = Field(None, ge=0.1, le=60.0)
    """Seconds between two samples; None is 0.1 where the GPUs count that fast, with means of 1 s in the live
    stream, and else 1."""
    sources: tuple[Line, ...] = ("host", "auto")
    """Sources of the recorder's samples."""
    directory: Line = Field("", max_length=4096)
    """Where relative paths of the EDF start, and where a notebook runs; empty for the home folder."""
    folders: tuple[Line, ...] = Field((), max_length=16)
    """More folders of the host that the job needs inside its container, at the same path."""


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
