"""Models of the responses about the server and its saturation that the panel reads.

The TypeScript interfaces of the panel are generated from these models and those in `task_responses`. The
routes send plain dictionaries, some of which have more keys. A key that has a default here may be missing.
The tests validate every response with these models.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ..saturation.advice.model import Evidence, Knob
from ..saturation.report.document import Difference
from ..saturation.result import Spread
from ..telemetry.gpu_processes import GpuProcess
from ..telemetry.live.feed import SaturationStatus
from ..telemetry.sample import Device

#: Numbers by name; None if one is unknown.
Numbers = dict[str, float | None]


class ResponseModel(BaseModel):
    """Base of all models of responses; a response may have more keys than the model."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class RunEdf(ResponseModel):
    """EDF of a job."""

    name: str


class RunInfo(ResponseModel):
    """Run of this notebook server.

    ``ends_ns`` is the end of the job in UTC nanoseconds. ``no_gpu`` is the reason why requested GPUs are
    missing, and empty if none were requested. ``message`` is the reason why there is no run.
    """

    run: str | None
    message: str = ""
    node: str
    job_id: str
    cluster: str
    edf: RunEdf | None
    ends_ns: int | None
    devices: list[Device]
    no_gpu: str
    record: dict[str, Any]


class Idle(ResponseModel):
    """Start of the idle time, and the time at which the server is stopped for being idle."""

    since_ms: int
    stop_ms: int


class JobEvent(ResponseModel):
    """Something that happened to a job of the user; ``time_ms`` is UTC.

    ``workload`` is the ID as ``KIND:ID``, ``report`` the path of the run's report below the server's base
    URL; both may be empty.
    """

    time_ms: int
    kind: Literal["started", "ended", "failed", "idle", "checkpoint", "time", "hang", "test"]
    title: str
    reason: str
    workload: str
    report: str


class Lifetime(ResponseModel):
    """Lifetime of this server, and what happened to jobs; times are UTC milliseconds of the server's clock.

    ``notices_s`` are the seconds before the end at which the user gets a notice. ``extend_s`` is the number
    of seconds that one extension adds, 0 if the job can't be extended. ``idle`` is null unless the server
    will soon be stopped for being idle. ``events`` are the newest of the last day, the newest last.
    """

    now_ms: int
    ends_ms: int | None
    notices_s: list[float]
    extend_s: float
    idle: Idle | None
    events: list[JobEvent]


class Figure(ResponseModel):
    """A plotly figure as plain data."""

    data: list[dict[str, Any]]
    layout: dict[str, Any]
    config: dict[str, Any] = {}
    frames: list[dict[str, Any]] = []


class Points(ResponseModel):
    """New points of one trace: times in UTC milliseconds and values, of the same length.

    ``low`` and ``high`` are the bounds of means over many GPUs, else empty.
    """

    x: list[float]
    y: list[float | None]
    low: list[float] = []
    high: list[float] = []


class Cells(ResponseModel):
    """New values of the heat map: row, UTC milliseconds, value in the figure's unit; of the same length."""

    row: list[int]
    x: list[float]
    y: list[float]


class Advice(ResponseModel):
    """One piece of advice.

    ``loss`` is the loss that it lowers, empty if it is about none or several; ``points`` is the points that
    the job lost to it. ``alternative`` is true if other advice for the same loss precedes it.
    """

    rule: str
    loss: str = ""
    points: float = 0.0
    alternative: bool = False
    sentence: str
    action: str
    gain: float
    gain_text: str
    knob: Knob
    evidence: list[Evidence]


class AdviceEffect(ResponseModel):
    """Effect of the advice for an earlier run of the same program; each line is a sentence."""

    lines: list[str]


class GpuScore(ResponseModel):
    """Score of one GPU; null if it is unknown."""

    uuid: str
    score: float | None
    utilization: float | None


