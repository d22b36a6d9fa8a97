"""Planning a launch: from its spec to a plan with every path absolute and found on the host."""

import json
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from gipfel_cluster.engines.choice import engine_exists
from gipfel_cluster.job import JOB_VARIABLE, JobSpec, batch_script
from gipfel_cluster.model import PYTHON, GipfelError, counted
from gipfel_cluster.runs import write_atomically
from gipfel_cluster.scheduler import JobRequest
from gipfel_cluster.workloads.submission import SCHEDULERS, ChosenEdf, SubmissionContext

from ...telemetry.files import read_json
from ...telemetry.redaction import shown_command_line, shown_value
from ..record.spec import LaunchPlan, LaunchSpec, mounts_of
from ..record.state import MOST_BYTES
from .allocation import VETTING_PROTOCOL, excluded_nodes
from .attempt import ATTEMPT_FILE
from .launchers import Attempt, launcher_of
from .target import callers_python, check_target

_LARGEST_SPEC = 64 << 10
_MARGIN_S = 30


def plan_launch(
    spec: LaunchSpec, folder: Path, here: SubmissionContext, environment: Mapping[str, str], directory: Path
) -> LaunchPlan:
    """Return the plan of a launch: where the host has everything that it names.

    Parameters
    ----------
    folder
        The launch's own, which is there already; a cell's code is written into it.
    directory
        Where relative paths start.

    Raises
    ------
    GipfelError
        Something that it names is not there, or the host does not see it.
    """
    in_job = bool(environment.get("GIPFEL_RUN") or environment.get("SLURM_JOB_ID"))
    where = spec.where if spec.where != "auto" else ("here" if in_job else "job")
    if where == "here" and not in_job:
        raise GipfelError(
            "This process is not in a job whose GPUs could be used.",
            "Leave --where out: it becomes a job of its own.",
        )
    start = _absolute(spec.directory or ".", directory)
    target = _target(spec, folder, directory)
    # Without an EDF of their own, ranks see what is seen here; on the host, steps may have one by default.
    check_target(spec, target, seen=not spec.edf and (here.inside or not environment.get("GIPFEL_EDF")))
    checkpoint = _absolute(spec.checkpoint, directory) if spec.checkpoint else None
    if checkpoint is not None:
        _made(checkpoint)
    engine = _engine(spec, here)
    edf = here.edf(spec.edf, engine or "bubblewrap", directory) if spec.edf else None
    seen = (folder, start, *([checkpoint] if checkpoint else []))
    if spec.kind != "module":
        seen = (*seen, target.parent)
    plan = LaunchPlan(
        spec=spec.model_copy(update={"where": where}),
        folder=str(folder),
        host_folder=str(here.on_host(folder)),
        target=spec.target if spec.kind == "module" else str(target),
        directory=str(start),
        checkpoint=str(checkpoint or ""),
        python=_python(spec, environment),
        edf=edf.file if edf else "",
        engine=engine,
        scheduler=_scheduler(spec, here),
        cluster=spec.cluster or here.default("cluster") or _scheduler(spec, here),
        vetting=_protocol(spec, folder, here, environment, directory),
        by_srun=_by_srun(where, spec, here, environment),
        mounts=mounts_of(seen, here),
    )
    if where == "job":
        plan = plan.model_copy(update={"request": _request(plan, edf, here, environment)})
    return plan


def _python(spec: LaunchSpec, environment: Mapping[str, str]) -> str:
    """Return the interpreter of ranks in no container; in one, it is the EDF's matter."""
    in_container = environment.get("GIPFEL_ENGINE", "host") != "host"
    return spec.python or ("" if in_container else callers_python(environment))


def _target(spec: LaunchSpec, folder: Path, directory: Path) -> Path:
    if spec.kind == "cell":
        path = folder / "cell.ipynb"
        write_atomically(path, json.dumps(cell_notebook(spec), indent=1))
        return path
    return _absolute(spec.target, directory)


