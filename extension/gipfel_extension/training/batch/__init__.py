"""A notebook as a batch job: papermill in the environment of an EDF, once or for each point of a grid.

`plan_notebook_job` plans the job; `dry_run` shows exactly what it would submit, and `submitted` and `wait`
list and follow what was submitted.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import Field, ValidationError

from gipfel_cluster.broker.context import is_system_directory
from gipfel_cluster.edf.gate import Gate, gates_of
from gipfel_cluster.egress.start import gate_problem
from gipfel_cluster.job import JOB_VARIABLE, JobSpec, batch_script
from gipfel_cluster.job.staging import StageRequest
from gipfel_cluster.model import PYTHON, Frozen, GipfelError
from gipfel_cluster.scheduler import JobRequest, Scheduler
from gipfel_cluster.workloads.submission import (
    ChosenEdf,
    ChosenRuntime,
    SubmissionContext,
    chosen_scheduler,
    refused_option,
    submission_context,
)

from ...gate.scan.verdict import judge_start
from ..papermill.notebook_file import check_output, read_notebook
from ..papermill.parameters import (
    Grid,
    ParameterArgs,
    check_names,
    check_types,
    grid_of,
    has_parameters_cell,
    known_parameters,
    parameter_values,
    read_axis,
)
from ..papermill.values import from_yaml, to_yaml

_MAX_SPEC_BYTES = 96 << 10  # bytes: Linux limits an environment variable to 128 KiB


class JobOptions(Frozen):
    """Options of a batch notebook's job, as typed; an empty text means the default."""

    scheduler: str = Field("", max_length=32)
    edf: str = Field("", max_length=4096)
    nodes: int = Field(1, ge=1, le=65536)
    gpus_per_node: int = Field(0, ge=0, le=1024)
    time: str = Field("", max_length=20)
    partition: str = Field("", max_length=128)
    account: str = Field("", max_length=128)
    qos: str = Field("", max_length=128)
    reservation: str = Field("", max_length=128)
    memory: str = Field("", max_length=10)
    resume: bool = False


class NotebookOptions(JobOptions):
    """Options of ``gipfel submit``.

    ``parameters`` (-p), ``parameters_raw`` (-r), ``parameters_yaml`` (-y) and ``parameters_file`` (-f) are
    texts as typed. ``grid`` has the axes in the syntax of `read_axis`. ``max_parallel`` is the largest number
    of points that run at the same time (0: the scheduler's default). ``network`` is the allow list of hosts
    of the notebook, ``stage`` the data to copy to the nodes before it starts.
    """

    notebook: Path
    output: Path
    parameters: tuple[tuple[str, str], ...] = ()
    parameters_raw: tuple[tuple[str, str], ...] = ()
    parameters_yaml: tuple[str, ...] = ()
    parameters_file: tuple[str, ...] = ()
    grid: tuple[str, ...] = ()
    max_parallel: int = Field(0, ge=0)
    strict: bool = False
    kernel: str = ""
    network: Gate | None = None
    stage: StageRequest | None = None
    engine: str = ""
    runtime: str = ""
    cluster: str = ""


class NotebookTask(Frozen):
    """One run of the notebook: ID of its job or array task, values of its grid point, output and log."""

    job_id: str
    values: dict[str, str]
    output: Path
    log: Path


class NotebookJob(Frozen):
    """A planned job: ``scheduler`` is a name in `SCHEDULERS`.

    ``output`` and ``log`` are paths as the planning process sees them, which may be in a container
    (``in_container``). With a ``grid`` they are templates, and `tasks` yields the paths. ``options`` and
    ``directory`` are the input of the planning. ``notes`` are sentences for the user, for example about
    parameters that the notebook does not set.
    """

    scheduler: str
    spec: JobSpec
    request: JobRequest
    notebook: Path
    output: Path
    log: Path
    grid: Grid = Grid()
    options: NotebookOptions
    directory: Path
    in_container: bool = False
    notes: tuple[str, ...] = ()

    def tasks(self, job_id: str) -> Iterator[NotebookTask]:
        """Yield the runs of the notebook in the job of this ID: one for each grid point, else one."""
        for number, name in enumerate(self.grid.names(self.output.name)):
            yield NotebookTask(
                job_id=f"{job_id}_{number}" if self.grid.axes else job_id,
                values=self.grid.point(number),
                output=self.output.with_name(name),
                log=Path(str(self.log).replace("%a", str(number))),
            )