class Score(ResponseModel):
    """A score as ``gipfel score --json`` prints it; unknown numbers are null.

    ``bottleneck`` is the largest loss, null if samples are too far apart to determine it. ``range`` are
    bounds of the score that samples at a shorter interval could give. ``integer_points`` are the score and
    the losses as integers that add up to 100. ``means_s`` is the number of seconds over which the scored
    values are means, null if they are samples. ``energy`` is the energy of that time in one line, empty where
    it is unknown. ``first_ns`` and ``last_ns`` are the times of the first and the last scored sample in UTC
    nanoseconds, rounded to a double. ``gpu_processes`` are those that hold GPUs beside the ranks; only live.
    """

    score: float | None
    bottleneck: str | None
    range: tuple[float, float] | None
    binding: Numbers
    losses: Numbers
    integer_points: dict[str, int] | None
    advice: list[Advice]
    advice_effect: AdviceEffect | None = None
    confidence: float | None
    gpus: list[GpuScore]
    spread: Spread | None
    startup_s: float
    interval_s: float
    first_ns: float | None = None
    last_ns: float | None = None
    means_s: float | None = None
    energy: str = ""
    gpu_processes: list[GpuProcess] = Field(default=[])
    simulated: bool
    notes: list[str]


class GpuActivity(ResponseModel):
    """Current GPU activity.

    ``share`` is the mean of ``metric`` over GPUs and the last seconds, from 0 to 1; null if no GPU has a
    recent sample.
    """

    gpus: int
    share: float | None
    metric: str
    simulated: bool


class RunEvent(ResponseModel):
    """Event of a recorder or a GPU; the time is UTC in milliseconds."""

    time_ms: int
    node: str
    kind: str
    device: str
    message: str


class RunName(ResponseModel):
    """A run of the user; ``current`` is true for the run of this server.

    ``display_name`` is the name that the user gave it, empty if none.
    """

    run: str
    display_name: str
    job_id: str
    cluster: str
    kind: str
    started: str
    edf: str
    current: bool


class RunTracking(ResponseModel):
    """A run on an MLflow server: its address there, and whether it is being sent."""

    to: str
    """Configured address of the server; empty if none is."""
    url: str
    """Page of the run on the server to which it was sent last; empty if it never was."""
    sending_s: int | None
    """Seconds since it is being sent; null if it is not."""
    problem: str
    """Why it could not be sent the last time; empty if it could."""


class TimeRange(ResponseModel):
    """Figures and events of a time range of a run.

    ``growing`` is true while the run is recorded, so that a later request gets more samples.
    """

    run: str
    figures: dict[str, Figure]
    events: list[RunEvent]
    devices: list[Device]
    growing: bool


class Comparison(ResponseModel):
    """Two runs side by side."""

    runs: list[str]
    rows: list[Difference]
    figure: Figure


class FiguresMessage(ResponseModel):
    """Figures in the stream; ``complete`` is false if the message has only figures that the page lacked."""

    type: Literal["figures"]
    figures: dict[str, Figure]
    complete: bool
    gpus: list[Device]
    status: SaturationStatus


class SamplesMessage(ResponseModel):
    """New points since the last message: of traces by their ``uid``, and cells of the heat map."""

    type: Literal["samples"]
    status: SaturationStatus
    traces: dict[str, Points] = {}
    cells: Cells | None = None


class ScoreMessage(ResponseModel):
    """New score of the samples in the stream."""

    type: Literal["score"]
    document: Score
    events: list[RunEvent]


class StatusMessage(ResponseModel):
    """Changed state of the samples."""

    type: Literal["status"]
    status: SaturationStatus


StreamMessage = FiguresMessage | SamplesMessage | ScoreMessage | StatusMessage


class ChangeMessage(ResponseModel):
    """Message that what a page lists has changed, so that the page requests it again.

    ``activity`` is the value itself, null while there is none.
    """

    topic: Literal["activity", "batch", "launches", "lifetime", "other", "services", "vetting"]
    activity: GpuActivity | None = None
