"""The job around a step, and the container of one of its tasks, composed on the task's own node."""

import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from ..broker.context import (
    JobContext,
    find_runtime,
    hides_an_image,
    workspace_in_container,
    workspace_on_host,
)
from ..edf import Edf, EdfError, Mount, check_local, load_edf
from ..engines import ContainerRequest, Invocation, engine_for, engine_pulls
from ..environment import BINDING
from ..hooks import engine_invocation
from ..model import GipfelError
from ..runtime import Runtime
from ..scheduler.excluded_nodes import excluded_nodes
from ..scheduler.notation import expand_hostlist
from .spec import IMAGE_PYTHON, PYTHON, StepPlan, StepSetting

# A container of a step opens no port for ssh: a job has one, that of its own container.
_SSH = "com.hooks.ssh."
# The server's own variables, which mean nothing on another node.
_LEFT_OUT = ("JUPYTER_", "JUPYTERHUB_", "JPY_", "IPYTHONDIR")
_CPUS = re.compile(r"([0-9]+)(?:\(x[0-9]+\))?")


def step_edf(plan: StepPlan, environment: Mapping[str, str]) -> Edf:
    """Look up and check the EDF of a step on this node.

    Raises
    ------
    GipfelError
        It is not found, or can't be used here.
    """
    name = plan.spec.edf or plan.setting.edf
    if not name:
        return Edf(name="", path=None)
    edf = load_edf(name, environment=environment, directory=Path(plan.setting.home))
    found = check_local(edf, pulls=engine_pulls(plan.setting.engine))
    errors = tuple(each for each in found if each.severity == "error")
    if errors:
        raise EdfError(errors)
    kept = {name: value for name, value in edf.annotations.items() if not name.startswith(_SSH)}
    return edf.model_copy(update={"annotations": kept})


def task_invocation(
    plan: StepPlan,
    edf: Edf,
    *,
    environment: Mapping[str, str],
    offered: Mapping[str, str],
    scratch: str,
    python: str,
    step: tuple[str, ...] = (),
) -> tuple[Invocation, str]:
    """Return what is executed for a task, and in which folder of the host.

    Parameters
    ----------
    environment
        The variables of this process.
    offered
        Variables that the task gets in addition.
    scratch
        A private folder on this node's disk.
    python
        The host's interpreter.
    step
        For engines that start by srun: its options about tasks and nodes.

    Raises
    ------
    GipfelError
        The EDF, the runtime or the engine can't be used.
    """
    engine = engine_for(edf, plan.setting.engine)
    missing = engine.missing()
    if missing:
        raise GipfelError(missing, "Install it on the node, or choose an EDF without an image.")
    runtime = _runtime(plan, environment, contained=bool(edf.image))
    home = plan.setting.home
    workspace = workspace_in_container(edf, home) if edf.image else workspace_on_host(edf, home)
    mounts = _mounts(plan, edf) if edf.image else ()
    directory = _directory(plan, edf, (*workspace.mounts, *mounts), workspace.directory)
    first, *others = plan.spec.command
    kept = {name: value for name, value in environment.items() if not name.startswith(_LEFT_OUT)}
    request = ContainerRequest(
        edf=edf,
        command=(_program(first, edf, plan.spec.python or runtime.python, runtime), *others),
        mounts=(*workspace.mounts, *mounts, runtime.mount) if edf.image else (),
        environment={**kept, "GIPFEL_ENGINE": engine.name, **offered, **workspace.environment},
        binding=BINDING,
        workdir=directory,
        scratch=scratch,
        step=step,
    )
    invocation = engine_invocation(request, engine, python=python, runtime=runtime)
    return invocation, "/" if edf.image else directory


def _runtime(plan: StepPlan, environment: Mapping[str, str], *, contained: bool) -> Runtime:
    runtime = plan.setting.runtime
    built = Path(runtime.root, "runtime.json").is_file() or runtime.root.endswith(".sqsh")
    if not contained:
        # As for a job: the environment that runs this program, with whatever else is installed in it.
        return Runtime.here()
    if built:
        return runtime
    found = find_runtime(plan.setting.wanted_runtime, environment)
    if found is None:
        raise GipfelError(
            "There is no runtime to mount into the image.",
            "Build one with `gipfel runtime build ~/.gipfel/runtime`, or set GIPFEL_RUNTIME.",
        )
    return found


