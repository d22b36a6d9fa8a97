"""What the panel reads of the answers on vetting, launches and batch jobs, as models; see `answers`."""

from typing import Literal

from ..training.launches.logs import LogRow
from ..training.papermill.parameters import Parameter
from .answers import (
    Answer,
    Comparison,
    GpuActivity,
    Lifetime,
    RunInfo,
    Runs,
    SaturationStatus,
    Score,
    TimeRange,
)
from .launches import LogPosition

#: A verdict of a check on a node, or why there is none.
CellWord = Literal[
    "pass", "degraded", "inconclusive", "not_run", "not_applicable", "fail", "running", "waiting"
]


class GridCell(Answer):
    """One check on one node."""

    verdict: CellWord
    reason: str


class GridRow(Answer):
    """One node, with its cells in the order of the checks."""

    node: str
    verdict: CellWord
    vetted: bool
    running: str
    cells: list[GridCell]


class Culprit(Answer):
    """What is wrong with whom.

    ``owner`` says whose fault it is: node, link, image, protocol or site, else empty.
    """

    who: str
    checks: str
    verdict: CellWord
    reason: str
    fix: str
    owner: str


class Grid(Answer):
    """A report as far as a page shows it; times in UTC nanoseconds.

    ``more`` counts the verdicts of nodes without a row.
    """

    protocol: str
    started_ns: int
    ended_ns: int | None
    complete: bool
    nodes: int
    vetted: int
    done: int
    checks: list[str]
    rows: list[GridRow]
    more: dict[CellWord, int]
    culprits: list[Culprit]
    more_culprits: int
    exclude: str
    outcome: str
    notes: list[str]


class Vetting(Answer):
    """State of the newest vetting of this server's run.

    ``own`` where this server has started it and can stop it. The grid is missing where it is the version
    that the page has.
    """

    state: Literal["none", "starting", "running", "ended", "interrupted", "gone", "error"]
    version: str
    problem: str
    own: bool
    heard_ms: int
    now_ms: int
    grid: Grid | None = None


class ProtocolListing(Answer):
    """A protocol that can be run."""

    kind: Literal["shipped", "own", "beside"]
    file: str
    name: str
    description: str
    problem: str


class Protocols(Answer):
    """Protocols to choose from; ``registry`` where the site has one."""

    protocols: list[ProtocolListing]
    registry: bool


class ProtocolCheck(Answer):
    """One check of a protocol."""

    name: str
    type: str


class ProtocolMeaning(Answer):
    """What a text means as a protocol; ``lines`` are those of the problems, from 1 on, 0 for none."""

    valid: bool
    problems: list[str]
    lines: list[int]
    checks: list[ProtocolCheck]


class LaunchProgress(Answer):
    """How far a launch is; ``fraction`` is from 0 to 1."""

    step: float | None
    total: float | None
    fraction: float | None


class LaunchCourse(Answer):
    """How fast a launch is."""

    rate: float | None
    rate_name: str
    steps_per_s: float | None


class Launch(Answer):
    """A launch.

    ``id`` is ``RUN/N``, or ``N`` of a launch outside of runs; ``word`` the outcome once it has ended, else
    the phase, or ``silent`` where it has not reported for long; ``says`` why it failed or waits, as one
    sentence. ``traces`` and ``dumps`` are the ranks that left a trace of torch's profiler or a dump of its
    flight recorder.
    """

    id: str
    number: int
    name: str
    title: str
    word: str
    phase: str
    says: str
    ranks: int
    node_count: int
    restarts: int
    created_ns: int
    started_ns: int | None
    ended_ns: int | None
    progress: LaunchProgress
    course: LaunchCourse
    notebook: bool
    traces: list[int]
    dumps: list[int]


class Launches(Answer):
    """The newest launches, those that run first."""

    launches: list[Launch]


class LogPage(Answer):
    """A piece of a log: rank, text, milliseconds since 1970 or null, and whether the line is about an error.

    ``flight`` is what torch's flight recorder reports.
    """

    lines: list[LogRow]
    position: LogPosition
    more: bool
    ended: bool
    flight: list[str]


class BatchForm(Answer):
    """What the dialog shows for a notebook.

    ``open`` where the parameters of the notebook's language are unknown, so that any name may be right;
    ``scheduler`` is where a job runs by default, ``schedulers`` where it can run.
    """

    parameters: list[Parameter]
    open: bool
    scheduler: str
    schedulers: list[str]
    edf: str
    edfs: list[str]
    output: str


class BatchTask(Answer):
    """One run of a batch notebook.

    ``output`` is the server's path of the executed notebook, which may still run; null where there is none
    to open.
    """

    job_id: str
    state: str
    ended: bool
    reason: str
    node: str
    values: dict[str, str]
    cells: int
    done: int
    problem: str
    output: str | None


class BatchJob(Answer):
    """A job that was submitted at ``time`` seconds since 1970; ``more`` tasks are not listed."""

    job_id: str
    scheduler: str
    notebook: str
    time: float
    tasks: list[BatchTask]
    more: int


class BatchJobs(Answer):
    """The user's batch notebooks, the newest first."""

    jobs: list[BatchJob]


#: The answers of routes that the panel reads, by method and path.
ROUTE_ANSWERS: dict[tuple[str, str], type[Answer]] = {
    ("GET", "gipfel/run"): RunInfo,
    ("GET", "gipfel/runs"): Runs,
    ("GET", "gipfel/lifetime"): Lifetime,
    ("POST", "gipfel/lifetime/extend"): Lifetime,
    ("POST", "gipfel/lifetime/stay"): Lifetime,
    ("POST", "gipfel/telemetry/source"): SaturationStatus,
    ("DELETE", "gipfel/telemetry/source"): SaturationStatus,
    ("GET", "gipfel/saturation/now"): GpuActivity,
    ("GET", "gipfel/saturation/range"): TimeRange,
    ("GET", "gipfel/saturation/score"): Score,
    ("GET", "gipfel/saturation/compare"): Comparison,
    ("GET", "gipfel/vetting"): Vetting,
    ("POST", "gipfel/vetting/protocols"): ProtocolMeaning,
    ("GET", "gipfel/launches"): Launches,
    ("POST", "gipfel/launches/log"): LogPage,
    ("GET", "gipfel/batch/form"): BatchForm,
    ("GET", "gipfel/batch/jobs"): BatchJobs,
}
