"""``gipfel submit``: runs a notebook as a batch job."""

import json
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .data_stage import stage_of_options, stage_options
from .terminal import examples, in_notebook_cell, report_line

if TYPE_CHECKING:
    from gipfel_cluster.scheduler import Scheduler

    from ..training.batch.job import NotebookJob
    from ..training.batch.submitted import TaskView
    from ..training.batch.wait import OnStatus

_INTERRUPTED = 130


@click.command(
    epilog=examples(
        "gipfel submit train.ipynb trained.ipynb -p epochs 3 --edf pytorch --gpus-per-node 4 --time 02:00:00",
        "gipfel submit train.ipynb 'lr-{lr}-{seed}.ipynb' --grid lr=0.1,1 --grid seed=0..3 --max-parallel 2",
        "gipfel submit train.ipynb trained.ipynb -p epochs 3 --resume --wait",
        "gipfel submit measure-saturation.ipynb measured.ipynb -p seconds 60 --scheduler local --wait",
    )
)
@click.argument("notebook", metavar="IN.ipynb", type=click.Path(readable=False, path_type=Path))
@click.argument("output", metavar="OUT.ipynb", type=click.Path(readable=False, path_type=Path))
@click.option(
    "-p",
    "parameters",
    type=(str, str),
    multiple=True,
    metavar="K V",
    help="A parameter: True, False, None, a number or text, according to its annotation.",
)
@click.option(
    "-r", "parameters_raw", type=(str, str), multiple=True, metavar="K V", help="A parameter that is text."
)
@click.option("-y", "parameters_yaml", multiple=True, metavar="YAML", help="Parameters as YAML: 'lr: 0.1'.")
@click.option("-f", "parameters_file", multiple=True, metavar="FILE", help="A YAML file of parameters.")
@click.option(
    "--grid",
    multiple=True,
    metavar="K=VALUES",
    help="Run every combination: lr=1e-3,1e-4 or seed=0..3 or 'layers=[[64], [64, 64]]'. {lr} in OUT.ipynb "
    "stands for the value; without it, the value is inserted before the suffix.",
)
@click.option("--strict", is_flag=True, help="Refuse parameters that the notebook's 'parameters' cell lacks.")
@click.option(
    "--max-parallel",
    default=0,
    type=click.IntRange(min=0),
    metavar="N",
    help="Maximum number of grid points that run at a time; by default Slurm's limit, on this machine one.",
)
@click.option(
    "--resume", is_flag=True, help="Continue OUT.ipynb at the first cell that has not finished; see below."
)
@click.option(
    "--kernel",
    default="",
    metavar="NAME",
    help="By default the notebook's. In an image with Python, python3 is the image's, gipfel the runtime's.",
)
@click.option("--edf", default="", metavar="FILE|NAME", help="The environment; by default no container.")
@click.option(
    "--allow-host",
    "allowed_hosts",
    multiple=True,
    metavar="HOST",
    help="Put the notebook behind a gate: only this host and others so given are reached.",
)
@click.option("--no-network", is_flag=True, help="The same, without any host.")
@stage_options
@click.option(
    "--nodes", default=1, show_default=True, type=click.IntRange(min=1), metavar="N",
    help="Nodes of the job; the notebook itself runs on the first one.",
)  # fmt: skip
@click.option("--gpus-per-node", default=0, show_default=True, type=click.IntRange(0, 1024), metavar="N")
@click.option("--partition", default="", metavar="P", help="By default the cluster's.")
@click.option("--account", default="", metavar="A", help="By default yours.")
@click.option("--time", default="", metavar="T", help="Time limit in Slurm's syntax, such as 01:30:00.")
@click.option(
    "--scheduler",
    default="",
    metavar="S",
    help="slurm or local (this machine); by default $GIPFEL_SCHEDULER, else slurm where it is configured.",
)
@click.option("--engine", default="", metavar="E", help="By default $GIPFEL_ENGINE, else bubblewrap.")
@click.option(
    "--runtime",
    default="",
    metavar="DIR|FILE.sqsh",
    help="The runtime for images; by default $GIPFEL_RUNTIME, the one that runs this, ~/.gipfel/runtime.",
)
@click.option(
    "--cluster", default="", metavar="C", help="First part of the run's name; by default $GIPFEL_CLUSTER."
)
@click.option("--wait", is_flag=True, help="Wait for the end and return the job's exit status.")
@click.option("--dry-run", is_flag=True, help="Show exactly what would be submitted, and submit nothing.")
@click.option("--json", "as_document", is_flag=True, help="One JSON document on stdout, nothing else there.")
def submit(*, wait: bool, dry_run: bool, as_document: bool, **options: Any) -> int:
    """Run the notebook IN.ipynb as a batch job and write the executed notebook to OUT.ipynb.

    The values of -p, -r, -y and -f are set after its cell tagged 'parameters', or at its top without such a
    cell; a misspelt name is refused. The notebook runs in the current directory. The job's ID is printed on
    stdout, with --wait in a notebook's cell followed by the progress; its log is OUT.ipynb.log. Inside a
    container, files must be in mounted directories, and the job gets the host's variables.

    With --resume, finished cells are not run again, except the parameters and cells tagged 'setup': the new
    kernel has only the variables that these define. The parameters must be unchanged; a changed cell and all
    cells after it run again. A job that Slurm requeues resumes in the same way. At the time limit or a
    cancellation, the running cell gets a KeyboardInterrupt and 5 s, and finished cells are saved; submit it
    again with --resume to continue.

    Exit status with --wait: the job's, for a grid the highest; 1 a cell failed, 138 the kernel died.
    """
    import asyncio  # noqa: PLC0415 - --help can do without it

    from ..training.batch.job import scheduler_of  # noqa: PLC0415
    from ..training.batch.submitted import submit_notebook  # noqa: PLC0415

    job = _planned(options)
    for note in job.notes:
        report_line(note)
    if dry_run:
        return _show(job, as_document=as_document)
    scheduler = scheduler_of(job, os.environ)
    job_id = asyncio.run(submit_notebook(job, scheduler, os.environ))
    if not as_document:
        click.echo(job_id)
    count = f" with {job.request.array} tasks" if job.request.array else ""
    shown = f"job {job_id} is submitted ({job.scheduler}){count}; its log is {job.log}"
    report_line(shown, progress=wait and not as_document)
    if job.in_container and job.scheduler == "local":
        report_line(f"job {job_id} ends with the job that it was submitted from, at the latest")
    status = _wait(scheduler, job_id, job, as_document=as_document) if wait else 0
    if as_document:
        outputs = [str(task.output) for task in job.tasks(job_id)]
        document = {"job_id": job_id, "scheduler": job.scheduler, "outputs": outputs, "log": str(job.log)}
        click.echo(json.dumps(document | ({"exit_status": status} if wait else {})))
    return status


