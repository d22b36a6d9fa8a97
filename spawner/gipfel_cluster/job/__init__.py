"""Run one job on its node: run folder, EDF, recorder, broker, container, record.

This module has the models that the submitting side and the node exchange: `JobSpec` describes a job, and
`VettingProgress` reports the vetting before a server starts. ``runner`` runs the job.
"""

import time
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from ..edf.gate import Gate
from ..model import Frozen, OneLine
from ..scheduler.protocol import batch_script
from .staging import StageRequest

#: The environment variable that carries a `JobSpec` as JSON from the submitting side to the node.
JOB_VARIABLE = "GIPFEL_JOB"
#: Maximum number of nodes that a `VettingProgress` lists individually; the rest are only counted.
MAX_ROWS = 16
NodeState = Literal["pass", "degraded", "inconclusive", "not_run", "fail", "running", "waiting"]
_Count = Annotated[int, Field(ge=0, le=100_000)]


class JobSpec(Frozen):
    """One job: a notebook server, a batch notebook, a training launch, a service or an image build.

    A recorder samples the job's nodes while it runs.

    The command of a launch runs on the host and starts steps in containers of the EDF.
    """

    kind: Literal["server", "notebook", "launch", "service", "build"]
    command: tuple[str, ...] = Field(min_length=1, max_length=4096)
    """The argv inside the container; `PYTHON` stands for the interpreter of the runtime."""
    cluster: OneLine = Field("local", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,31}$")
    edf: OneLine = Field("", max_length=4096)
    """Name or path of the EDF; empty to run on the node without a container."""
    engine: OneLine = Field("bubblewrap", max_length=32)
    """Name of the engine, used if the EDF has an image."""
    runtime: OneLine = Field("", max_length=4096)
    """Path of the runtime, a directory or a .sqsh file; empty for the interpreter that runs the job."""
    options: dict[str, JsonValue] = Field(default_factory=dict)
    """The user's options, which are copied to ``record.json``."""
    interval: float | None = Field(None, ge=0.1, le=60.0)
    """Seconds between two samples. None means 0.1 s for GPUs that update their counters that often (the live
    stream then has means of 1 s), else 1 s."""
    sources: tuple[OneLine, ...] = ("host", "auto")
    """Sources of the recorder's samples."""
    directory: OneLine = Field("", max_length=4096)
    """Base of relative paths in the EDF and working directory of a notebook; empty for the home directory."""
    folders: tuple[OneLine, ...] = Field((), max_length=16)
    """Further directories of the host that the container mounts at the same path."""
    network: Gate | None = None
    """The job's own gate. A destination must also be allowed by the gates of EDF and site."""
    stage: StageRequest | None = None
    """Data to copy to the job's nodes first, in addition to what the EDF requests."""
    submitted: int = Field(default_factory=lambda: int(time.time()), ge=0)
    """When the job was submitted, in seconds since 1970."""


class NodeProgress(Frozen):
    """Vetting of one node: ``state`` is its verdict so far, or ``running`` or ``waiting``.

    ``detail`` names the check that runs on the node, or the problem that was found.
    """

    node: OneLine = Field(min_length=1, max_length=64)
    state: NodeState
    detail: OneLine = Field("", max_length=160)


class VettingProgress(Frozen):
    """Progress of vetting a job's nodes, sent while it runs and once after it has ended.

    ``nodes`` and ``done`` count all and finished nodes; ``bad`` counts nodes with a problem; ``rows`` are the
    nodes to show; ``outcome`` is a sentence, empty until the end.
    """

    protocol: OneLine = Field(max_length=64)
    nodes: _Count
    done: _Count
    bad: _Count = 0
    ended: bool = False
    rows: tuple[NodeProgress, ...] = Field((), max_length=MAX_ROWS)
    outcome: OneLine = Field("", max_length=300)


__all__ = ["JOB_VARIABLE", "JobSpec", "batch_script"]
