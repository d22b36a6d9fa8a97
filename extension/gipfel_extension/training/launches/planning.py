"""Planning of a launch: from its spec to a plan with absolute paths that exist on the host.

`check_target` checks the script or notebook, `caller_python` finds the Python of ranks without a container.
"""

import importlib.util
import json
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from gipfel_cluster.edf.gate import gates_of
from gipfel_cluster.engines.choice import engine_exists
from gipfel_cluster.job import JOB_VARIABLE, JobSpec, batch_script
from gipfel_cluster.model import PYTHON, GipfelError, pluralize
from gipfel_cluster.runs import write_atomically
from gipfel_cluster.scheduler import JobRequest
from gipfel_cluster.storage_classes import resolve_path
from gipfel_cluster.workloads.submission import ChosenEdf, SubmissionContext, chosen_scheduler, refused_option

from ...telemetry.files import open_regular, read_json
from ...telemetry.redaction import redact_command_line, redact_value
from ..papermill.notebook_file import check_format, language_of, read_content
from ..record import MAX_BYTES
from ..record.spec import LaunchPlan, LaunchSpec, cell_notebook, mounts_of
from .allocation import VETTING_PROTOCOL, excluded_nodes
from .attempt import ATTEMPT_FILE
from .launchers import LAUNCHERS, Attempt

# Commands that users may type before a script.
_STARTERS = re.compile(r"python[0-9.]*|torchrun|accelerate|srun")
_LINE_BYTES = 256


def check_target(spec: LaunchSpec, target: Path, *, visible: bool) -> None:
    """Check the file of a script or notebook.

    Parameters
    ----------
    target
        Absolute path of the file.
    visible
        Whether ranks see the same files as this process; an image may have others.

    Raises
    ------
    GipfelError
        The file is missing, or ranks can't run it with Python.
    """
    if spec.kind not in {"script", "notebook"}:
        return
    if not target.is_file():
        if spec.kind == "script" and _STARTERS.fullmatch(spec.target):
            others = " ".join(spec.arguments[:1]) or "train.py"
            raise GipfelError(
                f"{spec.target!r} is not a script; the launch starts Python on each rank itself.",
                f"Leave it out: `gipfel launch … -- {others}`. For a module, use -m.",
            )
        if visible and target.is_dir():
            raise GipfelError(f"{target} is a directory.", "Give the path of the script in it.")
        if visible:
            raise GipfelError(f"There is no file {target}.", "Check the name.")
    elif spec.kind == "script":
        _check_script(target)
    else:
        _check_notebook(target)


def caller_python(environment: Mapping[str, str]) -> str:
    """Return the path of the Python of the caller's environment; empty for the Python that runs Gipfel.

    It is the Python of an active virtual environment (``VIRTUAL_ENV``). Without one, a notebook's kernel uses
    its own Python, others the first ``python3`` in PATH, unless only the Python of Gipfel has torch: then the
    user has probably activated no environment.
    """
    virtual = environment.get("VIRTUAL_ENV", "")
    for name in ("python3", "python"):
        if virtual and Path(virtual, "bin", name).is_file():
            return str(Path(virtual).absolute() / "bin" / name)
    found = shutil.which("python3", path=environment.get("PATH"))
    if found is None or "ipykernel" in sys.modules or Path(found).samefile(sys.executable):
        return ""
    from ...kernels import has_package  # noqa: PLC0415 - a higher layer

    if importlib.util.find_spec("torch") and not has_package(found, "torch", environment):
        return ""
    return str(Path(found).absolute())


def _check_script(path: Path) -> None:
    try:
        with open_regular(path, follow=True) as file:
            first = file.readline(_LINE_BYTES)
    except OSError as error:
        raise GipfelError(f"The script {path} can't be read: {error.strerror}.", "Check the path.") from error
    shell = b"python" not in first if first.startswith(b"#!") else path.suffix in {".sh", ".bash"}
    if shell or first.startswith(b"\x7fELF"):
        what = "a compiled program" if first.startswith(b"\x7fELF") else "a shell script"
        raise GipfelError(
            f"{path} is {what}; ranks run Python.",
            "Give the Python script that it starts, and set its variables with --env.",
        )


def _check_notebook(path: Path) -> None:
    content = read_content(path)
    check_format(path, content)
    language = language_of(content)
    if language != "python":
        raise GipfelError(
            f"The notebook {path} is written in {language}; ranks run Python.", "Give a Python notebook."
        )


_MAX_SPEC_BYTES = 64 << 10
#: Seconds before the time limit, in addition to `grace_s`, at which Slurm warns the job.
_MARGIN_S = 30


