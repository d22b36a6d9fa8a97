"""The cluster of a job: numbers of allocated, idle and down nodes, the queue, and jobs on the same switches.

A state comes from one ``sinfo`` and one ``squeue`` (`ask_slurm`, `cluster_state`), or from the site's
Prometheus (`read_prometheus`). States are recorded in ``cluster.jsonl`` of the run folder: `ClusterRecorder`
adds one every five minutes on a job's first node, and the notebook server some while a page shows the job.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from pydantic import ValidationError

from gipfel_cluster.model import Frozen, GipfelError, one_line
from gipfel_cluster.scheduler.machine import run_command, run_sync
from gipfel_cluster.scheduler.notation import expand_hostlist

from ..telemetry.files import append_text, read_regular
from ..telemetry.sample import SourceError
from ..telemetry.sources.web import checked_url, get_json
from . import FOLDER, MOST_SLURM_BYTES, SLURM_FILE
from .read import Fabric, parse_fabric

log = logging.getLogger("gipfel.recorder")
CLUSTER_FILE = "cluster.jsonl"
_SINFO = ("sinfo", "--noheader", "--Node", "--format=%N|%P|%T")
_STATES = "--states=RUNNING,COMPLETING,SUSPENDED,PENDING"
_SQUEUE = ("squeue", "--noheader", _STATES, "--format=%A|%P|%T|%D|%N")
_COMMAND_S, _COMMAND_BYTES = 20.0, 32 << 20
_MOST_FILE_BYTES, _MOST_SWITCHES, _MOST_STATES = 4 << 20, 256, 20_000
#: Seconds between two recorded states, and maximum seconds to wait for the switches before the first one.
_RECORD_S, _TOPOLOGY_S = 300.0, 15.0
_VARIABLES = ("PATH", "HOME", "USER", "LD_LIBRARY_PATH", "SLURM_CONF", "SLURM_JWT", "SACK_SOCKET")
_PROMETHEUS_S, _PROMETHEUS_BYTES = 5.0, 1 << 20
_BUSY = frozenset(("allocated", "mixed", "completing"))
_IDLE = frozenset(("idle", "planned"))
_SUFFIXES = "~#!%$@^-+"
#: PromQL query by what it counts, with the metric names of the common Prometheus exporter for Slurm.
PROMETHEUS_QUERIES: Mapping[str, str] = {
    "allocated": "sum(slurm_nodes_alloc) + sum(slurm_nodes_mix)",
    "idle": "sum(slurm_nodes_idle)",
    "down": "sum(slurm_nodes_down) + sum(slurm_nodes_drain)",
    "running": "sum(slurm_queue_running)",
    "pending": "sum(slurm_queue_pending)",
}


class NodeCounts(Frozen, extra="ignore"):
    """Numbers of nodes by state; ``down`` includes draining nodes and those reserved for maintenance."""

    allocated: int = 0
    idle: int = 0
    down: int = 0


class SwitchLoad(Frozen, extra="ignore"):
    """Numbers of nodes on a leaf switch that the job uses.

    ``own`` are allocated to the job, ``others`` to other jobs; ``jobs`` is the number of these jobs, null if
    unknown.
    """

    name: str
    own: int = 0
    others: int = 0
    idle: int = 0
    down: int = 0
    jobs: int | None = None


class ClusterState(Frozen, extra="ignore"):
    """The cluster at one time.

    ``running`` and ``pending`` are numbers of jobs in the job's partition, or of the cluster where that is
    unknown; null if the source does not have them. ``problems`` name what could not be read, and what to do.
    """

    time_ns: int
    source: str
    nodes: NodeCounts
    partition: str = ""
    partition_nodes: NodeCounts | None = None
    running: int | None = None
    pending: int | None = None
    switches: tuple[SwitchLoad, ...] = ()
    problems: tuple[str, ...] = ()


class OwnJob(Frozen):
    """The job for which other jobs on its switches are counted: its ID and its nodes; both may be unknown."""

    job_id: str = ""
    nodes: tuple[str, ...] = ()


class SlurmAnswers(Frozen):
    """Output of ``sinfo`` and ``squeue``, and the UTC time at which they ran."""

    sinfo: str
    squeue: str
    time_ns: int


def ask_slurm(environment: Mapping[str, str], time_ns: int) -> SlurmAnswers:
    """Run ``sinfo`` and ``squeue`` once each, with a limit of time and size.

    Raises
    ------
    SourceError
        A command is missing, fails or takes too long.
    """
    return SlurmAnswers(sinfo=_run(_SINFO, environment), squeue=_run(_SQUEUE, environment), time_ns=time_ns)


def _run(argv: tuple[str, ...], environment: Mapping[str, str]) -> str:
    # Omit variables that change the commands' output, or with which they would count as a rank of the job.
    clean = {name: environment[name] for name in _VARIABLES if name in environment}
    try:
        found = run_sync(run_command(argv, environment=clean, limit=_COMMAND_S, max_bytes=_COMMAND_BYTES))
    except TimeoutError as error:
        raise SourceError(
            f"{argv[0]} did not answer within {_COMMAND_S:.0f} s.", "It is tried again."
        ) from error
    except GipfelError as error:
        raise SourceError(
            f"The cluster can't be read: {error.problem}",
            "Without Slurm's commands, set GipfelExtension.cluster_prometheus to the site's Prometheus.",
        ) from error
    if found.code:
        reason = one_line(found.errors)[:200] or f"exit status {found.code}"
        raise SourceError(f"{argv[0]} failed: {reason}.", "It is tried again.")
    return found.output


def cluster_state(answers: SlurmAnswers, own: OwnJob, fabric: Fabric) -> ClusterState:
    """Return the state that the output of both commands describes; skip lines in other formats."""
    states, partitions = _parse_sinfo(answers.sinfo)
    jobs = list(_parse_squeue(answers.squeue))
    mine = next((each for each in jobs if own.job_id and each["id"] == own.job_id), None)
    # The run lists a node only once it has samples, Slurm from the start of the job.
    nodes = frozenset((*own.nodes, *(mine["nodes"] if mine else ())))
    partition = mine["partition"] if mine else _partition_of(nodes, partitions)
    inside = [each for each in jobs if not partition or each["partition"] == partition]
    others = [each for each in jobs if each is not mine and each["nodes"]]
    problems = []
    busy = {name for name, state in states.items() if state == "allocated"}
    if busy - nodes and not others:
        problems.append(
            "Slurm shows only your own jobs here (PrivateData=jobs): jobs of others can't be counted. "
            "Operators of Slurm see them."
        )
    return ClusterState(
        time_ns=answers.time_ns,
        source="sinfo and squeue",
        nodes=_counted(states.values()),
        partition=partition,
        partition_nodes=_counted(states[each] for each in partitions[partition])
        if partition in partitions
        else None,
        running=None if problems else sum(each["state"] != "PENDING" for each in inside),
        pending=None if problems else sum(each["state"] == "PENDING" for each in inside),
        switches=_switches(nodes, states, None if problems else others, fabric),
        problems=tuple(problems),
    )


def _parse_sinfo(output: str) -> tuple[dict[str, str], dict[str, set[str]]]:
    """Return the state of each node, and the nodes of each partition."""
    states: dict[str, str] = {}
    partitions: dict[str, set[str]] = {}
    for line in output.splitlines():
        fields = [each.strip() for each in line.split("|")]
        if len(fields) != 3 or not fields[0]:
            continue
        # A star marks the default partition, and nodes that don't respond.
        word = fields[2].rstrip(_SUFFIXES)
        states[fields[0]] = "allocated" if word in _BUSY else "idle" if word in _IDLE else "down"
        partitions.setdefault(fields[1].rstrip("*"), set()).add(fields[0])
    return states, partitions


def _parse_squeue(output: str) -> Iterable[dict[str, Any]]:
    for line in output.splitlines():
        fields = [each.strip() for each in line.split("|")]
        if len(fields) == 5 and fields[0].isdecimal():
            try:
                nodes = expand_hostlist(fields[4]) if fields[4] not in ("", "(null)") else ()
            except ValueError:
                nodes = ()
            yield {"id": fields[0], "partition": fields[1], "state": fields[2], "nodes": frozenset(nodes)}


def _partition_of(nodes: frozenset[str], partitions: Mapping[str, set[str]]) -> str:
    """Return the smallest partition that contains all nodes; empty if none does."""
    fitting = [name for name, own in partitions.items() if nodes and nodes <= own]
    return min(fitting, key=lambda name: len(partitions[name]), default="")


def _counted(states: Iterable[str]) -> NodeCounts:
    found = list(states)
    return NodeCounts(**{name: found.count(name) for name in ("allocated", "idle", "down")})


def _switches(
    own: frozenset[str], states: Mapping[str, str], others: list[dict[str, Any]] | None, fabric: Fabric
) -> tuple[SwitchLoad, ...]:
    found = []
    leaves = dict.fromkeys(leaf for node in sorted(own) if (leaf := fabric.leaf_of.get(node)))
    for leaf in list(leaves)[:_MOST_SWITCHES]:
        below = {node for node, name in fabric.leaf_of.items() if name == leaf and node in states}
        rest = [states[node] for node in below - own]
        jobs = None if others is None else sum(bool(each["nodes"] & below) for each in others)
        counts = _counted(rest)
        found.append(
            SwitchLoad(
                name=leaf,
                own=len(below & own),
                others=counts.allocated,
                idle=counts.idle,
                down=counts.down,
                jobs=jobs,
            )
        )
    return tuple(found)


def read_prometheus(url: str, time_ns: int, queries: Mapping[str, str] = PROMETHEUS_QUERIES) -> ClusterState:
    """Return the state from a Prometheus; a query that finds nothing is named as a problem.

    Raises
    ------
    SourceError
        The server does not respond, or has no metric with numbers of nodes.
    """
    base = checked_url("prometheus", url)
    values: dict[str, int | None] = {name: _instant(base, query) for name, query in queries.items()}
    counts = {name: values.get(name) for name in ("allocated", "idle", "down")}
    if all(value is None for value in counts.values()):
        raise SourceError(
            f"{base} has no metric of Slurm's nodes.",
            "Set GipfelExtension.cluster_queries to the site's names.",
        )
    absent = [name for name, value in values.items() if value is None]
    problems = (f"{base} does not tell: {', '.join(absent)}.",) if absent else ()
    return ClusterState(
        time_ns=time_ns,
        source=base,
        nodes=NodeCounts(**{name: value or 0 for name, value in counts.items()}),
        running=values.get("running"),
        pending=values.get("pending"),
        problems=problems,
    )


def _instant(base: str, query: str) -> int | None:
    found = get_json(
        f"{base}/api/v1/query?{urlencode({'query': query})}",
        seconds=_PROMETHEUS_S,
        max_bytes=_PROMETHEUS_BYTES,
    )
    try:
        return round(float(found["data"]["result"][0]["value"][1]))
    except (KeyError, IndexError, TypeError, ValueError, OverflowError):
        return None


def append_state(run: Path, state: ClusterState) -> None:
    """Append a state to the run folder's file; do nothing once that has its maximum size."""
    append_text(run / CLUSTER_FILE, state.model_dump_json() + "\n", _MOST_FILE_BYTES)


