"""Location of a vetting run: a Slurm step with a task on each node, an allocation, or this machine."""

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

_INVALID_CHARACTER = re.compile(r"[^A-Za-z0-9._-]")
_NODE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,254}")
#: Slurm's step IDs from this number on are the batch script, an interactive shell and the like.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0


class LocationKind(StrEnum):
    """Kind of location, which determines how agents are started."""

    STEP = "step"
    ALLOCATION = "allocation"
    MACHINE = "machine"


class Location(Frozen):
    """Location of a run, as one of its tasks sees it.

    Parameters
    ----------
    nodes
        Nodes to vet, in the order of the allocation.
    rank
        Number of this task; task 0 is the coordinator.
    redundant
        Whether this task has nothing to do, since another task of this node is the node's agent.
    attempt
        Identifies the run among others in the same run folder.
    """

    kind: LocationKind
    node: str
    nodes: tuple[str, ...]
    rank: int = 0
    redundant: bool = False
    cluster: str
    job: str = ""
    attempt: str = ""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Location":
        """Return the location from Slurm's environment variables.

        Outside of a step, nodes are left out that an earlier vetting excluded from the job.

        Raises
        ------
        GipfelError
            The variables are inconsistent.
        """
        node = node_name(environment)
        job = environment.get("SLURM_JOB_ID", "")
        cluster = cls.cluster_of(environment)
        if _in_step(environment):
            given = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
            nodes = _checked_count(_nodes(given), environment, "SLURM_STEP_NUM_NODES", "SLURM_STEP_NUM_TASKS")
            attempt = f"{environment['SLURM_STEP_ID']}-{environment.get('SLURM_RESTART_COUNT', '0')}"
            return cls(
                kind=LocationKind.STEP,
                node=node,
                nodes=nodes or (node,),
                rank=_number(environment, "SLURM_PROCID"),
                redundant=_number(environment, "SLURM_LOCALID") > 0,
                cluster=cluster,
                job=job,
                attempt=attempt,
            )
        nodes = _nodes(environment.get("SLURM_JOB_NODELIST", "")) if job else ()
        if job:
            nodes = _checked_count(nodes, environment, "SLURM_JOB_NUM_NODES")
            excluded = excluded_nodes(environment.get("GIPFEL_RUN", ""))
            nodes = tuple(each for each in nodes if each not in excluded)
        if nodes:
            return cls(kind=LocationKind.ALLOCATION, node=node, nodes=nodes, cluster=cluster, job=job)
        return cls(kind=LocationKind.MACHINE, node=node, nodes=(node,), cluster=cluster, job=job)

    @staticmethod
    def cluster_of(environment: Mapping[str, str]) -> str:
        """Return the cluster's name as a valid directory name; without a cluster, this node's name."""
        given = environment.get("GIPFEL_CLUSTER") or environment.get("SLURM_CLUSTER_NAME")
        return _INVALID_CHARACTER.sub("_", given or node_name(environment)).strip("._-")[:32] or "cluster"

    def folder(self, environment: Mapping[str, str]) -> Path:
        """Return the run folder: that of the job, else a new one.

        Raises
        ------
        GipfelError
            It can't be created or written.
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
                "Set GIPFEL_RUNS to a directory that you can write to on every node.",
            ) from error
        return folder

    def rendezvous(self, folder: Path) -> Path:
        """Return the file with the rendezvous for the tasks of a step."""
        return folder / "vetting" / f"rendezvous-{self.attempt}.json"


def node_name(environment: Mapping[str, str]) -> str:
    """Return Slurm's name of this node; without Slurm, its host name.

    Raises
    ------
    GipfelError
        The name is not a valid node name.
    """
    given = environment.get("SLURMD_NODENAME") or environment.get("GIPFEL_NODE")
    name = given or socket.gethostname().partition(".")[0]
    if not _NODE.fullmatch(name):
        raise GipfelError(
            f"This node's name is {name[:60]!r}, which is not a valid node name.",
            "Set GIPFEL_NODE to a name of letters, digits and dashes.",
        )
    return name


def _in_step(environment: Mapping[str, str]) -> bool:
    step = environment.get("SLURM_STEP_ID", "")
    if not (step.isdecimal() and int(step) < _FIRST_SPECIAL_STEP and environment.get("SLURM_JOB_ID")):
        return False
    # A notebook's container is a step of one task too, but a run there is for the whole allocation.
    single_task = environment.get("SLURM_STEP_NUM_TASKS", "1") == "1"
    return not (single_task and environment.get("GIPFEL_RUN"))


def _nodes(hostlist: str) -> tuple[str, ...]:
    try:
        return tuple(dict.fromkeys(expand_hostlist(hostlist)))
    except ValueError as error:
        raise GipfelError(f"Slurm's list of nodes can't be parsed: {error}.") from error


def _checked_count(nodes: tuple[str, ...], environment: Mapping[str, str], *names: str) -> tuple[str, ...]:
    """Return the nodes after checking their number against Slurm's: missing ones would not be vetted.

    Parameters
    ----------
    names
        Variables with the number of nodes or tasks; one that ends in ``_TASKS`` is only checked if Slurm gave
        no list of nodes.
    """
    for name in names:
        count = _number(environment, name)
        # Without a list only this node is vetted, so that a count of 1 is right.
        if count > max(1, len(nodes)) and (not nodes or not name.endswith("_TASKS")):
            raise GipfelError(
                f"{name} is {count}, but Slurm's list has {len(nodes)} nodes: some would not be vetted.",
                "Pass SLURM_JOB_NODELIST and SLURM_STEP_NODELIST to the container.",
            )
    return nodes


def _number(environment: Mapping[str, str], name: str) -> int:
    value = environment.get(name, "0")
    if not value.isdecimal():
        raise GipfelError(f"{name} is {value[:40]!r}, which is not a number.", "Start the command with srun.")
    return int(value)
