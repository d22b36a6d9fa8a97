"""A notebook as a batch job: papermill in the environment of an EDF, on one node."""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from gipfel_cluster.edf import Edf, EdfError, check_here, load_edf
from gipfel_cluster.engines import engine_for
from gipfel_cluster.job import JOB_VARIABLE, JobSpec, batch_script
from gipfel_cluster.job.spec import PYTHON
from gipfel_cluster.model import Frozen, GipfelError
from gipfel_cluster.runtime import Runtime
from gipfel_cluster.scheduler import JobRequest, LocalScheduler, Scheduler, SlurmScheduler

from .notebook_file import braced, check_notebook, check_output, log_of

SCHEDULERS = ("slurm", "local")
_LARGEST_SPEC = 96 << 10  # bytes: the kernel takes 128 KiB in one variable
_SCHEDULERS_OWN = ("SLURM_", "SBATCH_", "SQUEUE_", "SCANCEL_", "SINFO_")
# What belongs to the server or the job that this was typed in: its tokens, its folders, its GPUs.
_NOT_PASSED_ON = (
    "JUPYTERHUB_",
    "JPY_",
    "GIPFEL_",
    "JUPYTER_RUNTIME_DIR",
    "CUDA_VISIBLE_DEVICES",
)
_PASSED_ON = ("SLURM_CONF", "GIPFEL_RUNS")
# Mounted into a container they would hide the image's own.
_SYSTEM = frozenset(
    Path("/", name)
    for name in ("", "bin", "dev", "etc", "lib", "lib64", "opt", "proc", "run", "sbin", "sys", "usr")
)


class NotebookOptions(Frozen):
    """What the user of ``gipfel submit`` asks for; an empty text is for the default.

    ``parameters`` are names and values as they were typed, ``directory`` is where the notebook runs.
    """

    notebook: Path
    output: Path
    parameters: tuple[tuple[str, str], ...] = ()
    edf: str = ""
    nodes: int = 1
    gpus_per_node: int = 0
    partition: str = ""
    account: str = ""
    time: str = ""
    scheduler: str = ""
    engine: str = ""
    runtime: str = ""
    cluster: str = ""


class NotebookJob(Frozen):
    """A job that can be submitted: ``scheduler`` is a name of `SCHEDULERS`."""

    scheduler: str
    spec: JobSpec
    request: JobRequest
    output: Path
    log: Path


def plan_notebook_job(
    options: NotebookOptions, *, environment: Mapping[str, str], directory: Path
) -> NotebookJob:
    """Check everything that can be checked before a job is submitted; nothing is written.

    Parameters
    ----------
    environment
        The user's variables: defaults (``GIPFEL_SCHEDULER`` …), and what the job gets but for tokens.
    directory
        Where the user is: relative paths start there, and the notebook runs there. From a folder of the
        system it runs beside the notebook.

    Raises
    ------
    GipfelError
        Notebook, output, EDF, runtime or an option can't be used, or this is inside a container.
    """
    inside = _inside(environment)
    if inside not in {"", "host"}:
        raise GipfelError(
            "gipfel submit works outside of containers only, for now.", "Type it in a terminal of the host."
        )
    if options.nodes != 1:
        raise GipfelError(
            f"A notebook runs on one node, {options.nodes} were asked for.", "Leave --nodes out."
        )
    notebook = _absolute(options.notebook, directory)
    output = _absolute(options.output, directory)
    check_notebook(notebook, [name for name, _ in options.parameters])
    check_output(output, notebook)
    place = notebook.parent if directory in _SYSTEM else directory
    defaults = environment if not inside else {**environment, "GIPFEL_ENGINE": ""}
    scheduler = _scheduler_name(options, environment)
    engine = options.engine or defaults.get("GIPFEL_ENGINE") or "bubblewrap"
    edf = _checked_edf(options.edf, engine, environment, place)
    runtime = _runtime(options, edf, environment)
    _check_folders(edf, (notebook.parent, output.parent))
    try:
        spec = JobSpec(
            kind="notebook",
            command=_command(notebook, output, options.parameters, place),
            cluster=options.cluster or environment.get("GIPFEL_CLUSTER") or scheduler,
            edf=edf.path or "" if edf else "",
            engine=engine,
            runtime=runtime.root if runtime else "",
            options=_recorded(options, notebook, output),
            directory=str(place),
            folders=tuple(dict.fromkeys((str(notebook.parent), str(output.parent)))),
        )
        request = _request(options, spec, runtime, output, environment)
    except ValidationError as error:
        raise _refused(error) from None
    return NotebookJob(scheduler=scheduler, spec=spec, request=request, output=output, log=log_of(output))


def scheduler_of(job: NotebookJob, environment: Mapping[str, str]) -> Scheduler:
    """The scheduler that runs a job."""
    if job.scheduler == "slurm":
        return SlurmScheduler(environment=environment)
    return LocalScheduler(local_folder(environment), environment=environment)