class _Files(Frozen):
    """Paths of a job on the host."""

    notebook: Path
    output: Path
    directory: Path


def plan_notebook_job(
    options: NotebookOptions,
    *,
    environment: Mapping[str, str],
    directory: Path,
    context: SubmissionContext | None = None,
) -> NotebookJob:
    """Check everything that can be checked before a job is submitted; nothing is written.

    Parameters
    ----------
    environment
        Environment variables of the user, with defaults (``GIPFEL_SCHEDULER`` …). The job gets them without
        tokens.
    directory
        Working directory of the user: base of relative paths, in which the notebook runs. If it is a system
        directory, the notebook runs in its own directory.
    context
        Context of the submission; by default that of `submission_context`.

    Raises
    ------
    GipfelError
        Notebook, output, EDF, runtime or an option can't be used, or the host can't access one of the files.
    """
    context = submission_context(environment) if context is None else context
    notebook = _absolute(options.notebook, directory)
    output = _absolute(options.output, directory)
    yaml_texts, grid, parameter_notes = _parameters(options, notebook, directory)
    names = grid.names(output.name)
    check_output(output, notebook, [*names, *_logs(grid, output)])
    working_directory = notebook.parent if is_system_directory(directory) else directory
    files = _Files(
        notebook=context.on_host(notebook),
        output=context.on_host(output.parent) / output.name,
        directory=context.on_host(working_directory),
    )
    scheduler = chosen_scheduler(options.scheduler, context)
    if scheduler == "local" and options.nodes > 1:
        raise GipfelError(
            f"This machine is one node, but {options.nodes} were requested.", "Leave --nodes out."
        )
    engine = options.engine or context.default_setting("engine") or "bubblewrap"
    edf = context.edf(options.edf, engine, working_directory) if options.edf else None
    runtime = context.runtime(options.runtime, scheduler)
    _check_image(edf, runtime, files)
    _check_gate(edf, environment, options, engine)
    security = judge_start(edf.image if edf else "", (notebook,), context, environment)
    try:
        spec = JobSpec(
            kind="notebook",
            command=_command(files, options),
            cluster=options.cluster or context.default_setting("cluster") or scheduler,
            edf=edf.file if edf else "",
            engine=engine,
            runtime=runtime.root,
            options=_record_options(options, files, yaml_texts, grid),
            network=options.network,
            stage=options.stage,
            directory=str(files.directory),
            folders=tuple(dict.fromkeys((str(files.notebook.parent), str(files.output.parent)))),
        )
        array = (len(grid) if grid.axes else 0, options.max_parallel or (1 if scheduler == "local" else 0))
        log = files.output.with_name(grid.log_name(files.output.name))
        request = _request(options, spec, runtime.python, context.environment(), log=log, array=array)
    except ValidationError as error:
        raise refused_option(error, "job", "See `gipfel submit --help`.") from None
    return NotebookJob(
        scheduler=scheduler,
        spec=spec,
        request=request,
        notebook=notebook,
        output=output,
        log=output.with_name(grid.log_name(output.name)),
        grid=grid,
        options=options,
        directory=directory,
        in_container=context.in_container,
        notes=tuple(filter(None, (context.scheduler_note(options.scheduler), *parameter_notes, *security))),
    )


def _check_gate(
    edf: ChosenEdf | None, environment: Mapping[str, str], options: NotebookOptions, engine: str
) -> None:
    """Raise a `GipfelError` if the notebook has a network gate that can't be enforced for it."""
    gates = gates_of(edf.network if edf else {}, environment, options.network)
    problem = gate_problem(engine if edf and edf.image else "host")
    if gates and problem and gates.mode == "refuse":
        raise GipfelError(problem, "Choose the engine bubblewrap, or leave the gate out.")


def scheduler_of(job: NotebookJob, environment: Mapping[str, str]) -> Scheduler:
    """Return the scheduler that runs a job."""
    return submission_context(environment).scheduler(job.scheduler)


def _absolute(path: Path, directory: Path) -> Path:
    # Links are resolved, because only the target's directory is mounted into a container.
    return (directory / path.expanduser()).resolve()


