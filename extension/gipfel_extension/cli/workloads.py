"""``gipfel ps``, ``logs``, ``stop`` and ``rerun``, for workloads of every kind."""

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gipfel_cluster.process.fork import allow_forks

from .log_view import Status, follow_logs, print_line, print_logs, shorten
from .terminal import examples, report_line

if TYPE_CHECKING:
    from gipfel_cluster.workloads.kinds import Workload, Workloads
    from gipfel_cluster.workloads.logs import Cursor

_STATE_S = 2.0
_STOP_S = 180.0


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
        from gipfel_cluster.model import GipfelError  # noqa: PLC0415

        raise GipfelError(f"There is no kind {kind!r}.", f"Choose one of {', '.join(found.kinds)}.")
    listed = found.list(ended=ended, kind=kind)
    if as_json:
        click.echo(json.dumps([each.model_dump(mode="json") for each in listed]))
        return 0
    for line in _table(listed):
        click.echo(line)
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
    from gipfel_cluster.workloads.logs import last_lines, read_logs  # noqa: PLC0415 - pydantic

    found = _workloads()
    workload = found.find(which)
    cursor = None
    if last is not None:
        lines, cursor = last_lines(found.logs(workload), last, ranks=ranks)
        for line in lines:
            print_line(line)
    if follow:
        return _follow(found, workload, ranks, cursor)
    if last is None:
        print_logs(lambda cursor: read_logs(found.logs(workload), cursor, ranks=ranks))
    return 0


@click.command(epilog=examples("gipfel stop 3", "gipfel stop batch:3      where a launch has this ID, too"))
@click.argument("which", metavar="ID")
def stop(*, which: str) -> int:
    """Stop a workload, and wait until it has ended."""
    found = _workloads()
    workload = found.find(which)
    if workload.ended:
        report_line(f"{workload.kind} {workload.id} has ended already.")
        return 0
    found.stop(workload)
    report_line(
        f"{workload.kind} {workload.id} is stopping; processes that ignore it are killed within minutes."
    )
    deadline = time.monotonic() + _STOP_S
    while time.monotonic() < deadline:
        if found.find(f"{workload.kind}:{workload.id}").ended:
            report_line(f"{workload.kind} {workload.id} is stopped.")
            return 0
        # Not more often, because finding a workload may query the scheduler.
        time.sleep(_STATE_S)
    report_line(f"{workload.kind} {workload.id} has not ended yet. See `gipfel ps`.")
    return 1


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
    widths = [max(len(name), *(len(getattr(each, name)) for each in workloads)) for name in ("id", "kind")]
    lines = [f"{'ID':<{widths[0]}}  {'KIND':<{widths[1]}}  {'STATE':<10}  {'AGE':>6}  WHAT"]
    for each in workloads:
        why = f"; {' '.join(each.reason.split())}" if each.reason else ""
        what = shorten(f"{each.title or each.name}{why}")
        age = _age(each.started_ns or each.created_ns, each.ended_ns)
        lines.append(f"{each.id:<{widths[0]}}  {each.kind:<{widths[1]}}  {each.state:<10}  {age:>6}  {what}")
    return lines


def _age(start_ns: int, end_ns: int | None) -> str:
    """Return the time from a start to an end, or until now, in one unit: ``45s``, ``12m``, ``3h``."""
    if not start_ns:
        return ""
    seconds = max(0, (end_ns or time.time_ns()) - start_ns) // 10**9
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def _follow(
    workloads: "Workloads", workload: "Workload", ranks: tuple[int, ...], cursor: "Cursor | None"
) -> int:
    from gipfel_cluster.workloads.logs import read_logs  # noqa: PLC0415

    name, looked = f"{workload.kind}:{workload.id}", 0.0

    def read_status() -> Status:
        nonlocal workload, looked
        # Not more often, because finding a workload may query the scheduler.
        if time.monotonic() - looked > _STATE_S:
            workload, looked = workloads.find(name), time.monotonic()
        return Status(_status_line(workload), workload.ended, workload.exit_status)

    return follow_logs(
        read_status,
        lambda cursor: read_logs(workloads.logs(workload), cursor, ranks=ranks),
        cursor,
        on_interrupt=f"{workload.kind} {workload.id} keeps running; `gipfel stop {workload.id}` ends it.",
    )


def _status_line(workload: "Workload") -> str:
    where = f" on {', '.join(workload.nodes[:4])}" if workload.nodes and not workload.ended else ""
    why = f": {workload.reason}" if workload.reason else ""
    return f"{workload.kind} {workload.id} {workload.state}{where}{why}"