def _program(first: str, edf: Edf, python: str, runtime: Runtime) -> str:
    if first == PYTHON:
        return runtime.python
    if first == IMAGE_PYTHON:
        # Set-up steps may choose another one without an image, too.
        return "python3" if edf.image or edf.setup else python
    return first


def _mounts(plan: StepPlan, edf: Edf) -> tuple[Mount, ...]:
    """Return the folders of the caller and of the job, except those that the EDF shows already."""
    wanted = (*plan.mounts, *(Mount(source=path, destination=path) for path in plan.setting.folders))
    return tuple(dict.fromkeys(each for each in wanted if not _shown(each, edf.mounts)))


def _shown(wanted: Mount, mounts: tuple[Mount, ...]) -> bool:
    destination = PurePosixPath(wanted.destination)
    for mount in reversed(mounts):
        if destination.is_relative_to(mount.destination) and "sqsh" not in mount.flags:
            same = Path(mount.source, destination.relative_to(mount.destination))
            return str(same) == wanted.source and "ro" not in mount.flags
    return False


def _directory(plan: StepPlan, edf: Edf, mounts: tuple[Mount, ...], usual: str) -> str:
    wanted = plan.spec.directory
    if not wanted:
        return usual
    if not edf.image:
        return next((each.source for each in plan.mounts if each.destination == wanted), wanted)
    if hides_an_image(Path(wanted)):
        return usual
    seen = any(PurePosixPath(wanted).is_relative_to(each.destination) for each in (*edf.mounts, *mounts))
    return wanted if seen else usual


def setting_of_job(context: JobContext) -> StepSetting:
    """Return the setting that a job's broker knows."""
    offered = context.offered
    run = offered.get("GIPFEL_RUN", "")
    return StepSetting(
        home=context.home,
        cluster=context.cluster,
        engine=context.engine,
        edf=context.edf,
        runtime=context.runtime,
        wanted_runtime=context.wanted_runtime,
        run=run,
        job_id=offered.get("GIPFEL_JOB_ID", ""),
        # The scratch folder is on the disk of one node.
        folders=tuple(each for each in context.folders if each != context.scratch),
        **_allocation(context.host, run),
    )


def setting_of_host(environment: Mapping[str, str]) -> StepSetting:
    """Return the setting of a process on the host: in a job of Gipfel, in any other job, or in none.

    ``$GIPFEL_EDF`` is the EDF of steps that name none.
    """
    engine = environment.get("GIPFEL_ENGINE", "")
    run = environment.get("GIPFEL_RUN", "")
    return StepSetting(
        home=environment.get("HOME") or str(Path.home()),
        cluster=environment.get("GIPFEL_CLUSTER", "local"),
        # It is "host" in a job without a container, which runs no image.
        engine="" if engine == "host" else engine,
        edf=environment.get("GIPFEL_EDF", ""),
        runtime=find_runtime("", environment) or Runtime.here(),
        run=run,
        job_id=environment.get("GIPFEL_JOB_ID", ""),
        folders=(run,) if run else (),
        **_allocation(environment, run),
    )


def job_nodes(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the nodes of the job with these variables, in Slurm's order; without Slurm this machine.

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
            "SLURM_JOB_NODELIST is not set, so the job's nodes are unknown.", "Start it from within the job."
        )
    try:
        return expand_hostlist(listed)
    except ValueError as error:
        raise GipfelError(f"The job's list of nodes can't be read: {error}.") from error


def fewest_cpus(environment: Mapping[str, str]) -> int:
    """Return the fewest CPUs that the job has on a node; those of this process without Slurm."""
    if not environment.get("SLURM_JOB_ID"):
        return len(os.sched_getaffinity(0))
    counts = [_CPUS.fullmatch(part) for part in environment.get("SLURM_JOB_CPUS_PER_NODE", "").split(",")]
    return min((int(each[1]) for each in counts if each), default=1)


def _allocation(environment: Mapping[str, str], run: str) -> dict[str, object]:
    without = excluded_nodes(run)
    return {
        "slurm_job": environment.get("SLURM_JOB_ID", ""),
        "nodes": tuple(node for node in job_nodes(environment) if node not in without),
        "cpus": fewest_cpus(environment),
    }
