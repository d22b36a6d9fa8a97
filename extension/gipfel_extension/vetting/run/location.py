"""Location of a vetting run: a step with a task on each node, an allocation, or this machine alone."""

import os
import re
import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from gipfel_cluster.model import Frozen, GipfelError
from gipfel_cluster.runs import RunFolder, runs_root
from gipfel_cluster.scheduler.excluded_nodes import excluded_nodes
from gipfel_cluster.scheduler.notation import expand_hostlist

_ODD = re.compile(r"[^A-Za-z0-9._-]")
_NODE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,254}")
#: From here on Slurm's step ids mean the batch script, an allocation's shell and the like.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0


class LocationKind(StrEnum):
    """Way in which a run gets its agents."""

    STEP = "step"
    ALLOCATION = "allocation"
    MACHINE = "machine"


class Location(Frozen):
    """Location of a run, as a task sees it.

    Parameters
    ----------
    nodes
        Every node that is to be vetted, in the allocation's order.
    rank
        This task's number; 0 coordinates.
    extra
        Whether another task of this node is its agent.
    attempt
        What tells this run from others in the same folder.
    """

    kind: LocationKind
    node: str
    nodes: tuple[str, ...]
    rank: int = 0
    extra: bool = False
    cluster: str
    job: str = ""
    attempt: str = ""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Location":
        """Return the location by Slurm's variables, without the job's excluded nodes; no command is run.

        Raises
        ------
        GipfelError
            They contradict each other.
        """
        node = node_name(environment)
        job = environment.get("SLURM_JOB_ID", "")
        cluster = cls.cluster_of(environment)
        if _in_step(environment):
            given = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
            nodes = _counted(_nodes(given), environment, "SLURM_STEP_NUM_NODES", "SLURM_STEP_NUM_TASKS")
            attempt = f"{environment['SLURM_STEP_ID']}-{environment.get('SLURM_RESTART_COUNT', '0')}"
            return cls(
                kind=LocationKind.STEP,
                node=node,
                nodes=nodes or (node,),
                rank=_number(environment, "SLURM_PROCID"),
                extra=_number(environment, "SLURM_LOCALID") > 0,
                cluster=cluster,
                job=job,
                attempt=attempt,
            )
        nodes = _nodes(environment.get("SLURM_JOB_NODELIST", "")) if job else ()
        if job:
            nodes = _counted(nodes, environment, "SLURM_JOB_NUM_NODES")
            without = excluded_nodes(environment.get("GIPFEL_RUN", ""))
            nodes = tuple(each for each in nodes if each not in without)
        if nodes:
            return cls(kind=LocationKind.ALLOCATION, node=node, nodes=nodes, cluster=cluster, job=job)
        return cls(kind=LocationKind.MACHINE, node=node, nodes=(node,), cluster=cluster, job=job)

    @staticmethod
    def cluster_of(environment: Mapping[str, str]) -> str:
        """Return the cluster's name, valid for a directory; this node's name without a cluster."""
        given = environment.get("GIPFEL_CLUSTER") or environment.get("SLURM_CLUSTER_NAME")
        return _ODD.sub("_", given or node_name(environment)).strip("._-")[:32] or "cluster"

    def folder(self, environment: Mapping[str, str]) -> Path:
        """Return the run folder: the job's own inside a job, else a new one.

        Raises
        ------
        GipfelError
            It can't be made or written.
        """
        given = environment.get("GIPFEL_RUN", "")
        if given and Path(given).is_dir():
            folder = Path(given)
        else:
            name = self.job or f"vet-{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.getpid()}"
            folder = RunFolder.create(runs_root(dict(environment)).absolute(), self.cluster, name).path
        try:
            (folder / "vetting").mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise GipfelError(
                f"Nothing can be written to the run folder {folder}: {error.strerror}.",
                "Set GIPFEL_RUNS to a folder that you can write to on every node.",
            ) from error
        return folder

    def rendezvous(self, folder: Path) -> Path:
        """Return the file by which the tasks of a step find the first one."""
        return folder / "vetting" / f"rendezvous-{self.attempt}.json"


def node_name(environment: Mapping[str, str]) -> str:
    """Return the name that Slurm gives to this node; its host name without Slurm.

    Raises
    ------
    GipfelError
        It can't be the name of a node.
    """
    given = environment.get("SLURMD_NODENAME") or environment.get("GIPFEL_NODE")
    name = given or socket.gethostname().partition(".")[0]
    if not _NODE.fullmatch(name):
        raise GipfelError(
            f"This node calls itself {name[:60]!r}, which can't be the name of a node.",
            "Set GIPFEL_NODE to a name of letters, digits and dashes.",
        )
    return name


def _in_step(environment: Mapping[str, str]) -> bool:
    step = environment.get("SLURM_STEP_ID", "")
    if not (step.isdecimal() and int(step) < _FIRST_SPECIAL_STEP and environment.get("SLURM_JOB_ID")):
        return False
    # A notebook's container is a step of one task too: what is typed there is meant for the allocation.
    alone = environment.get("SLURM_STEP_NUM_TASKS", "1") == "1"
    return not (alone and environment.get("GIPFEL_RUN"))


def _nodes(hostlist: str) -> tuple[str, ...]:
    try:
        return tuple(dict.fromkeys(expand_hostlist(hostlist)))
    except ValueError as error:
        raise GipfelError(f"Slurm's list of nodes can't be read: {error}.") from error


def _counted(nodes: tuple[str, ...], environment: Mapping[str, str], *names: str) -> tuple[str, ...]:
    """Return the nodes, if they are as many as Slurm counts: missing ones would not be vetted.

    Parameters
    ----------
    names
        Variables that hold their number; that of tasks counts only where there is no list.
    """
    for name in names:
        count = _number(environment, name)
        # A list that is missing stands for this node alone.
        if count > max(1, len(nodes)) and (not nodes or not name.endswith("_TASKS")):
            raise GipfelError(
                f"{name} says {count}, and Slurm's list names {len(nodes)} nodes: some would not be vetted.",
                "See that SLURM_JOB_NODELIST and SLURM_STEP_NODELIST reach the container.",
            )
    return nodes


def _number(environment: Mapping[str, str], name: str) -> int:
    value = environment.get(name, "0")
    if not value.isdecimal():
        raise GipfelError(f"{name} is {value[:40]!r}, which is not a number.", "Start it by srun.")
    return int(value)
