"""Documents of the job page: topology, communication, network, checkpoints, the cluster around the job."""

import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import Field

from gipfel_cluster.model import GipfelError
from gipfel_cluster.scheduler.machine import slurm_presence

from ..communication import read_communication
from ..communication.report import CommunicationReport, matrix_figure
from ..data.checkpoints import Checkpoint
from ..diagnosis.roles import parse_selection
from ..job.checkpoints import (
    CheckpointReport,
    checkpoint_directories,
    checkpoint_figure,
    read_checkpoints,
    storage_quota,
)
from ..job.run_roles import launch_folder
from ..job.run_storage import storage_report
from ..job.topology import JobTopology, Vetted, job_topology
from ..network import read_gate, read_network
from ..telemetry.sample import SourceError
from ..telemetry.sources.file_systems import CLASSES
from ..telemetry.store.overview import read_overview
from ..topology.cluster import (
    CLUSTER_FILE,
    PROMETHEUS_QUERIES,
    ClusterState,
    OwnJob,
    SlurmAnswers,
    append_state,
    ask_slurm,
    cluster_state,
    read_prometheus,
    read_states,
    run_fabric,
)
from ..topology.read import read_topology
from ..vetting.report import read_report
from .history import is_recorded
from .job import JobQuery, read_content
from .job_cache import StampedCache, communication_stamp
from .job_responses import (
    JobCheckpoint,
    JobCheckpoints,
    JobConnection,
    JobDip,
    JobFiles,
    JobGateRow,
    JobNetwork,
    JobStorage,
)
from .responses import Figure

#: Most seconds for reading the dumps of all ranks. Files that grow are read again (`StampedCache`) after at
#: least `_LEAST_AGE_S` seconds, and after at least `_READ_TIME_FACTOR` times as long as reading them took.
_LIMIT_S, _LEAST_AGE_S, _READ_TIME_FACTOR = 20.0, 15.0, 10.0
#: Reports that pages show, or the errors that explain why there are none.
_reports: StampedCache[CommunicationReport | GipfelError] = StampedCache(
    4, least_age_s=_LEAST_AGE_S, time_factor=_READ_TIME_FACTOR
)

#: Seconds between two queries of this server to Slurm or Prometheus, and between two states that it records.
_QUERY_S, _RECORD_S = 30.0, 60.0


#: Most rows of the tables of connections and directories.
_MOST_CONNECTIONS, _MOST_DIRECTORIES = 500, 100
#: `place` is the name and port of a destination.
_GATE_FIELDS = ("node", "place", "protocol", "allowed", "reason", "count", "sent", "received")
_QUOTA_S = 300.0


class TopologyQuery(JobQuery):
    """Run of the page, and an expression such as ``pp=6,7 & dp=0`` that selects ranks."""

    select: str = Field("", max_length=1000)


def topology_document(folder: Path, query: TopologyQuery) -> dict[str, Any]:
    """Return the topology of a run as JSON.

    Raises
    ------
    GipfelError
        The selection is not valid for this job.
    """
    return topology_of_run(folder, query).model_dump(mode="json")


def topology_of_run(folder: Path, query: TopologyQuery) -> JobTopology:
    """Return the topology of a run folder.

    Raises
    ------
    GipfelError
        The selection is not valid for this job.
    """
    content = read_content(folder, query)
    devices = read_overview(folder / "telemetry", buckets=1, metrics=()).devices
    nodes = {*(each.node for each in content.job.ranks), *(each.node for each in devices)} - {""}
    return job_topology(
        content,
        read_topology(folder, nodes),
        devices,
        selection=parse_selection(query.select),
        vetted=_vetted(folder),
    )


def _vetted(folder: Path) -> dict[str, Vetted]:
    """Return the verdicts of the run's last vetting by node; empty without a readable one."""
    try:
        report = read_report(folder)
    except (GipfelError, OSError):
        return {}
    good: dict[str, Vetted] = dict.fromkeys(report.good_nodes, "pass")
    return {**good, **dict.fromkeys(report.bad_nodes, "fail")}


class DarkQuery(JobQuery):
    """Run and launch, and whether the figure is drawn for a dark page."""

    dark: bool = False


