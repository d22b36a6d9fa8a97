"""Describe the job of a step, and compose the container of one of its tasks on the task's node."""

import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from ..broker.context import (
    JobContext,
    find_runtime,
    is_system_directory,
    runtime_for_images,
    without_ssh,
    workspace_in_container,
    workspace_on_host,
)
from ..edf import Edf, Mount
from ..egress.start import gated_invocation
from ..engines import ContainerRequest, Invocation, load_usable_edf, usable_engine
from ..environment import PROTECTED_VARIABLES
from ..model import GipfelError
from ..runtime import Runtime
from ..scheduler.excluded_nodes import excluded_nodes
from ..scheduler.notation import expand_hostlist
from .spec import IMAGE_PYTHON, NODES_VARIABLE, PYTHON, RANKS_VARIABLE, StepJob, StepPlan

# Variables of the notebook server, which are invalid on other nodes.
_SERVER_VARIABLES = ("JUPYTER_", "JUPYTERHUB_", "JPY_", "IPYTHONDIR")
_CPUS = re.compile(r"([0-9]+)(?:\(x[0-9]+\))?")


def step_edf(plan: StepPlan, environment: Mapping[str, str]) -> Edf:
    """Look up and check the EDF of a step on this node.

    Raises
    ------
    GipfelError
        The EDF is not found, or can't be used here.
    """
    name = plan.spec.edf or plan.job.edf
    if not name:
        return Edf(name="", path=None)
    directory = Path(plan.job.home)
    return without_ssh(load_usable_edf(name, plan.job.engine, environment=environment, directory=directory))


def task_invocation(
    plan: StepPlan,
    edf: Edf,
    *,
    environment: Mapping[str, str],
    task_variables: Mapping[str, str],
    scratch: str,
    python: str,
    node: str = "",
    step: tuple[str, ...] = (),
) -> tuple[Invocation, str]:
    """Return the command to execute for a task, and its working directory on the host.

    Parameters
    ----------
    environment
        The variables of this process.
    task_variables
        Further variables of the task.
    scratch
        A private directory on this node's disk.
    python
        The host's interpreter.
    node
        Name of this node, for the log of a gate.
    step
        Options of srun about tasks and nodes, for engines that are Slurm plugins (ce, pyxis).

    Raises
    ------
    GipfelError
        The EDF, the runtime or the engine can't be used.
    """
    engine = usable_engine(edf, plan.job.engine)
    # Without an image as for a job: the Python environment that runs this program, with all its packages.
    runtime = (
        runtime_for_images(plan.job.runtime, plan.job.requested_runtime, environment)
        if edf.image
        else Runtime.from_current_interpreter()
    )
    home = plan.job.home
    workspace = workspace_in_container(edf, home) if edf.image else workspace_on_host(edf, home)
    mounts = _mounts(plan, edf) if edf.image else ()
    directory = _directory(plan, edf, (*workspace.mounts, *mounts), workspace.directory)
    first, *others = plan.spec.command
    inherited = {name: value for name, value in environment.items() if not name.startswith(_SERVER_VARIABLES)}
    invocation = gated_invocation(
        ContainerRequest(
            edf=edf,
            command=(_program(first, edf, plan.spec.python or runtime.python, runtime), *others),
            mounts=(*workspace.mounts, *mounts, runtime.mount) if edf.image else (),
            environment={
                **inherited,
                "GIPFEL_ENGINE": engine.name,
                **task_variables,
                **workspace.environment,
            },
            protected=PROTECTED_VARIABLES,
            workdir=directory,
            scratch=scratch,
            step=step,
        ),
        engine,
        environment,
        plan.spec.network,
        runtime=runtime,
        python=python,
        run=plan.job.run or plan.folder,
        node=node,
        program=_ranks(plan, task_variables),
        nodes=int(plan.spec.environment.get(NODES_VARIABLE) or len(plan.nodes)),
        tasks=plan.spec.tasks_per_node,
    )
    return invocation, "/" if edf.image else directory


def _ranks(plan: StepPlan, variables: Mapping[str, str]) -> str:
    """Return the ranks of a task, which may start several."""
    started = int(plan.spec.environment.get(RANKS_VARIABLE) or 1)
    first = int(variables.get("GIPFEL_TASK") or 0) * started
    return f"rank {first}" if started == 1 else f"ranks {first} to {first + started - 1}"


def _program(first: str, edf: Edf, python: str, runtime: Runtime) -> str:
    if first == PYTHON:
        return runtime.python
    if first == IMAGE_PYTHON:
        # Set-up steps may put another Python on PATH, also without an image.
        return "python3" if edf.image or edf.setup else python
    return first


