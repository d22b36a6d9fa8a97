"""What the panel reads of the answers on this server and its saturation, as models.

Its TypeScript interfaces are generated from these models and those of `task_answers`. The routes answer
plain dictionaries, some with more keys than the panel reads. A key that has a default here may be missing.
The tests check every answer that they get by these models.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from ..telemetry.live.feed import State
from ..telemetry.sample import Device

#: Numbers by name; None where one is unknown.
Numbers = dict[str, float | None]


class Answer(BaseModel):
    """Part of an answer; it may hold more than is declared."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class SaturationStatus(Answer):
    """State of the samples that the server reads.

    ``interval`` is seconds between two samples; ``last_ns`` is UTC nanoseconds of the newest one, rounded
    to what a double holds; ``message`` is one line for people.
    """

    state: State
    source: str
    simulated: bool
    gpus: int
    interval: float
    last_ns: int | None
    message: str


class RunEdf(Answer):
    """Environment of a job."""

    name: str
    digest: str


class RunInfo(Answer):
    """What this notebook server runs in.

    ``ends_ns`` is UTC nanoseconds at which the job's time ends; ``no_gpu`` says why there is no GPU though
    some were asked for, and is empty where none were; ``message`` says why there is no run.
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


class Idle(Answer):
    """Since when nothing runs, and when the server is stopped for it."""

    since_ms: int
    stop_ms: int


class Lifetime(Answer):
    """When this server ends; times are UTC milliseconds of the server's clock.

    ``notices_s`` are seconds before the end at which a notice is due, ``extend_s`` those that may be added
    with one press, 0 where none; ``idle`` is null while a stop for idleness is far.
    """

    now_ms: int
    ends_ms: int | None
    notices_s: list[float]
    extend_s: float
    idle: Idle | None


class Figure(Answer):
    """A plotly figure as plain data."""

    data: list[dict[str, Any]]
    layout: dict[str, Any]
    config: dict[str, Any] = {}
    frames: list[dict[str, Any]] = []


class Points(Answer):
    """New points of one trace: times in UTC milliseconds and values, of the same length."""

    x: list[float]
    y: list[float | None]


class Cells(Answer):
    """New values of the heat map: row, UTC milliseconds, value in the figure's unit; of the same length."""

    row: list[int]
    x: list[float]
    y: list[float]


class Evidence(Answer):
    """The time range of a device's samples that shows why something is advised; times in UTC nanoseconds."""

    device: str
    metrics: list[str]
    start_ns: int
    end_ns: int


class Knob(Answer):
    """What to turn, and the page that documents it."""

    name: str
    link: str


class Advice(Answer):
    """One piece of advice."""

    rule: str
    sentence: str
    action: str
    gain: float
    expect: str
    knob: Knob
    evidence: list[Evidence]


class Since(Answer):
    """What became of the advice of an earlier run of the same program, a sentence each."""

    lines: list[str]


class GpuScore(Answer):
    """Score of one GPU; null where it is unknown."""

    uuid: str
    score: float | None
    utilization: float | None


class Spread(Answer):
    """How far the GPUs of a job are apart."""

    p10: float
    worst: float
    worst_gpu: str
    gap: float


class Score(Answer):
    """A score as ``gipfel score --json`` prints it; unknown numbers are null.

    ``bottleneck`` is the largest part of 100, null where samples are too far apart to say; ``range`` are
    bounds of the score that faster samples could show; ``whole_points`` are the score and the losses as
    whole numbers that add up to 100; ``means_s`` is seconds over which the scored values are means, null
    where they are the samples.
    """

    score: float | None
    bottleneck: str | None
    range: tuple[float, float] | None
    binding: Numbers
    losses: Numbers
    whole_points: dict[str, int] | None
    advice: list[Advice]
    since: Since | None = None
    confidence: float | None
    gpus: list[GpuScore]
    spread: Spread | None
    startup_s: float
    interval_s: float
    means_s: float | None = None
    simulated: bool
    notes: list[str]


class GpuActivity(Answer):
    """How busy the GPUs are now.

    ``share`` is from 0 to 1, a mean over GPUs and seconds, null where no GPU has a recent sample of a
    ``metric``.
    """

    gpus: int
    share: float | None
    metric: str
    simulated: bool


class RunEvent(Answer):
    """Something that happened to the recording or to a GPU; the time is UTC in milliseconds."""

    time_ms: int
    node: str
    kind: str
    device: str
    message: str


class RunName(Answer):
    """A run of the user's."""

    run: str
    job_id: str
    cluster: str
    kind: str
    started: str
    edf: str
    current: bool


class Runs(Answer):
    """The user's runs, the newest first."""

    runs: list[RunName]


class TimeRange(Answer):
    """A time range of a run.

    ``growing`` where something records the run now, and asking again is worthwhile.
    """

    run: str
    figures: dict[str, Figure]
    events: list[RunEvent]
    devices: list[Device]
    bucket_s: float
    growing: bool


class Difference(Answer):
    """One number of two runs."""

    name: str
    unit: str
    first: float | None
    second: float | None
    change: float | None
    better: bool | None


class Comparison(Answer):
    """Two runs side by side."""

    runs: list[str]
    rows: list[Difference]
    figure: Figure


class FiguresMessage(Answer):
    """Figures of the stream; ``whole`` where these are all of them, rather than some that were missing."""

    type: Literal["figures"]
    figures: dict[str, Figure]
    whole: bool
    gpus: list[Device]
    status: SaturationStatus


class SamplesMessage(Answer):
    """Points that came in since the last message.

    By the ``uid`` of their trace, and cells of the heat map.
    """

    type: Literal["samples"]
    status: SaturationStatus
    traces: dict[str, Points] = {}
    cells: Cells | None = None


class ScoreMessage(Answer):
    """A new score of what the stream shows."""

    type: Literal["score"]
    document: Score
    events: list[RunEvent]


class StatusMessage(Answer):
    """A new state of the samples."""

    type: Literal["status"]
    status: SaturationStatus


StreamMessage = FiguresMessage | SamplesMessage | ScoreMessage | StatusMessage
