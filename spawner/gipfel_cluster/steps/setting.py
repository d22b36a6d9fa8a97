"""What a step needs to know of the job around it: from the job's broker, or from a process on the host."""

import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path

from ..broker.surroundings import Surroundings, find_runtime
from ..job.left_out import left_out
from ..model import GipfelError
from ..runtime import Runtime
from ..scheduler.hostlist import expand_hostlist
from .spec import StepSetting

_CPUS = re.compile(r"([0-9]+)(?:\(x[0-9]+\))?")


def setting_of_job(surroundings: Surroundings) -> StepSetting:
    """The setting that a job's broker knows."""
    offered = surroundings.offered
    run = offered.get("GIPFEL_RUN", "")
    return StepSetting(
        home=surroundings.home,
        cluster=surroundings.cluster,
        engine=surroundings.engine,
        edf=surroundings.edf,
        runtime=surroundings.runtime,
        wanted_runtime=surroundings.wanted_runtime,
        run=run,
        job_id=offered.get("GIPFEL_JOB_ID", ""),
        # The scratch folder is on the disk of one node.
        folders=tuple(each for each in surroundings.folders if each != surroundings.scratch),
        **_allocation(surroundings.host, run),
    )


def setting_of_host(environment: Mapping[str, str]) -> StepSetting:
    """The setting of a process on the host: in a job of ours, in any other job, or in none.

    ``$GIPFEL_EDF`` is the EDF of steps that name none.
    """
    engine = environment.get("GIPFEL_ENGINE", "")
    run = environment.get("GIPFEL_RUN", "")
    return StepSetting(
        home=environment.get("HOME") or str(Path.home()),
        cluster=environment.get("GIPFEL_CLUSTER", "local"),
        # A job without a container says "host", which runs no image.
        engine="" if engine == "host" else engine,
        edf=environment.get("GIPFEL_EDF", ""),
        runtime=find_runtime("", environment) or Runtime.here(),
        run=run,
        job_id=environment.get("GIPFEL_JOB_ID", ""),
        folders=(run,) if run else (),
        **_allocation(environment, run),
    )


def job_nodes(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The nodes of the job that these are the variables of, in Slurm's order; without Slurm this machine.

    Raises
    ------
    GipfelError
        Slurm's list can't be read.
    """
    listed = environment.get("SLURM_JOB_NODELIST") or environment.get("SLURM_NODELIST")
    if not environment.get("SLURM_JOB_ID"):
        return (socket.gethostname().partition(".")[0],)
    if not listed:
        raise GipfelError(
            "Slurm's job says no nodes: SLURM_JOB_NODELIST is not set.", "Start it from within the job."
        )
    try:
        return expand_hostlist(listed)
    except ValueError as error:
        raise GipfelError(f"The job's list of nodes can't be read: {error}.") from error


def fewest_cpus(environment: Mapping[str, str]) -> int:
    """The fewest CPUs that the job has on a node; those of this process without Slurm."""
    if not environment.get("SLURM_JOB_ID"):
        return len(os.sched_getaffinity(0))
    counts = [_CPUS.fullmatch(part) for part in environment.get("SLURM_JOB_CPUS_PER_NODE", "").split(",")]
    return min((int(each[1]) for each in counts if each), default=1)


def _allocation(environment: Mapping[str, str], run: str) -> dict[str, object]:
    without = left_out(run)
    return {
        "slurm_job": environment.get("SLURM_JOB_ID", ""),
        "nodes": tuple(node for node in job_nodes(environment) if node not in without),
        "cpus": fewest_cpus(environment),
    }