def read_states(run: Path) -> list[ClusterState]:
    """Return the recorded states of a run, sorted by time; skip damaged lines."""
    try:
        lines = read_regular(run / CLUSTER_FILE, 2 * _MOST_FILE_BYTES).splitlines()
    except OSError:
        return []
    found = []
    for line in lines[-_MOST_STATES:]:
        try:
            found.append(ClusterState.model_validate_json(line))
        except ValidationError:
            continue
    return sorted(found, key=lambda each: each.time_ns)


def run_fabric(run: Path) -> Fabric:
    """Return the cluster's switches that are stored in the run folder; an empty fabric if there are none."""
    try:
        content = read_regular(run / FOLDER / SLURM_FILE, MOST_SLURM_BYTES)
        return parse_fabric(content.decode(errors="replace"))
    except (OSError, ValueError):
        return Fabric()


def _job_nodes(environment: Mapping[str, str]) -> tuple[str, ...]:
    try:
        return expand_hostlist(environment.get("SLURM_JOB_NODELIST", ""))
    except ValueError:
        return ()


class ClusterRecorder:
    """Recorder of the cluster's state on a job's first node: when polled, it adds a state every five minutes.

    Parameters
    ----------
    read
        Function that returns the current state.
    clock
        Monotonic clock in seconds.
    """

    def __init__(
        self,
        run: Path,
        environment: Mapping[str, str] = os.environ,
        *,
        read: Callable[[], ClusterState] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run = run
        self._environment = dict(environment)
        self._read = read or self._read_slurm
        self._clock = clock
        self._start_s = clock()
        self._next_s = self._start_s
        self._thread: threading.Thread | None = None

    def poll(self) -> None:
        """Read the state in a thread if it is time."""
        now = self._clock()
        # Wait until the switches are stored: they show which jobs share switches with this one.
        if now - self._start_s < _TOPOLOGY_S and not (self._run / FOLDER / SLURM_FILE).exists():
            return
        if now >= self._next_s and (self._thread is None or not self._thread.is_alive()):
            self._next_s = now + _RECORD_S
            self._thread = threading.Thread(target=self._record, name="gipfel-cluster", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop recording."""
        self._next_s = float("inf")

    def _record(self) -> None:
        try:
            append_state(self._run, self._read())
        except (SourceError, OSError) as error:
            log.info("The cluster around the job is unknown: %s", error)

    def _read_slurm(self) -> ClusterState:
        job_id = self._environment.get("SLURM_JOB_ID", "")
        own = OwnJob(job_id=job_id, nodes=_job_nodes(self._environment))
        answers = ask_slurm(self._environment, time.time_ns())
        return cluster_state(answers, own, run_fabric(self._run))