def _planned(options: dict[str, Any]) -> "NotebookJob":
    from gipfel_cluster.model import GipfelError  # noqa: PLC0415

    from ..training.batch.job import NotebookOptions, plan_notebook_job  # noqa: PLC0415
    from .launch_spec import gate_of_options  # noqa: PLC0415

    try:
        directory = Path.cwd()
    except OSError as error:
        raise GipfelError("The working directory no longer exists.", "Change to another one.") from error
    options["network"] = gate_of_options(options)
    options["stage"] = stage_of_options(options)
    notebook_options = NotebookOptions.model_validate(options)
    return plan_notebook_job(notebook_options, environment=os.environ, directory=directory)


def _show(job: "NotebookJob", *, as_document: bool) -> int:
    from ..training.batch.job import dry_run_document, dry_run_lines  # noqa: PLC0415

    if as_document:
        click.echo(json.dumps(dry_run_document(job)))
    else:
        for line in dry_run_lines(job):
            click.echo(line)
    return 0


def _wait(scheduler: "Scheduler", job_id: str, job: "NotebookJob", *, as_document: bool) -> int:
    import asyncio  # noqa: PLC0415 - --help can do without it

    from ..training.batch.wait import follow_hint, wait_for_job  # noqa: PLC0415

    # A table that is redrawn needs a terminal, which IPython's `!` only pretends to be.
    table = None if in_notebook_cell() else _table(job_id)
    report = partial(report_line, progress=not as_document)
    try:
        return asyncio.run(
            wait_for_job(scheduler, job_id, job, environment=os.environ, report=report, on_status=table)
        )
    except KeyboardInterrupt:
        report(follow_hint(job_id, job, os.environ))
        return _INTERRUPTED


def _table(job_id: str) -> "OnStatus | None":
    """Return the callback that draws the status table; None if stderr is not a terminal."""
    from ..training.batch.submitted import now, status_table  # noqa: PLC0415
    from .terminal import LiveTable  # noqa: PLC0415

    if not LiveTable.is_supported():
        return None
    live = LiveTable()

    def show(views: "Sequence[TaskView]") -> None:
        live.draw(status_table(job_id, views, now=now()))

    return show