def plan_launch(
    spec: LaunchSpec,
    folder: Path,
    context: SubmissionContext,
    environment: Mapping[str, str],
    directory: Path,
) -> LaunchPlan:
    """Return the plan of a launch, with all paths resolved.

    Parameters
    ----------
    folder
        Existing directory of the launch; the code of a cell is written to it.
    directory
        Base of relative paths.

    Raises
    ------
    GipfelError
        A file in the spec does not exist, or the host can't access it.
    """
    has_job = bool(environment.get("GIPFEL_RUN") or environment.get("SLURM_JOB_ID"))
    in_job = has_job if spec.in_job is None else spec.in_job
    if in_job and not has_job:
        raise GipfelError(
            "This process is not in a job whose GPUs could be used.",
            "Leave --in-job out. The launch then runs in a new job.",
        )
    start_directory = _absolute(spec.directory or ".", directory)
    target = _target(spec, folder, directory)
    # Ranks see other files than this process if they run in another container: that of the spec's EDF or, if
    # this process runs on a job's host, that of GIPFEL_EDF, the job's default for steps.
    check_target(
        spec, target, visible=not spec.edf and (context.in_container or not environment.get("GIPFEL_EDF"))
    )
    # The path may begin with a storage class, as in fast:checkpoints.
    chosen = resolve_path(spec.checkpoint, environment)
    checkpoint = _absolute(chosen, directory) if chosen else None
    if checkpoint is not None:
        _create_checkpoint_directory(checkpoint)
    engine = _engine(spec, context)
    edf = context.edf(spec.edf, engine or "bubblewrap", directory) if spec.edf else None
    directories = (
        *(folder, start_directory),
        *([checkpoint] if checkpoint else ()),
        *([target.parent] if spec.kind != "module" else ()),
    )
    plan = LaunchPlan(
        spec=spec.model_copy(update={"in_job": in_job}),
        folder=str(folder),
        host_folder=str(context.on_host(folder)),
        target=spec.target if spec.kind == "module" else str(target),
        directory=str(start_directory),
        checkpoint=str(checkpoint or ""),
        python=_python(spec, environment),
        edf=edf.file if edf else "",
        engine=engine,
        scheduler=chosen_scheduler(spec.scheduler, context),
        cluster=spec.cluster
        or context.default_setting("cluster")
        or chosen_scheduler(spec.scheduler, context),
        vetting=_protocol(spec, folder, context, environment, directory),
        # Which hosts ranks may reach.
        gates=gates_of(edf.network if edf else {}, environment, spec.network),
        by_srun=_by_srun(spec, context, environment, in_job=in_job),
        mounts=mounts_of(directories, context),
    )
    if not in_job:
        plan = plan.model_copy(update={"request": _request(plan, edf, context, environment)})
    return plan


def _python(spec: LaunchSpec, environment: Mapping[str, str]) -> str:
    """Return the interpreter of ranks without a container; with a container, the EDF determines it."""
    in_container = environment.get("GIPFEL_ENGINE", "host") != "host"
    return spec.python or ("" if in_container else caller_python(environment))


def _target(spec: LaunchSpec, folder: Path, directory: Path) -> Path:
    if spec.kind == "cell":
        path = folder / "cell.ipynb"
        write_atomically(path, json.dumps(cell_notebook(spec), indent=1))
        return path
    return _absolute(spec.target, directory)


def _protocol(
    spec: LaunchSpec,
    folder: Path,
    context: SubmissionContext,
    environment: Mapping[str, str],
    directory: Path,
) -> str:
    """Return the vetting protocol for the host; copy a protocol of the user to the launch's directory."""
    if not spec.vetting:
        return ""
    from ...vetting.protocol_files import find_protocol  # noqa: PLC0415 - slow to import, and rarely needed

    source = find_protocol(spec.vetting, directory=directory, environment=environment).source
    if "/" not in source:
        return source
    try:
        shutil.copyfile(source, folder / VETTING_PROTOCOL)
    except OSError as error:
        raise GipfelError(
            f"The protocol {source} can't be copied: {error.strerror}.", "Choose another protocol."
        ) from error
    return f"{context.on_host(folder)}/{VETTING_PROTOCOL}"


def _by_srun(
    spec: LaunchSpec, context: SubmissionContext, environment: Mapping[str, str], *, in_job: bool
) -> bool:
    if not in_job:
        return chosen_scheduler(spec.scheduler, context) == "slurm"
    return (
        context.default_setting("scheduler") == "slurm"
        if context.in_container
        else bool(environment.get("SLURM_JOB_ID"))
    )