def _protocol(
    spec: LaunchSpec, folder: Path, here: SubmissionContext, environment: Mapping[str, str], directory: Path
) -> str:
    """Return the vetting protocol that the host reads; copy a user's own one into the directory."""
    if not spec.vetting:
        return ""
    from ...vetting.protocol_files import find_protocol  # noqa: PLC0415 - slow, and most launches need none

    source = find_protocol(spec.vetting, directory=directory, environment=environment).source
    if "/" not in source:
        return source
    try:
        shutil.copyfile(source, folder / VETTING_PROTOCOL)
    except OSError as error:
        raise GipfelError(f"The protocol {source} can't be kept: {error.strerror}.") from error
    return f"{here.on_host(folder)}/{VETTING_PROTOCOL}"


def cell_notebook(spec: LaunchSpec) -> dict[str, object]:
    """Return a notebook of one cell, and of one before it that takes the parameters."""
    cells: list[tuple[str, list[str], str]] = [("launched", [], spec.code)]
    if spec.parameters:
        names = "".join(f"{name} = None\n" for name in spec.parameters)
        cells.insert(0, ("parameters", ["parameters"], names))
    return {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
        "cells": [
            {
                "cell_type": "code",
                "id": name,
                "metadata": {"tags": tags},
                "source": source,
                "outputs": [],
                "execution_count": None,
            }
            for name, tags, source in cells
        ],
    }


def _by_srun(where: str, spec: LaunchSpec, here: SubmissionContext, environment: Mapping[str, str]) -> bool:
    if where == "job":
        return _scheduler(spec, here) == "slurm"
    return here.default("scheduler") == "slurm" if here.inside else bool(environment.get("SLURM_JOB_ID"))


