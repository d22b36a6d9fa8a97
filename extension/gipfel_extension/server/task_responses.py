"""Models of the responses about vetting, launches and batch jobs that the panel reads; see `responses`."""

from typing import Any, Literal

from gipfel_cluster.job.service_orders import ServiceOffer
from gipfel_cluster.scheduler.slurm_usage import QuotaSection
from gipfel_cluster.workloads.kinds import Workload

from ..telemetry.live.feed import SaturationStatus
from ..training.batch.submitted import BatchRequest
from ..training.launches.logs import LogRow, Progress, TrainingCurve
from ..training.papermill.parameters import Parameter
from ..vetting.grid import VettingGrid
from .launches import LogPosition
from .responses import Comparison, Lifetime, ResponseModel, RunInfo, RunName, Score, TimeRange


class Vetting(ResponseModel):
    """State of the newest vetting of this server's run.

    ``can_stop`` is true if this server has started the vetting and can stop it. The grid is missing if the
    page has its version. ``updated_ms`` is the time of the last change of the report.
    """

    state: Literal["none", "starting", "running", "ended", "interrupted", "gone", "error"]
    version: str
    problem: str
    can_stop: bool
    updated_ms: int
    now_ms: int
    grid: VettingGrid | None = None


class ProtocolListing(ResponseModel):
    """A protocol in the list: shipped, in the user's own directory, or in the notebook's directory."""

    kind: Literal["shipped", "user", "notebook"]
    file: str
    name: str
    description: str
    problem: str


class ProtocolCheck(ResponseModel):
    """One check of a protocol."""

    name: str
    type: str


class ProtocolContent(ResponseModel):
    """Checks and problems of a protocol; ``lines`` are line numbers of the problems from 1, 0 for none."""

    valid: bool
    problems: list[str]
    lines: list[int]
    checks: list[ProtocolCheck]


class Launch(ResponseModel):
    """A launch.

    ``id`` is ``RUN/N``, or ``N`` for a launch outside of runs. ``status`` is the outcome of an ended launch,
    else the phase, or ``silent`` if the launch has not reported recently. ``message`` is the reason why it
    failed or waits, as one sentence. ``score`` is its saturation from 0 to 100, null where its ranks had no
    GPU and before its end. ``run`` is the path of the run folder with its samples. ``traces`` and ``dumps``
    are the ranks that have written a trace of torch's profiler or a dump of its flight recorder.
    """

    id: str
    number: int
    name: str
    title: str
    status: str
    phase: str
    message: str
    ranks: int
    node_count: int
    restarts: int
    created_ns: int
    started_ns: int | None
    ended_ns: int | None
    progress: Progress
    training_curve: TrainingCurve
    score: float | None
    notebook: bool
    run: str
    traces: list[int]
    dumps: list[int]


class LogPage(ResponseModel):
    """Lines of a log: rank, text, milliseconds since 1970 or null, and whether the line is about an error.

    ``flight_recorder`` is the report on the dumps of torch's flight recorder, one string per line.
    """

    lines: list[LogRow]
    position: LogPosition
    more: bool
    ended: bool
    flight_recorder: list[str]


class BatchForm(ResponseModel):
    """Content of the dialog for a notebook.

    ``scheduler`` is the default, ``schedulers`` are all that can be used.
    """

    parameters: list[Parameter]
    scheduler: str
    schedulers: list[str]
    edf: str
    edfs: list[str]
    output: str


class BatchTask(ResponseModel):
    """One run of a batch notebook.

    ``done`` of ``cells`` code cells are finished. ``started`` is in seconds since 1970, null before the first
    cell; ``seconds`` is how long it ran, null until its end. ``score`` is that of its job. ``output`` is the
    API path of the executed notebook, which may still be running; null if it can't be opened.
    """

    job_id: str
    state: str
    ended: bool
    reason: str
    node: str
    values: dict[str, str]
    cells: int
    done: int
    started: float | None
    seconds: float | None
    score: float | None
    problem: str
    output: str | None


class BatchJob(ResponseModel):
    """A job submitted at ``time`` seconds since 1970, ``more`` unlisted tasks, and the dialog's values."""

    job_id: str
    scheduler: str
    notebook: str
    time: float
    tasks: list[BatchTask]
    more: int
    request: BatchRequest | None


class OtherWorkloads(ResponseModel):
    """Workloads of such kinds, the newest first."""

    workloads: list[Workload]


class ServiceAccess(ResponseModel):
    """A user or a group with access to a service, until an ISO time in UTC."""

    kind: Literal["user", "group"]
    name: str
    expires: str


class Service(Workload):
    """A service; ``url`` is its address for a browser, a path for one of the hub, empty unless it runs.

    ``refusal`` is why it can't be shared.
    """

    url: str
    in_hub: bool
    shares: list[ServiceAccess]
    refusal: str


class Services(ResponseModel):
    """Services of the user, the newest first."""

    services: list[Service]


class OfferedService(ServiceOffer):
    """A blueprint that can be started; ``memory`` and ``start_s`` were measured, ``cost`` is for an hour."""

    cost: str


class ServiceOffers(ResponseModel):
    """Blueprints that can be started, and a line for each that can't be used."""

    offers: list[OfferedService]
    problems: list[str]


class LogLine(ResponseModel):
    """A line that a rank or task wrote."""

    rank: int
    text: str


class WorkloadLog(ResponseModel):
    """The last lines of a workload's log, ordered by time."""

    lines: list[LogLine]


class Limits(ResponseModel):
    """Limits of the user's jobs, and what is left; no sections for a scheduler without limits.

    ``storage`` is the output of the site's command for the storage quota, empty without one.
    """

    sections: list[QuotaSection]
    storage: str


#: Types of the responses that the panel reads, by method and path.
ROUTE_RESPONSES: dict[tuple[str, str], Any] = {
    ("GET", "gipfel/run"): RunInfo,
    ("GET", "gipfel/runs"): dict[Literal["runs"], list[RunName]],
    ("GET", "gipfel/lifetime"): Lifetime,
    ("POST", "gipfel/lifetime/extend"): Lifetime,
    ("POST", "gipfel/lifetime/keep-alive"): Lifetime,
    ("POST", "gipfel/telemetry/source"): SaturationStatus,
    ("DELETE", "gipfel/telemetry/source"): SaturationStatus,
    ("GET", "gipfel/saturation/range"): TimeRange,
    ("GET", "gipfel/saturation/score"): Score,
    ("GET", "gipfel/saturation/compare"): Comparison,
    ("GET", "gipfel/vetting"): Vetting,
    ("POST", "gipfel/vetting/protocols"): ProtocolContent,
    ("GET", "gipfel/launches"): dict[Literal["launches"], list[Launch]],
    ("POST", "gipfel/launches/log"): LogPage,
    ("GET", "gipfel/batch/form"): BatchForm,
    ("GET", "gipfel/batch/jobs"): dict[Literal["jobs"], list[BatchJob]],
    ("GET", "gipfel/services"): Services,
    ("GET", "gipfel/services/offers"): ServiceOffers,
    ("GET", "gipfel/quota"): Limits,
    ("GET", "gipfel/workloads"): OtherWorkloads,
    ("GET", "gipfel/workloads/log"): WorkloadLog,
}
