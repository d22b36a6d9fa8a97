"""Ranks of a job: process, GPU, NUMA node, node, switch, role, and what happened to them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field

from gipfel_cluster.model import Frozen

from ..diagnosis.roles import Roles
from ..telemetry.ranks import RankLocation
from ..training.launches.logs import launch_logs
from ..training.record import RankRecord, first_failure, read_rank_records
from .run_roles import RunRoles, launch_folder, roles_of_run, state_of

RankState = Literal["seen", "ended", "failed", "missing"]
#: Maximum number of ranks that a page shows; further ones are only counted.
MOST_RANKS = 4096


class Problem(Frozen):
    """A problem, such as contradicting roles, in one sentence; ``fix`` says what to do."""

    text: str
    fix: str = ""


class JobRank(Frozen):
    """One rank: where it runs, its role, and its state.

    ``gpus`` are UUIDs. ``numa`` is the NUMA node of all cores of the process, or of its GPU if they are on
    several nodes; null if neither is known.
    ``role`` has the rank's coordinate by axis. ``log`` is true if the launch has a log of this rank.
    ``failure`` is one line, empty if the rank did not fail.
    """

    rank: int
    state: RankState
    role: dict[str, int] = Field(default_factory=dict)
    node: str = ""
    switch: str = ""
    nic: str = ""
    numa: int | None = None
    pid: int | None = None
    process: str = ""
    gpus: tuple[str, ...] = ()
    log: bool = False
    failure: str = ""


class Job(Frozen):
    """Ranks of a run, or of one of its launches.

    ``world_size`` is null if unknown. ``source`` is the source of the roles: ``typed``, ``file``, ``rank``,
    ``mesh``, ``wrapper`` (DDP or FSDP), ``launch``, or empty if there are none. ``launch`` is ``RUN/N``,
    empty outside of launches. ``axes`` has the number of positions on each axis. ``missing`` are the ranks
    that were never seen.
    """

    run: str
    launch: str
    launches: tuple[str, ...]
    world_size: int | None
    source: str
    axes: dict[str, int]
    ranks: tuple[JobRank, ...]
    missing: tuple[int, ...]
    problems: tuple[Problem, ...]


class JobContent:
    """A job with its roles, for selections and figures.

    Parameters
    ----------
    job
        The ranks and their state, as a page shows them.
    roles
        Coordinates of the ranks, and their nodes, GPUs, NICs and switches.
    """

    def __init__(self, job: Job, roles: Roles) -> None:
        self.job = job
        self.roles = roles
        self.gpus: Mapping[int, tuple[str, ...]] = {each.rank: each.gpus for each in job.ranks}


def read_job(run: Path, *, layout: str = "", launch: str | None = None) -> JobContent:
    """Return the ranks of a run folder; damaged files become problems and raise no error.

    Parameters
    ----------
    layout
        Sizes of axes that a person typed, such as ``pp=2,dp=4``.
    launch
        ``RUN/N`` of one of several launches in the run; by default the newest.
    """
    found = roles_of_run(run, layout, launch)
    folder = launch_folder(run, found.reports.launch or None)
    records = read_rank_records(folder) if folder else {}
    logs = launch_logs(folder).files if folder else {}
    failures = _failures(folder)
    locations: dict[int, list[RankLocation]] = {}
    for each in found.locations:
        locations.setdefault(each.rank, []).append(each)
    ranks = sorted({*found.present, *found.missing, *found.roles.coordinates})[:MOST_RANKS]
    rows = tuple(
        _rank(
            rank,
            found,
            tuple(locations.get(rank, ())),
            record=records.get(rank),
            log=rank in logs,
            failure=failures.get(rank, ""),
        )
        for rank in ranks
    )
    axes: dict[str, int] = {}
    for own in found.roles.coordinates.values():
        for axis, value in own.items():
            axes[axis] = max(axes.get(axis, 0), value + 1)
    job = Job(
        run=run.name,
        launch=found.reports.launch,
        launches=found.reports.launches,
        world_size=found.world_size,
        source=found.source,
        axes=axes,
        ranks=rows,
        missing=found.missing[:MOST_RANKS],
        problems=tuple(Problem(text=each.problem, fix=each.fix) for each in found.problems),
    )
    return JobContent(job, found.roles)


def _rank(
    rank: int,
    found: RunRoles,
    own: tuple[RankLocation, ...],
    *,
    record: RankRecord | None,
    log: bool,
    failure: str,
) -> JobRank:
    reported = found.reports.ranks.get(rank)
    places = found.roles.places.get(rank, {})
    process = own[0] if own else None
    gpus = tuple(dict.fromkeys(each.gpu_uuid for each in own if each.gpu_uuid))
    pid = process.pid if process else (reported.pid if reported else 0) or None
    return JobRank(
        rank=rank,
        state=_state(record, seen=bool(own or reported), failed=bool(failure)),
        role=dict(found.roles.coordinates.get(rank, {})),
        node=places.get("node", ""),
        switch=places.get("switch", ""),
        nic=places.get("nic", ""),
        numa=process.numa if process else None,
        pid=pid,
        process=process.name if process else "",
        gpus=gpus or ((places["gpu"],) if "gpu" in places else ()),
        log=log,
        failure=failure,
    )


def _state(record: RankRecord | None, *, seen: bool, failed: bool) -> RankState:
    if failed or (record is not None and record.status):
        return "failed"
    if record is not None and record.ended_ns is not None:
        return "ended"
    return "seen" if seen or record is not None else "missing"


def _failures(folder: Path | None) -> dict[int, str]:
    """Return the failure that ended a launch as one line, by the rank that failed; empty without one."""
    state = state_of(folder) if folder else None
    if folder is None or state is None:
        return {}
    failure = first_failure(folder, state.attempt) or state.failure
    return {} if failure is None else {failure.rank: str(failure)}
