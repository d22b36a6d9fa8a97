"""A notebook as a batch job: papermill in the environment of an EDF, on one node."""

from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from gipfel_cluster.broker.surroundings import hides_an_image
from gipfel_cluster.job import JOB_VARIABLE, JobSpec, batch_script
from gipfel_cluster.job.spec import PYTHON
from gipfel_cluster.model import Frozen, GipfelError
from gipfel_cluster.scheduler import JobRequest, Scheduler

from .notebook_file import RECORDED, braced, check_notebook, check_output, log_of
from .standpoint import SCHEDULERS, ChosenEdf, ChosenRuntime, Standpoint, standpoint

__all__ = ["NotebookJob", "NotebookOptions", "plan_notebook_job", "scheduler_of"]

_LARGEST_SPEC = 96 << 10  # bytes: the kernel takes 128 KiB in one variable


class NotebookOptions(Frozen):
    """What the user of ``gipfel submit`` asks for; an empty text is for the default.

    ``parameters`` are names and values as they were typed, ``directory`` is where the notebook runs.
    """

    notebook: Path
    output: Path
    parameters: tuple[tuple[str, str], ...] = ()
    kernel: str = ""
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
    """A job that can be submitted: ``scheduler`` is a name of `SCHEDULERS`.

    ``output`` and ``log`` are paths where it was planned, which is in a container where it is ``inside``.
    """

    scheduler: str
    spec: JobSpec
    request: JobRequest
    output: Path
    log: Path
    inside: bool = False


class _Files(Frozen):
    """The host's paths of a job."""

    notebook: Path
    output: Path
    directory: Path


def plan_notebook_job(
    options: NotebookOptions,
    *,
    environment: Mapping[str, str],
    directory: Path,
    here: Standpoint | None = None,
) -> NotebookJob:
    """Check everything that can be checked before a job is submitted; nothing is written.

    Parameters
    ----------
    environment
        The user's variables: defaults (``GIPFEL_SCHEDULER`` …), and what the job gets but for tokens.
    directory
        Where the user is: relative paths start there, and the notebook runs there. From a folder of the
        system it runs beside the notebook.
    here
        Where it is planned; by default `standpoint` is asked.

    Raises
    ------
    GipfelError
        Notebook, output, EDF, runtime or an option can't be used, or the host does not see one of them.
    """
    if options.nodes != 1:
        raise GipfelError(
            f"A notebook runs on one node, {options.nodes} were asked for.", "Leave --nodes out."
        )
    here = standpoint(environment) if here is None else here
    notebook = _absolute(options.notebook, directory)
    output = _absolute(options.output, directory)
    check_notebook(notebook, [name for name, _ in options.parameters])
    check_output(output, notebook)
    place = notebook.parent if hides_an_image(directory) else directory
    files = _Files(
        notebook=here.on_host(notebook),
        output=here.on_host(output.parent) / output.name,
        directory=here.on_host(place),
    )
    scheduler = _scheduler_name(options, here)
    engine = options.engine or here.default("engine") or "bubblewrap"
    edf = here.edf(options.edf, engine, place) if options.edf else None
    runtime = here.runtime(options.runtime)
    _check_image(edf, runtime, files)
    try:
        spec = JobSpec(
            kind="notebook",
            command=_command(files, options.kernel),
            cluster=options.cluster or here.default("cluster") or scheduler,
            edf=edf.file if edf else "",
            engine=engine,
            runtime=runtime.root,
            options=_recorded(options, files),
            directory=str(files.directory),
            folders=tuple(dict.fromkeys((str(files.notebook.parent), str(files.output.parent)))),
        )
        request = _request(options, spec, runtime.python, files.output, here.environment())
    except ValidationError as error:
        raise _refused(error) from None
    return NotebookJob(
        scheduler=scheduler,
        spec=spec,
        request=request,
        output=output,
        log=log_of(output),
        inside=here.inside,
    )


def scheduler_of(job: NotebookJob, environment: Mapping[str, str]) -> Scheduler:
    """The scheduler that runs a job, as it is reached from here."""
    return standpoint(environment).scheduler(job.scheduler)


def _absolute(path: Path, directory: Path) -> Path:
    # Links are followed here: in a container only the folder that is mounted would be there.
    return (directory / path.expanduser()).resolve()


def _scheduler_name(options: NotebookOptions, here: Standpoint) -> str:
    name = options.scheduler or here.default("scheduler")
    if name not in SCHEDULERS:
        raise GipfelError(f"There is no scheduler {name!r}.", f"Choose one of {', '.join(SCHEDULERS)}.")
    return name


def _check_image(edf: ChosenEdf | None, runtime: ChosenRuntime, files: _Files) -> None:
    if edf is None or not edf.image:
        return
    if not runtime.root:
        raise GipfelError(
            "There is no runtime to mount into the image.",
            "Build one with `gipfel runtime build ~/.gipfel/runtime`, or give --runtime.",
        )
    for folder in (files.notebook.parent, files.output.parent):
        if hides_an_image(folder):
            raise GipfelError(
                f"The folder {folder} can't be mounted: it would hide the image's own.",
                "Put the notebook into a folder of yours.",
            )


def _command(files: _Files, kernel: str) -> tuple[str, ...]:
    # Isolated (-I), so that neither an image's PYTHONPATH nor a file of the folder stands before papermill.
    words = [PYTHON, "-I", "-m", "gipfel_extension.training.papermill_engine"]
    words += [braced(files.notebook), braced(files.output)]
    words += ["--cwd", str(files.directory), *(("--kernel", kernel) if kernel else ())]
    # The parameters' values are not here, because everybody on the node can read an argv.
    words += ["--no-progress-bar", "--log-output", RECORDED]
    return tuple(words)


def _recorded(options: NotebookOptions, files: _Files) -> dict[str, object]:
    asked = options.model_dump(
        mode="json", include={"kernel", "edf", "nodes", "partition", "account", "time"}
    )
    return asked | {
        "gpus": options.gpus_per_node,
        "notebook": str(files.notebook),
        "output": str(files.output),
        "parameters": [list(each) for each in options.parameters],
    }


def _request(
    options: NotebookOptions, spec: JobSpec, python: str, output: Path, environment: Mapping[str, str]
) -> JobRequest:
    content = spec.model_dump_json()
    if len(content.encode()) > _LARGEST_SPEC:
        raise GipfelError("The parameters are too long.", "Put long values into a file and give its path.")
    return JobRequest(
        name="gipfel-notebook",
        script=batch_script(python),
        directory=spec.directory,
        output=str(log_of(output)),
        partition=options.partition,
        account=options.account,
        gpus_per_node=options.gpus_per_node,
        time=options.time,
        environment={**environment, JOB_VARIABLE: content},
    )


def _refused(error: ValidationError) -> GipfelError:
    # Never the value: it may be the whole environment.
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "options"
    return GipfelError(f"The job's {where} can't be used: {first['msg']}.", "See `gipfel submit --help`.")