def started_command(plan: LaunchPlan, folder: Path) -> str:
    """Return the commands with which a launch was started last; empty where it has not begun."""
    try:
        content = read_json(folder / ATTEMPT_FILE, MOST_BYTES)
        commands = [[str(word) for word in each] for each in content["commands"]]
        names = tuple(str(each) for each in content["nodes"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return shown_command(plan, commands, names) if commands and len(commands) == len(names) else ""


def shown_command(
    plan: LaunchPlan, commands: Sequence[Sequence[str]] = (), names: tuple[str, ...] = ()
) -> str:
    """Return the commands of a launch as one would type them.

    Parameters
    ----------
    commands, names
        The launcher's argv on each node, and the nodes; by default those of a launch that has not begun,
        with NODE0 and PORT for what is found when it starts.
    """
    spec, launcher = plan.spec, launcher_of(plan.spec.launcher)
    begun, names = bool(names), names or tuple(f"NODE{index}" for index in range(spec.nodes))
    attempt = Attempt(
        nodes=names,
        addresses=names if len(names) > 1 else ("127.0.0.1",),
        port=29500,
        ranks_per_node=spec.gpus_per_node,
        nodes_min=spec.nodes_min or spec.nodes,
        restarts=spec.restarts,
        join_timeout_s=spec.join_timeout_s,
    )
    what = {"module": ["-m", plan.target], "script": [plan.target]}.get(spec.kind, ["papermill", plan.target])
    given = [f"{name}={json.dumps(value)}" for name, value in spec.parameters.items()]
    user = shown_command_line([*what, *spec.arguments, *given])
    nodes = f"{spec.nodes} x " if spec.nodes > 1 else ""
    size = f"{nodes}{counted(spec.gpus_per_node, 'rank')}"
    lines = [f"# {spec.kind} on {size}, from {plan.directory}"]
    lines += [f"# environment: {plan.edf or 'that of the job, or the node itself'}"]
    variables = {name: shown_value(name, value) for name, value in spec.environment.items()}
    lines += [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    tasks = 1 if launcher.per == "node" else spec.gpus_per_node
    step = f"srun --overlap --nodes={len(names)} --ntasks-per-node={tasks} " if plan.by_srun else ""
    if not step and tasks > 1:
        lines.append(f"# {tasks} times, once for each rank:")
    python = "python3" if plan.edf else plan.python or "python3"
    for index in range(len(names) if launcher.per == "node" else 1):
        words = [
            {"{python}": python, "{program}": f"{plan.folder}/program.py"}.get(word, word)
            for word in (commands[index] if begun else launcher.command(attempt, index))
        ]
        shown = shlex.join(words)
        if not begun:
            shown = shown.replace(":29500", ":PORT").replace("port=29500", "port=PORT")
        lines.append(f"{step if index == 0 else f'# on {names[index]}: '}{shown}")
    lines.append(f"# each rank: {shlex.quote(python)} {user}")
    return "\n".join(lines) + "\n"


def _scheduler(spec: LaunchSpec, here: SubmissionContext) -> str:
    name = spec.scheduler or here.default("scheduler")
    if name not in SCHEDULERS:
        raise GipfelError(f"There is no scheduler {name!r}.", f"Choose one of {', '.join(SCHEDULERS)}.")
    return name


def _engine(spec: LaunchSpec, here: SubmissionContext) -> str:
    name = spec.engine or here.default("engine")
    if name and not engine_exists(name):
        raise GipfelError(f"There is no engine {name!r}.", "Leave --engine out.")
    return name


def _request(
    plan: LaunchPlan, edf: ChosenEdf | None, here: SubmissionContext, environment: Mapping[str, str]
) -> JobRequest:
    spec = plan.spec
    runtime = here.runtime(spec.runtime, plan.scheduler)
    if edf and edf.image and not runtime.root:
        raise GipfelError(
            "There is no runtime to mount into the image.",
            "Build one with `gipfel runtime build ~/.gipfel/runtime`, or give --runtime.",
        )
    options = spec.model_dump(mode="json", exclude={"code", "arguments", "parameters", "environment"})
    try:
        job = JobSpec(
            kind="launch",
            command=(PYTHON, "-I", "-m", "gipfel_extension.training.launches", plan.host_folder),
            cluster=plan.cluster,
            edf=plan.edf,
            engine=plan.engine or "bubblewrap",
            runtime=runtime.root,
            options={**options, "gpus": spec.gpus_per_node, "launch": plan.host_folder},
            directory=str(here.on_host(Path(plan.directory))),
            folders=(plan.host_folder,),
        )
        content = job.model_dump_json()
        if len(content.encode()) > _LARGEST_SPEC:
            raise GipfelError("What is launched is too long.", "Put long values into a file.")
        return JobRequest(
            name="gipfel-launch",
            script=batch_script(runtime.python),
            directory=job.directory,
            output=f"{plan.host_folder.replace('%', '%%')}/job.log",
            append=True,
            partition=spec.partition,
            account=spec.account,
            qos=spec.qos,
            reservation=spec.reservation,
            exclude=excluded_nodes(spec, plan.cluster, environment),
            nodes=spec.nodes,
            gpus_per_node=spec.gpus_per_node if plan.scheduler == "slurm" or _has_gpus() else 0,
            time=spec.time,
            warn_s=int(spec.grace_s) + _MARGIN_S,
            requeue=spec.on_preempt == "requeue",
            environment={JOB_VARIABLE: content},
        )
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "options"
        raise GipfelError(
            f"The launch's {where} can't be used: {first['msg']}.", "See `gipfel launch --help`."
        ) from None


def _has_gpus() -> bool:
    return Path("/dev/nvidiactl").exists()


def _absolute(path: str, directory: Path) -> Path:
    try:
        return (directory / Path(path).expanduser()).resolve()
    except (OSError, ValueError, RuntimeError) as error:
        raise GipfelError(f"The path {path[:200]!r} can't be used.", "Give another one.") from error


def _made(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise GipfelError(
            f"The checkpoint directory {folder} can't be made: {error.strerror}.",
            "Give one that you can write to.",
        ) from error
