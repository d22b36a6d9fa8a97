"""``gipfel submit``, ``ps``, ``logs``, ``stop`` and ``rerun``: batch notebooks and workloads of all kinds."""

import json
import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gipfel_cluster.messages import GipfelError
from gipfel_cluster.process.fork import allow_forks

from .data_stage import stage_of_options, stage_options
from .terminal import (
    INTERRUPTED,
    Status,
    current_directory,
    examples,
    follow_logs,
    in_notebook_cell,
    print_json,
    print_lines,
    print_logs,
    report_line,
    report_lines,
    shorten,
    stop_and_wait,
    table_lines,
)

if TYPE_CHECKING:
    from gipfel_cluster.scheduler import Scheduler
    from gipfel_cluster.workloads.kinds import Workload, Workloads
    from gipfel_cluster.workloads.logs import Cursor

    from ..training.batch import NotebookJob
    from ..training.batch.submitted import TaskView
    from ..training.batch.wait import OnStatus

_STATE_S = 2.0
_STOP_S = 180.0


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
@click.option("--qos", default="", metavar="Q", help="By default your account's.")
@click.option("--reservation", default="", metavar="R", help="Nodes reserved for you.")
@click.option("--memory", default="", metavar="M", help="Memory per node, such as 64G.")
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

    from ..training.batch import scheduler_of  # noqa: PLC0415
    from ..training.batch.submitted import submit_notebook  # noqa: PLC0415

    job = _planned(options)
    report_lines(job.notes)
    if dry_run:
        return _show(job, as_document=as_document)
    scheduler = scheduler_of(job, os.environ)
    job_id = asyncio.run(submit_notebook(job, scheduler, os.environ, report_line))
    if not as_document:
        click.echo(job_id)
    count = f" with {job.request.array} tasks" if job.request.array > 1 else ""
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
    from pydantic import ValidationError  # noqa: PLC0415

    from gipfel_cluster.workloads.submission import refused_option  # noqa: PLC0415

    from ..training.batch import NotebookOptions, plan_notebook_job  # noqa: PLC0415
    from .launch import gate_of_options  # noqa: PLC0415

    options["network"] = gate_of_options(options)
    options["stage"] = stage_of_options(options)
    try:
        notebook_options = NotebookOptions.model_validate(options)
    except ValidationError as error:
        raise refused_option(error, "job", "See `gipfel submit --help`.") from None
    return plan_notebook_job(notebook_options, environment=os.environ, directory=current_directory())


def _show(job: "NotebookJob", *, as_document: bool) -> int:
    from ..training.batch.dry_run import dry_run_document, dry_run_lines  # noqa: PLC0415

    if as_document:
        click.echo(json.dumps(dry_run_document(job)))
    else:
        print_lines(dry_run_lines(job))
    return 0


def _wait(scheduler: "Scheduler", job_id: str, job: "NotebookJob", *, as_document: bool) -> int:
    import asyncio  # noqa: PLC0415 - --help can do without it

    from ..training.batch.wait import follow_hint, wait_for_job  # noqa: PLC0415

    # A table that is redrawn needs a terminal, which IPython's `!` only pretends to be.
    table = None if in_notebook_cell() else _live_table(job_id)
    report = partial(report_line, progress=not as_document)
    try:
        return asyncio.run(
            wait_for_job(scheduler, job_id, job, environment=os.environ, report=report, on_status=table)
        )
    except KeyboardInterrupt:
        report(follow_hint(job_id, job, os.environ))
        return INTERRUPTED


def _live_table(job_id: str) -> "OnStatus | None":
    """Return the callback that draws the status table; None if stderr is not a terminal."""
    from ..training.batch.wait import status_table  # noqa: PLC0415
    from .terminal import LiveTable  # noqa: PLC0415

    if not LiveTable.is_supported():
        return None
    live = LiveTable()

    def show(views: "Sequence[TaskView]") -> None:
        live.draw(status_table(job_id, views, now_s=time.time()))

    return show