def local_folder(environment: Mapping[str, str]) -> Path:
    """Where the local scheduler keeps the state of a user's own jobs."""
    return _home(environment) / ".gipfel" / "jobs"


def _inside(environment: Mapping[str, str]) -> str:
    """The engine of the job that this process is in; empty outside, where the same name is a default."""
    return environment.get("GIPFEL_ENGINE", "") if "GIPFEL_RUN" in environment else ""


def _home(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("HOME") or Path.home())


def _absolute(path: Path, directory: Path) -> Path:
    # Links are followed here: in a container only the folder that is mounted would be there.
    return (directory / path.expanduser()).resolve()


def _scheduler_name(options: NotebookOptions, environment: Mapping[str, str]) -> str:
    found = "slurm" if shutil.which("sbatch", path=environment.get("PATH")) else "local"
    name = options.scheduler or environment.get("GIPFEL_SCHEDULER") or found
    if name not in SCHEDULERS:
        raise GipfelError(f"There is no scheduler {name!r}.", f"Choose one of {', '.join(SCHEDULERS)}.")
    return name


def _checked_edf(name: str, engine: str, environment: Mapping[str, str], directory: Path) -> Edf | None:
    if not name:
        return None
    edf = load_edf(name, environment=environment, directory=directory)
    errors = tuple(each for each in check_here(edf) if each.severity == "error")
    if errors:
        raise EdfError(errors)
    engine_for(edf, engine)
    return edf


def _runtime(options: NotebookOptions, edf: Edf | None, environment: Mapping[str, str]) -> Runtime | None:
    given = options.runtime or environment.get("GIPFEL_RUNTIME", "")
    if given:
        return Runtime.load(Path(given).expanduser())
    usual = _home(environment) / ".gipfel" / "runtime"
    tree = Path(__file__).parents[3]
    built = (tree / "build" / "runtime",) if (tree / "pyproject.toml").is_file() else ()
    for folder in (Path(sys.prefix), usual, *built):
        if (folder / "runtime.json").is_file():
            return Runtime.load(folder)
    if edf and edf.image:
        raise GipfelError(
            "There is no runtime to mount into the image.",
            f"Build one with `gipfel runtime build {usual}`, or give --runtime.",
        )
    return None


def _check_folders(edf: Edf | None, folders: tuple[Path, ...]) -> None:
    for folder in folders:
        if edf and edf.image and folder in _SYSTEM:
            raise GipfelError(
                f"The folder {folder} can't be mounted: it would hide the image's own.",
                "Put the notebook into a folder of yours.",
            )


def _command(
    notebook: Path, output: Path, parameters: tuple[tuple[str, str], ...], directory: Path
) -> tuple[str, ...]:
    # Isolated (-I), so that neither an image's PYTHONPATH nor a file of the folder stands before papermill.
    words = [
        PYTHON,
        "-I",
        "-m",
        "gipfel_extension.training.papermill_engine",
        braced(notebook),
        braced(output),
    ]
    words += ["--cwd", str(directory)]
    words += ["--no-progress-bar", "--log-output"]
    for name, value in parameters:
        words += ["-p", name, value]
    return tuple(words)


def _recorded(options: NotebookOptions, notebook: Path, output: Path) -> dict[str, object]:
    asked = options.model_dump(mode="json", include={"edf", "nodes", "partition", "account", "time"})
    return asked | {
        "gpus": options.gpus_per_node,
        "notebook": str(notebook),
        "output": str(output),
        "parameters": [list(each) for each in options.parameters],
    }


def _request(
    options: NotebookOptions,
    spec: JobSpec,
    runtime: Runtime | None,
    output: Path,
    environment: Mapping[str, str],
) -> JobRequest:
    content = spec.model_dump_json()
    if len(content.encode()) > _LARGEST_SPEC:
        raise GipfelError("The parameters are too long.", "Put long values into a file and give its path.")
    on_host = runtime and os.access(runtime.python, os.X_OK)
    return JobRequest(
        name="gipfel-notebook",
        script=batch_script(runtime.python if runtime and on_host else sys.executable),
        directory=spec.directory,
        output=str(log_of(output)),
        partition=options.partition,
        account=options.account,
        gpus_per_node=options.gpus_per_node,
        time=options.time,
        environment={**_passed_on(environment), JOB_VARIABLE: content},
    )


def _passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name in _PASSED_ON
        or (
            name.isidentifier()
            and name.isascii()
            and _is_text(value)
            and not name.startswith((*_SCHEDULERS_OWN, *_NOT_PASSED_ON))
        )
    }


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # Bytes that are no UTF-8.
        return False
    return True


def _refused(error: ValidationError) -> GipfelError:
    # Never the value: it may be the whole environment.
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "options"
    return GipfelError(f"The job's {where} can't be used: {first['msg']}.", "See `gipfel submit --help`.")