def started_command(plan: LaunchPlan, folder: Path) -> str:
    """Return the commands of a launch's last attempt; empty if it has not started."""
    try:
        content = read_json(folder / ATTEMPT_FILE, MAX_BYTES)
        commands = [[str(word) for word in each] for each in content["commands"]]
        names = tuple(str(each) for each in content["nodes"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return shown_command(plan, commands, names) if commands and len(commands) == len(names) else ""


def shown_command(
    plan: LaunchPlan, commands: Sequence[Sequence[str]] = (), names: tuple[str, ...] = ()
) -> str:
    """Return the commands of a launch as a user would type them.

    Parameters
    ----------
    commands, names
        Argv of the launcher on each node, and names of the nodes; before the first attempt NODE0, NODE1
        and PORT are placeholders.
    """
    spec, launcher = plan.spec, LAUNCHERS[plan.spec.launcher]
    if not names:
        names = tuple(f"NODE{index}" for index in range(spec.nodes))
        commands = _planned_commands(spec, names)
    what = {"module": ["-m", plan.target], "script": [plan.target]}.get(spec.kind, ["papermill", plan.target])
    given = [f"{name}={json.dumps(value)}" for name, value in spec.parameters.items()]
    user = redact_command_line([*what, *spec.arguments, *given])
    nodes = f"{spec.nodes} x " if spec.nodes > 1 else ""
    size = f"{nodes}{pluralize(spec.gpus_per_node, 'rank')}"
    variables = {name: redact_value(name, value) for name, value in spec.environment.items()}
    tasks = 1 if launcher.per == "node" else spec.gpus_per_node
    step = f"srun --overlap --nodes={len(names)} --ntasks-per-node={tasks} " if plan.by_srun else ""
    python = "python3" if plan.edf else plan.python or "python3"
    # The launch's copy of `rank_program`, which starts the script, module or notebook on each rank.
    known = {"{python}": python, "{program}": f"{plan.folder}/program.py"}
    shown = [shlex.join(known.get(word, word) for word in command) for command in commands]
    others = zip(names[1:], shown[1:], strict=True) if launcher.per == "node" else ()
    lines = [
        f"# {spec.kind} on {size}, from {plan.directory}",
        f"# environment: {plan.edf or 'the container of the job if it has one, otherwise the node'}",
        *(f"export {name}={shlex.quote(value)}" for name, value in variables.items()),
        *([f"# {tasks} times, once for each rank:"] if not step and tasks > 1 else ()),
        f"{step}{shown[0]}",
        *(f"# on {name}: {command}" for name, command in others),
        f"# each rank: {shlex.quote(python)} {user}",
    ]
    return "\n".join(lines) + "\n"


def _planned_commands(spec: LaunchSpec, names: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return the argv of the launcher on each node before the first attempt, with PORT as the port."""
    attempt = Attempt(
        nodes=names,
        addresses=names if len(names) > 1 else ("127.0.0.1",),
        port=29500,
        ranks_per_node=spec.gpus_per_node,
        nodes_min=spec.nodes_min or spec.nodes,
        restarts=spec.restarts,
        join_timeout_s=spec.join_timeout_s,
    )
    commands = (LAUNCHERS[spec.launcher].command(attempt, index) for index in range(len(names)))
    return [
        tuple(word.replace(":29500", ":PORT").replace("port=29500", "port=PORT") for word in command)
        for command in commands
    ]


def _engine(spec: LaunchSpec, context: SubmissionContext) -> str:
    name = spec.engine or context.default_setting("engine")
    if name and not engine_exists(name):
        raise GipfelError(f"There is no engine {name!r}.", "Leave --engine out.")
    return name


def _request(
    plan: LaunchPlan, edf: ChosenEdf | None, context: SubmissionContext, environment: Mapping[str, str]
) -> JobRequest:
    spec = plan.spec
    runtime = context.runtime(spec.runtime, plan.scheduler)
    has_gpus = plan.scheduler == "slurm" or Path("/dev/nvidiactl").exists()
    if edf and edf.image and not runtime.root:
        raise GipfelError(
            "There is no runtime to mount into the image.",
            "Build one with `gipfel runtime build ~/.gipfel/runtime`, or give --runtime.",
        )
    options = spec.model_dump(mode="json", exclude={"code", "arguments", "parameters", "environment"})
    try:
        job = JobSpec(
            kind="launch",
            # PYTHON is a placeholder for the runtime's interpreter in the container.
            command=(PYTHON, "-I", "-m", "gipfel_extension.training.launches.supervisor", plan.host_folder),
            cluster=plan.cluster,
            edf=plan.edf,
            engine=plan.engine or "bubblewrap",
            runtime=runtime.root,
            options={**options, "gpus": spec.gpus_per_node, "launch": plan.host_folder},
            directory=str(context.on_host(Path(plan.directory))),
            folders=(plan.host_folder,),
        )
        content = job.model_dump_json()
        if len(content.encode()) > _MAX_SPEC_BYTES:
            raise GipfelError(
                "The spec of the launch is too long.", "Put long values into a file and give its path."
            )
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
            gpus_per_node=spec.gpus_per_node if has_gpus else 0,
            time=spec.time,
            warn_s=int(spec.grace_s) + _MARGIN_S,
            requeue=spec.on_preempt == "requeue",
            environment={JOB_VARIABLE: content},
        )
    except ValidationError as error:
        raise refused_option(error, "launch", "See `gipfel launch --help`.") from None


def _absolute(path: str, directory: Path) -> Path:
    try:
        return (directory / Path(path).expanduser()).resolve()
    except (OSError, ValueError, RuntimeError) as error:
        raise GipfelError(f"The path {path[:200]!r} is not valid.", "Give another path.") from error


def _create_checkpoint_directory(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise GipfelError(
            f"The checkpoint directory {folder} can't be created: {error.strerror}.",
            "Choose a directory that you can write to.",
        ) from error