def communication_document(folder: Path, query: DarkQuery) -> dict[str, Any]:
    """Return the content of a `job_responses.JobCommunication`; may take seconds."""
    launch = launch_folder(folder, query.launch)
    source = folder if launch is None else launch
    content = read_content(folder, query)
    nodes = {each.rank: each.node for each in content.job.ranks if each.node}
    found = _reports.get((source, query.layout), communication_stamp(source), lambda: _report(source, nodes))
    if isinstance(found, GipfelError):
        return {"missing": str(found), "report": None, "by": "", "figure": None}
    return {
        "missing": "",
        "report": found.model_dump(mode="json", exclude={"matrix"}),
        # What a row of the figure is: a rank, a node or a block of ranks.
        "by": found.matrix.by,
        "figure": matrix_figure(found.matrix, dark=query.dark),
    }


def _report(source: Path, nodes: dict[int, str]) -> CommunicationReport | GipfelError:
    try:
        return read_communication(source, nodes=nodes, limit_s=_LIMIT_S)
    except GipfelError as error:
        return error


def network_document(folder: Path) -> dict[str, Any]:
    """Return up to 500 connections of a run, and up to 500 destinations of its gates.

    Connections that leave the job and destinations that were refused come first.
    """
    record, gate = read_network(folder), read_gate(folder)
    names = {(row.address, row.port): row.name for row in gate.rows if row.allowed}
    rows = sorted(record.rows if record else (), key=lambda row: (row.direction == "listen", row.inside))
    shown = [
        JobConnection(
            **{name: value for name, value in vars(row).items() if not name.endswith("_ns")},
            name=names.get((row.address, row.port), "") if row.direction == "out" else "",
            first_ms=row.first_ns // 10**6,
            last_ms=row.last_ns // 10**6,
            all_interfaces=row.all_interfaces,
        )
        for row in rows[:_MOST_CONNECTIONS]
    ]
    destinations = [
        JobGateRow(
            **{name: getattr(row, name) for name in _GATE_FIELDS},
            first_ms=row.first_ns // 10**6,
            last_ms=row.last_ns // 10**6,
        )
        for row in gate.rows[:_MOST_CONNECTIONS]
    ]
    damaged = [f"{gate.damaged} lines of the gate's log can't be read."] if gate.damaged else []
    document = JobNetwork(
        recorded=record is not None,
        connections=shown,
        gated=gate.used,
        gate=destinations,
        # The user who cut the network at the gates, and the reason; empty if it was not cut.
        closed=gate.closed,
        left_out=len(rows) - len(shown) + len(gate.rows) - len(destinations),
        notes=[*(record.notes if record else ()), *damaged],
    )
    return document.model_dump(mode="json")


def checkpoints_document(folder: Path, query: DarkQuery) -> dict[str, Any]:
    """Return up to 500 checkpoints of a run's launches, their cost, and their dips.

    A dip is the time range in which a checkpoint was written, and how much slower training was meanwhile.

    Raises
    ------
    GipfelError
        A directory of checkpoints can't be read.
    """
    directories = checkpoint_directories(folder)
    if not directories:
        return JobCheckpoints(
            checkpoints=[], dips=[], lines=[], warnings=[], quota="", notes=[], figure=None
        ).model_dump(mode="json")
    try:
        report = read_checkpoints([each for each in directories if each.is_dir()], folder)
    except OSError as error:
        raise GipfelError(
            f"{error.filename or directories[0]} can't be read: {error.strerror}.", "Check its permissions."
        ) from error
    stalls = {each.end_ns: each.stall_s for each in report.writes}
    figure = checkpoint_figure(report, dark=query.dark)
    quota, problem = _quota()
    gone = [f"{each} does not exist." for each in directories if not each.is_dir()]
    document = JobCheckpoints(
        checkpoints=[_checkpoint(each, report) for each in report.checkpoints[-_MOST_CONNECTIONS:]],
        dips=[
            JobDip(
                step=each.step, begin_ms=each.begin_ns // 10**6, end_ms=each.end_ns // 10**6,
                stall_s=stalls.get(each.end_ns, 0.0), seconds=each.seconds, lower_percent=100 * each.lower,
            )
            for each in (report.cost.dips if report.cost else ())
        ],
        lines=report.sentences(),
        warnings=[each.warning for each in report.spaces if each.warning],
        quota=quota,
        notes=[*gone, *report.notes, *filter(None, (problem,))],
        figure=None if figure is None else Figure.model_validate(figure),
    )  # fmt: skip
    return document.model_dump(mode="json")