def _mounts(plan: StepPlan, edf: Edf) -> tuple[Mount, ...]:
    """Return mounts of the caller's and the job's directories, without those that the EDF mounts already."""
    mounts = (*plan.mounts, *(Mount(source=path, destination=path) for path in plan.job.folders))
    return tuple(dict.fromkeys(each for each in mounts if not _is_mounted(each, edf.mounts)))


def _is_mounted(requested: Mount, mounts: tuple[Mount, ...]) -> bool:
    destination = PurePosixPath(requested.destination)
    for mount in reversed(mounts):
        if destination.is_relative_to(mount.destination) and "sqsh" not in mount.flags:
            source = Path(mount.source, destination.relative_to(mount.destination))
            return str(source) == requested.source and "ro" not in mount.flags
    return False


def _directory(plan: StepPlan, edf: Edf, mounts: tuple[Mount, ...], default: str) -> str:
    directory = plan.spec.directory
    if not directory:
        return default
    if not edf.image:
        return next((each.source for each in plan.mounts if each.destination == directory), directory)
    if is_system_directory(Path(directory)):
        return default
    is_mounted = any(
        PurePosixPath(directory).is_relative_to(each.destination) for each in (*edf.mounts, *mounts)
    )
    return directory if is_mounted else default


def step_job_from_context(context: JobContext) -> StepJob:
    """Return the job of a broker as steps need it."""
    variables = context.container_environment
    run = variables.get("GIPFEL_RUN", "")
    return StepJob(
        home=context.home,
        cluster=context.cluster,
        engine=context.engine,
        edf=context.edf,
        runtime=context.runtime,
        requested_runtime=context.requested_runtime,
        run=run,
        job_id=variables.get("GIPFEL_JOB_ID", ""),
        # The scratch folder is on the disk of one node.
        folders=tuple(each for each in context.folders if each != context.scratch),
        **_allocation(context.host_environment, run),
    )


def step_job_from_environment(environment: Mapping[str, str]) -> StepJob:
    """Return the job of a process on the host: a job of Gipfel, any other job, or this machine without a job.

    Steps that name no EDF use ``$GIPFEL_EDF``.
    """
    engine = environment.get("GIPFEL_ENGINE", "")
    run = environment.get("GIPFEL_RUN", "")
    return StepJob(
        home=environment.get("HOME") or str(Path.home()),
        cluster=environment.get("GIPFEL_CLUSTER", "local"),
        # "host" means that the job runs without a container; steps may still use an image.
        engine="" if engine == "host" else engine,
        edf=environment.get("GIPFEL_EDF", ""),
        runtime=find_runtime("", environment) or Runtime.from_current_interpreter(),
        run=run,
        job_id=environment.get("GIPFEL_JOB_ID", ""),
        folders=(run,) if run else (),
        **_allocation(environment, run),
    )


def job_nodes(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the nodes of the job with these variables, in Slurm's order; without Slurm, this machine.

    Raises
    ------
    GipfelError
        Slurm's node list is missing or not valid.
    """
    listed = environment.get("SLURM_JOB_NODELIST") or environment.get("SLURM_NODELIST")
    if not environment.get("SLURM_JOB_ID"):
        return (socket.gethostname().partition(".")[0],)
    if not listed:
        raise GipfelError(
            "SLURM_JOB_NODELIST is not set, so the job's nodes are unknown.",
            "Start the command from within the job.",
        )
    try:
        return expand_hostlist(listed)
    except ValueError as error:
        raise GipfelError(f"SLURM_JOB_NODELIST can't be read: {error}.") from error


def fewest_cpus(environment: Mapping[str, str]) -> int:
    """Return the lowest number of CPUs that the job has on a node; without Slurm, that of this process."""
    if not environment.get("SLURM_JOB_ID"):
        return len(os.sched_getaffinity(0))
    counts = [_CPUS.fullmatch(part) for part in environment.get("SLURM_JOB_CPUS_PER_NODE", "").split(",")]
    return min((int(each[1]) for each in counts if each), default=1)


def _allocation(environment: Mapping[str, str], run: str) -> dict[str, object]:
    excluded = excluded_nodes(run)
    return {
        "slurm_job": environment.get("SLURM_JOB_ID", ""),
        "nodes": tuple(node for node in job_nodes(environment) if node not in excluded),
        "cpus": fewest_cpus(environment),
    }