def _check_image(edf: ChosenEdf | None, runtime: ChosenRuntime, files: _Files) -> None:
    if edf is None or not edf.image:
        return
    if not runtime.root:
        raise GipfelError(
            "There is no runtime to mount into the image.",
            "Build one with `gipfel runtime build ~/.gipfel/runtime`, or give --runtime.",
        )
    for folder in (files.notebook.parent, files.output.parent):
        if is_system_directory(folder):
            raise GipfelError(
                f"The directory {folder} can't be mounted: it would hide a directory of the image.",
                "Move the notebook into a directory below your home or scratch directory.",
            )


def _parameters(
    options: NotebookOptions, notebook: Path, directory: Path
) -> tuple[dict[str, str], Grid, tuple[str, ...]]:
    """Return the checked values outside of the grid as YAML texts, the grid, and notes for the user."""
    node = read_notebook(notebook)
    what = f"The notebook {notebook}"
    typed = (options.parameters, options.parameters_raw, options.parameters_yaml, options.parameters_file)
    if not any(typed) and not options.grid:
        return {}, Grid(), ()
    if options.strict and not has_parameters_cell(node):
        raise GipfelError(
            f"{what} takes no parameters.", "Tag the cell that sets the parameters with 'parameters'."
        )
    known = known_parameters(node, kernel=options.kernel or None)
    arguments = ParameterArgs(
        files=tuple(str(directory / Path(each).expanduser()) for each in options.parameters_file),
        yaml_texts=options.parameters_yaml,
        typed=options.parameters,
        raw=options.parameters_raw,
    )
    values = parameter_values(arguments, known)
    axes = [read_axis(each, known) for each in options.grid]
    names = [*values, *(axis.name for axis in axes)]
    notes = check_names(known, names, what=what, strict=options.strict)
    # The number of points is checked before the values, which may be too many.
    grid = grid_of(axes, values)
    of_axes = ({axis.name: from_yaml(text)} for axis in axes for text in axis.values)
    for each in (values, *of_axes):
        check_types(known, each, what=what)
    return {name: to_yaml(value) for name, value in values.items()}, grid, notes


def _logs(grid: Grid, output: Path) -> tuple[str, ...]:
    name = grid.log_name(output.name)
    return tuple(name.replace("%a", str(number)) for number in range(len(grid)))


def _command(files: _Files, options: NotebookOptions) -> tuple[str, ...]:
    return (
        # Isolated (-I): neither PYTHONPATH in the image nor a file in the directory shadows papermill.
        *(PYTHON, "-I", "-m", "gipfel_extension.training.papermill"),
        f"--directory={files.directory}",
        *([f"--kernel={options.kernel}"] if options.kernel else ()),
        *(["--resume"] if options.resume else ()),
        *(["--strict"] if options.strict else ()),
        # Values of parameters are not arguments, because all users on the node can read them.
        *("--", str(files.notebook), str(files.output)),
    )


def _record_options(
    options: NotebookOptions, files: _Files, yaml_texts: Mapping[str, str], grid: Grid
) -> dict[str, object]:
    names = {*JobOptions.model_fields, "kernel"} - {"scheduler", "gpus_per_node"}
    return options.model_dump(mode="json", include=names) | {
        "gpus": options.gpus_per_node,
        "notebook": str(files.notebook),
        "output": str(files.output),
        "parameters": [list(each) for each in yaml_texts.items()],
        "grid": [axis.model_dump(mode="json") for axis in grid.axes],
    }


def _request(
    options: NotebookOptions,
    spec: JobSpec,
    python: str,
    environment: Mapping[str, str],
    *,
    log: Path,
    array: tuple[int, int],
) -> JobRequest:
    content = spec.model_dump_json()
    if len(content.encode()) > _MAX_SPEC_BYTES:
        raise GipfelError("The parameters are too long.", "Put long values into a file and give its path.")
    return JobRequest(
        name="gipfel-notebook",
        script=batch_script(python),
        directory=spec.directory,
        output=str(log),
        array=array[0],
        array_limit=array[1] if array[0] else 0,
        partition=options.partition,
        account=options.account,
        qos=options.qos,
        reservation=options.reservation,
        memory=options.memory,
        nodes=options.nodes,
        gpus_per_node=options.gpus_per_node,
        time=options.time,
        environment={**environment, JOB_VARIABLE: content},
    )