def _checkpoint(each: Checkpoint, report: CheckpointReport) -> JobCheckpoint:
    other = f"has other tensors than {report.others[each.path]}" if each.path in report.others else ""
    return JobCheckpoint(
        name=each.path.name, directory=str(each.path.parent), state=each.state,
        note=", ".join(filter(None, (each.problem, other))), bytes=each.bytes, step=each.step,
        time_ms=None if each.time_ns is None else each.time_ns // 10**6, world_size=each.world_size,
        stall_s=each.stall_s, write_s=each.write_s, deletable=each.path in report.old,
    )  # fmt: skip


_quotas: tuple[float, tuple[str, str]] = (-math.inf, ("", ""))


def _quota() -> tuple[str, str]:
    """Return the user's storage quota, which is queried at most every five minutes for all pages."""
    global _quotas  # noqa: PLW0603 - one answer for the process
    if time.monotonic() - _quotas[0] > _QUOTA_S:
        _quotas = time.monotonic(), storage_quota(os.environ)
    return _quotas[1]


def storage_document(folder: Path) -> dict[str, Any]:
    """Return up to 100 rows on the files of a run with their storage tier (such as local), and advice."""
    report, live = storage_report(folder), is_recorded(folder / "telemetry")
    files = () if report is None else report.record.files
    rows = [
        JobFiles(
            files_class=CLASSES.get(each.kind, each.kind),
            **{name: getattr(each, name) for name in JobFiles.model_fields if name != "files_class"},
        )
        for each in files[:_MOST_DIRECTORIES]
    ]
    document = JobStorage(
        recorded=report is not None,
        live=live,
        advice=[] if report is None else list(report.advice),
        files=rows,
        left_out=len(files) - len(rows),
        notes=[] if report is None else list(report.notes),
    )
    return document.model_dump(mode="json")


class ClusterAround:
    """The cluster around the jobs that pages show; it is queried at most every 30 s for all of them together.

    Parameters
    ----------
    prometheus
        Address of the site's Prometheus; if empty, ``sinfo`` and ``squeue`` are used.
    queries
        PromQL queries by the name of what they count; if empty, `PROMETHEUS_QUERIES`.
    clock
        Function that returns monotonic seconds.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        prometheus: str = "",
        queries: Mapping[str, str] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._environment = environment
        self._prometheus, self._queries = prometheus, dict(queries or PROMETHEUS_QUERIES)
        self._clock = clock
        self._lock = threading.Lock()
        self._tried_s = -_QUERY_S
        self._answer: SlurmAnswers | ClusterState | None = None
        self._problem = ""

    def document(self, folder: Path) -> dict[str, Any]:
        """Return the content of a `job_responses.JobCluster`: live for a run that is recorded now."""
        live = is_recorded(folder / "telemetry")
        state = self._live(folder) if live else None
        if state is not None:
            self._record(folder, state)
        else:
            state = next(reversed(read_states(folder)), None)
        problem = self._problem if live else ""
        return {
            "state": None if state is None else state.model_dump(mode="json"),
            "live": live,
            "problem": problem,
        }

    def _live(self, folder: Path) -> ClusterState | None:
        answer = self._ask()
        if not isinstance(answer, SlurmAnswers):
            return answer
        own = OwnJob(job_id=folder.name.rpartition("-")[2], nodes=tuple(read_topology(folder).nodes))
        return cluster_state(answer, own, run_fabric(folder))

    def _ask(self) -> SlurmAnswers | ClusterState | None:
        """Return the cached state, queried again if it is old; after an error, the earlier state is kept."""
        with self._lock:
            if self._clock() - self._tried_s >= _QUERY_S:
                try:
                    if self._prometheus:
                        self._answer = read_prometheus(self._prometheus, time.time_ns(), self._queries)
                    elif self._has_slurm:
                        self._answer = ask_slurm(self._environment, time.time_ns())
                    self._problem = ""
                except SourceError as error:
                    self._problem = str(error)
                self._tried_s = self._clock()
            return self._answer

    @cached_property
    def _has_slurm(self) -> bool:
        """Return whether there is a cluster to query; jobs on a single machine have none."""
        return "SLURM_JOB_ID" in self._environment or slurm_presence(self._environment).configured

    def _record(self, folder: Path, state: ClusterState) -> None:
        try:
            age_s = time.time() - (folder / CLUSTER_FILE).stat().st_mtime
        except OSError:
            age_s = _RECORD_S
        if age_s >= _RECORD_S:
            try:
                append_state(folder, state)
            except OSError as error:
                self._problem = f"The state of the cluster can't be recorded: {error.strerror}."
