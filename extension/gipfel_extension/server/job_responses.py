"""Models of the responses about a job's ranks, which the job page reads; see `responses`."""

from typing import Literal

from ..communication.report import CallTimes, GroupFamily
from ..topology.cluster import ClusterState
from .responses import Figure, ResponseModel


class JobSelected(ResponseModel):
    """Units that a selection contains.

    ``ranks``, ``nodes`` and ``devices`` (UUIDs) are empty if nothing is selected. ``group`` has the ranks of
    the role expression, also while another rank is picked.
    """

    ranks: list[int]
    nodes: list[str]
    devices: list[str]
    group: list[int]


class JobFigures(ResponseModel):
    """Figures of a job by name: ``bands``, ``heat``, ``metrics``; the heat map's values are bytes."""

    run: str
    version: str
    figures: dict[str, Figure]
    selected: JobSelected


class JobTraffic(ResponseModel):
    """A `communication.report.CommunicationReport` without its matrix."""

    lines: list[str]
    sources: list[str]
    groups: list[GroupFamily]
    slowest: list[CallTimes]
    notes: list[str]
    problems: list[str]


class JobCommunication(ResponseModel):
    """Communication of a job; ``missing`` is the reason why there is no report, with what to do.

    ``by`` says what the rows of the figure are: ``rank``, ``node`` or ``block`` (of ranks).
    """

    missing: str
    report: JobTraffic | None
    by: str
    figure: Figure | None


class SecurityLine(ResponseModel):
    """Verdict on a job's image in one line; ``level`` follows from the site's policy."""

    level: Literal["pass", "warn", "fail", "unknown"]
    line: str


class JobException(ResponseModel):
    """A vulnerability that was accepted: for which package, why, until which day, and by whom."""

    path: str
    rule: str
    reason: str
    until: str
    by: str


class JobSecurity(SecurityLine):
    """Verdict on a job's image; ``image`` is empty without one.

    ``advisories_days`` is the age of the advisories, null if nothing was compared with them. ``worst`` has a
    line for each of the most serious vulnerabilities.
    """

    image: str
    fix: str
    policy: Literal["report", "warn", "refuse"]
    packages: int
    advisories_days: float | None
    worst: tuple[str, ...]
    not_judged: tuple[str, ...]
    excepted: tuple[JobException, ...]


class JobVerdict(ResponseModel):
    """Verdict of a diagnosis about a job; ``since_ms`` is UTC.

    ``title`` is one sentence without a full stop. ``severity`` 2 ends the job or keeps it from running, 1
    costs time, 0 is for information. ``unit`` is what the ranks share, such as ``node nid001``.
    """

    kind: str
    title: str
    evidence: str
    severity: int
    ranks: list[int]
    stage: int | None
    unit: str
    since_ms: int | None
    confidence: float
    source: Literal["record", "steps", "phases", "flight_recorder", "earlier"]


class JobVerdicts(ResponseModel):
    """Verdicts on a job, the worst first; ``notes`` say what the data lack."""

    version: str
    verdicts: list[JobVerdict]
    notes: list[str]


class JobConnection(ResponseModel):
    """Connections of one program with one peer and port.

    ``port`` is the peer's port for ``out``, else the job's own. ``sent`` and ``received`` are in bytes, null
    if they are not counted. ``inside`` is true for addresses of the cluster. ``name`` is the host name if a
    gate connected to the address, else empty.
    """

    node: str
    direction: Literal["out", "in", "listen"]
    protocol: str
    address: str
    name: str
    port: int
    program: str
    rank: int | None
    connections: int
    sent: int | None
    received: int | None
    first_ms: int
    last_ms: int
    inside: bool
    all_interfaces: bool


class JobGateRow(ResponseModel):
    """A destination that programs behind a gate requested on one node, with the first and the last time.

    ``place`` is the destination's name and port; ``reason`` says why it was refused. If ``protocol`` is
    ``outside``, the row is about ranks that run outside of their gate: ``place`` names them, and ``reason``
    says why they do.
    """

    node: str
    place: str
    protocol: str
    allowed: bool
    reason: str
    count: int
    sent: int
    received: int
    first_ms: int
    last_ms: int