@click.command(
    epilog=examples(
        "gipfel ps                     running and waiting workloads",
        "gipfel ps --all               also ended ones",
        "gipfel ps --kind batch --json",
    )
)
@click.option("--all", "ended", is_flag=True, help="Also those that have ended.")
@click.option("--kind", default="", metavar="K", help="Only one kind, such as launch or batch.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
def ps(*, ended: bool, kind: str, as_json: bool) -> int:
    """List your workloads: launches, batch notebooks and other installed kinds."""
    found = _workloads()
    if kind and kind not in found.kinds:
        raise GipfelError(f"There is no kind {kind!r}.", f"Choose one of {', '.join(found.kinds)}.")
    listed = found.list(ended=ended, kind=kind)
    if as_json:
        return print_json([each.model_dump(mode="json") for each in listed])
    print_lines(_table(listed))
    if not listed:
        report_line(
            "No workload has been started yet." if ended else "No workload runs. `gipfel ps --all` lists all."
        )
    return 0


@click.command(
    epilog=examples("gipfel logs -f                of the newest", "gipfel logs alps-48812/3 --rank 0 -n 100")
)
@click.argument("which", metavar="[ID]", default="")
@click.option(
    "--rank", "ranks", multiple=True, type=click.IntRange(0), metavar="R", help="Only these ranks or tasks."
)
@click.option("-n", "--lines", "last", type=click.IntRange(0), metavar="N", help="Only the last N lines.")
@click.option("-f", "--follow", "follow", is_flag=True, help="Keep printing until it ends.")
def logs(*, which: str, ranks: tuple[int, ...], last: int | None, follow: bool) -> int:
    """Print the output of a workload, merged by time, each line prefixed with its rank or task.

    Exit status: 0; with -f that of the workload.
    """
    from gipfel_cluster.workloads.logs import MAX_BYTES  # noqa: PLC0415 - pydantic

    found = _workloads()
    workload = found.find(which)
    following = partial(follow_workload, found, workload, ranks) if follow else None
    return print_logs(found.logs(workload), ranks, last, MAX_BYTES, following)


@click.command(epilog=examples("gipfel stop 3", "gipfel stop batch:3      where a launch has this ID, too"))
@click.argument("which", metavar="ID")
def stop(*, which: str) -> int:
    """Stop a workload, and wait until it has ended."""
    found = _workloads()
    workload = found.find(which)

    def wait() -> bool:
        deadline = time.monotonic() + _STOP_S
        while time.monotonic() < deadline:
            if found.find(f"{workload.kind}:{workload.id}").ended:
                return True
            # Not more often, because finding a workload may query the scheduler.
            time.sleep(_STATE_S)
        return False

    return stop_and_wait(
        f"{workload.kind} {workload.id}",
        None if workload.ended else partial(found.stop, workload),
        wait,
        note="processes that ignore it are killed within minutes.",
    )


@click.command(epilog=examples("gipfel rerun 3", "gipfel rerun 3 --kill-holders"))
@click.argument("which", metavar="ID")
@click.option(
    "--kill-holders",
    is_flag=True,
    help="End your other processes in this job that hold its GPUs; each is listed first.",
)
def rerun(*, which: str, kill_holders: bool) -> int:
    """Start a workload again, and print its ID.

    A workload that was held before its start, such as a launch whose GPUs were in use, continues under its
    ID. Any other one starts with the same spec under a new ID; a launch that has run before gets
    GIPFEL_RESUME=1 to resume from its checkpoint.
    """
    allow_forks()
    found = _workloads()
    started = found.rerun(
        found.find(which), directory=Path.cwd(), report=report_line, kill_holders=kill_holders
    )
    click.echo(started.id)
    return 0


def _workloads() -> "Workloads":
    from gipfel_cluster.workloads.kinds import Workloads  # noqa: PLC0415 - pydantic, which --help can do without

    from ..training.batch.submitted import BatchKind  # noqa: PLC0415
    from ..training.launch_summary import LaunchKind  # noqa: PLC0415

    return Workloads(os.environ, {"launch": LaunchKind, "batch": BatchKind})


def _table(workloads: "tuple[Workload, ...]") -> list[str]:
    if not workloads:
        return []
    rows = [("ID", "KIND", "STATE", "AGE", "WHAT")]
    for each in workloads:
        why = f"; {' '.join(each.reason.split())}" if each.reason else ""
        what = shorten(f"{each.title or each.name}{why}")
        age = _age(each.started_ns or each.created_ns, each.ended_ns)
        rows.append((each.id, each.kind, each.state, age, what))
    return table_lines(rows, right=(3,))


def _age(start_ns: int, end_ns: int | None) -> str:
    """Return the time from a start to an end, or until now, in one unit: ``45s``, ``12m``, ``3h``."""
    if not start_ns:
        return ""
    seconds = max(0, (end_ns or time.time_ns()) - start_ns) // 10**9
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def follow_workload(
    workloads: "Workloads",
    workload: "Workload",
    ranks: tuple[int, ...] = (),
    cursor: "Cursor | None" = None,
    *,
    quiet: bool = False,
) -> int:
    """Print a workload's logs until it ends, and return its exit status; `quiet` prints only states."""
    from gipfel_cluster.workloads.logs import LogFiles, read_logs  # noqa: PLC0415

    name, looked = f"{workload.kind}:{workload.id}", 0.0

    def read_status() -> Status:
        nonlocal workload, looked
        # Not more often, because finding a workload may query the scheduler.
        if time.monotonic() - looked > _STATE_S:
            workload, looked = workloads.find(name), time.monotonic()
        return Status(_status_line(workload), workload.ended, workload.exit_status)

    return follow_logs(
        read_status,
        lambda cursor: read_logs(LogFiles({}) if quiet else workloads.logs(workload), cursor, ranks=ranks),
        cursor,
        on_interrupt=f"{workload.kind} {workload.id} keeps running; `gipfel stop {workload.id}` ends it.",
    )


def _status_line(workload: "Workload") -> str:
    where = f" on {', '.join(workload.nodes[:4])}" if workload.nodes and not workload.ended else ""
    why = f": {workload.reason}" if workload.reason else ""
    return f"{workload.kind} {workload.id} {workload.state}{where}{why}"