class JobNetwork(ResponseModel):
    """Connections of a run's programs, most bytes first; ``recorded`` is false if none were recorded.

    ``gated`` is true if a part of the run was behind a gate; ``gate`` has its destinations, refused ones
    first, and ``closed`` says who cut off its network access. ``left_out`` is the number of connections not
    listed.
    """

    recorded: bool
    connections: list[JobConnection]
    gated: bool
    gate: list[JobGateRow]
    closed: str
    left_out: int
    notes: list[str]


class JobFiles(ResponseModel):
    """Files of one class in a directory, on one node; ``stripes`` is null if unknown, -1 for all targets."""

    directory: str
    files_class: str
    tier: str
    filesystem: str
    pattern: str
    written: bool
    files: int
    bytes: int
    stripes: int | None
    node: str


class JobStorage(ResponseModel):
    """Input and output of a run; ``recorded`` is false without any, ``live`` is true while it is recorded."""

    recorded: bool
    live: bool
    advice: list[str]
    files: list[JobFiles]
    left_out: int
    notes: list[str]


class JobCheckpoint(ResponseModel):
    """A checkpoint in a directory of a run; null means not recorded, ``note`` says what is wrong with it."""

    name: str
    directory: str
    state: str
    note: str
    bytes: int
    step: int | None
    time_ms: int | None
    world_size: int | None
    stall_s: float | None
    write_s: float | None
    deletable: bool


class JobDip(ResponseModel):
    """Cost of one checkpoint, which may be deleted by now: in seconds, and as loss of throughput in %."""

    step: int
    begin_ms: int
    end_ms: int
    stall_s: float
    seconds: float
    lower_percent: float


class JobCheckpoints(ResponseModel):
    """Checkpoints of a run, what they cost, and the space left for them; empty if its launches have none.

    ``lines`` are sentences, the first the most important; ``figure`` is null without steps.
    """

    checkpoints: list[JobCheckpoint]
    dips: list[JobDip]
    lines: list[str]
    warnings: list[str]
    quota: str
    notes: list[str]
    figure: Figure | None


class LookAnswer(ResponseModel):
    """Answer of one rank to a look: the size of what it wrote, or an error.

    ``note`` says why py-spy was not used, or what else is unusual.
    """

    rank: int
    bytes: int
    error: str
    method: str
    note: str


class LookItem(ResponseModel):
    """A look at ranks of a launch; those in ``missing`` have not answered, ``flame`` is true with an SVG."""

    id: str
    what: Literal["stacks", "flame", "trace", "memory"]
    time_ms: int
    missing: list[int]
    answers: list[LookAnswer]
    flame: bool


class LookList(ResponseModel):
    """Looks at ranks of a launch, the newest first; ``directory`` has their files."""

    running: bool
    directory: str
    looks: list[LookItem]


class LookPlan(ResponseModel):
    """Ranks that a look would be requested from, why these, and what it costs the training."""

    ranks: list[int]
    why: str
    cost: str


class JobCluster(ResponseModel):
    """State of the cluster that a job runs on, null if unknown; ``live`` is false for a recorded state."""

    state: ClusterState | None
    live: bool
    problem: str


class EarlierRun(ResponseModel):
    """An earlier run of the same program.

    ``reason`` says what differs, empty if nothing does. ``seconds`` is the usual duration of a step, null
    if it is not known.
    """

    name: str
    started: str
    chosen: bool
    reason: str
    seconds: float | None


class EarlierRuns(ResponseModel):
    """A run's steps beside those of earlier runs of its program, the newest first.

    ``program`` is empty if the run's program is not recorded. ``verdict`` is ``slower``, ``faster``, ``same``
    or ``cannot tell``, ``confidence`` that of the first two, and ``resolution`` the smallest change, as a
    share, that would have been reported. ``automatic`` is false if the user chose the runs.
    """

    program: str
    automatic: bool
    runs: tuple[EarlierRun, ...]
    verdict: str
    sentence: str
    share: float | None
    least: float | None
    most: float | None
    resolution: float | None
    confidence: float
