"""``gipfel vet``: tests the nodes of a job and names faulty components; `Progress` shows running tests."""

import contextlib
import math
import os
import shutil
import sys
import textwrap
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

import click

from gipfel_cluster.messages import GipfelError, pluralize

from .terminal import (
    LiveTable,
    can_write,
    current_directory,
    examples,
    print_lines,
    report_line,
    report_lines,
)

if TYPE_CHECKING:
    from ..vetting.protocol import VettingProtocol
    from ..vetting.report import VettingReport
    from ..vetting.report_display import Table
    from ..vetting.run.location import Location
    from ..vetting.run.session import Session, VettingOptions


_NO_PROTOCOL = 2
_WIDTH = 80


@click.command(
    epilog=examples(
        "gipfel vet quick                              all nodes of this job",
        "srun --ntasks-per-node=1 gipfel vet standard  as a Slurm step of your own",
        "gipfel vet standard --action exclude || exit  in a batch script, before training",
        "gipfel vet standard --action shrink --min-nodes 14",
        "gipfel vet ./my-protocol.yaml --json vetting.json",
        "gipfel vet --list                             protocols and types of checks",
        "gipfel vet quick --show                       what a protocol does",
        'sbatch --exclude="$(gipfel vet --excluded)" job.sh',
    )
)
@click.argument("protocol", metavar="PROTOCOL", default="")
@click.option(
    "--json", "json_file", default="", metavar="FILE", help="Write the report to FILE; - is stdout."
)
@click.option(
    "--action",
    default="report",
    show_default=True,
    type=click.Choice(["report", "abort", "exclude", "shrink"]),
    help="report: run all tests and report. abort: stop as soon as a node has failed its own checks. "
    "exclude: if too few good nodes remain, resubmit this job without the bad ones. shrink: continue "
    "with the good nodes, which are printed and listed in good_nodes.txt.",
)
@click.option(
    "--min-nodes",
    type=click.IntRange(1, 65536),
    metavar="N",
    help="Fewest nodes that must pass so that the job continues with them; by default all.",
)
@click.option(
    "--time-limit",
    type=click.FloatRange(min=1.0),
    metavar="S",
    help="Time limit of the vetting run in seconds.",
)
@click.option(
    "--skip-vetted",
    default="",
    metavar="T",
    help="Skip the single-node checks of nodes that this protocol has vetted within T, such as 1 h.",
)
@click.option(
    "--resubmits",
    default=3,
    show_default=True,
    type=click.IntRange(0, 100),
    metavar="N",
    help="Maximum number of resubmissions by --action exclude.",
)
@click.option(
    "--share/--no-share",
    default=None,
    help="Send results of this and of later runs to the site's registry for its operators, or stop sending. "
    "They contain nodes, verdicts and measurements, but no paths or values of variables. Without PROTOCOL, "
    "only store the choice. By default nothing is sent.",
)
@click.option("--excluded", is_flag=True, help="Print the nodes that failed recently, for Slurm's --exclude.")
@click.option("--list", "listing", is_flag=True, help="List protocols and types of checks.")
@click.option("--show", is_flag=True, help="Show what PROTOCOL checks, and run nothing.")
def vet(
    *,
    protocol: str,
    json_file: str,
    action: str,
    min_nodes: int | None,
    time_limit: float | None,
    skip_vetted: str,
    resubmits: int,
    share: bool | None,
    excluded: bool,
    listing: bool,
    show: bool,
) -> int:
    """Vet the nodes of this job with PROTOCOL: a file in Gipfel's or vetnode's format, or a name.

    A name is searched for in this directory, in ~/.gipfel/protocols and among the built-in protocols. If srun
    starts it with one task per node, the tasks are the agents. If it runs once in a job, it starts an agent
    on every node. Without Slurm it vets this machine. It writes the report vetting.json, good_nodes.txt and
    bad_nodes.txt to the run folder.

    A node is vetted only if its checks ran and passed; a check that fails, hangs or can't run does not pass.
    In the report, each verdict other than pass has an owner: node, link, image (with its EDF), protocol or
    site. Only nodes with faults of their own are excluded; a check without a measurement is not_run.

    Exit status: 0 if every node that remains after the action is vetted and at least --min-nodes remain;
    1 otherwise, always with a report; 2 if PROTOCOL can't be read or is not valid.
    """
    if listing or excluded:
        return _list() if listing else _excluded()
    if share is not None:
        _consent(share=share, alone=not protocol)
    if not protocol:
        if share is None:
            raise click.UsageError("Give a protocol; `gipfel vet --list` lists them.")
        return 0
    from ..vetting.run.session import VettingOptions, cancel_run, checked_location, run_agent  # noqa: PLC0415

    if show:
        return _show(_load(protocol))
    _check_options(time_limit, json_file)
    place = checked_location(os.environ)
    if place.rank or place.redundant:
        return run_agent(place, os.environ)
    try:
        options = VettingOptions.model_validate(
            {
                "protocol": _load(protocol),
                "action": action,
                "min_nodes": min_nodes,
                "time_limit_s": time_limit,
                "skip_vetted_s": _seconds(skip_vetted),
                "resubmits": resubmits,
            }
        )
        return _vet(options, place, json_file)
    except BaseException:
        cancel_run(place, os.environ)
        raise


def _check_options(time_limit: float | None, json_file: str) -> None:
    """Check the options, so that errors are raised before the run instead of after it."""
    if time_limit is not None and not math.isfinite(time_limit):
        raise click.UsageError("--time-limit must be a number of seconds.")
    if json_file not in {"", "-"} and not (folder := Path(json_file).expanduser().parent).is_dir():
        raise click.UsageError(f"--json: there is no directory {folder}.")


def _consent(*, share: bool, alone: bool) -> None:
    from ..vetting.history.site_registry import set_consent  # noqa: PLC0415

    set_consent(share=share)
    if alone:
        text = "are sent to the site's registry, if there is one" if share else "are not sent"
        click.echo(f"From now on, the results of your vetting runs {text}.")


def _excluded() -> int:
    from ..vetting.history.queries import Exclusions, excluded_hostlist  # noqa: PLC0415
    from ..vetting.history.store import History, history_root  # noqa: PLC0415
    from ..vetting.run.location import Location  # noqa: PLC0415

    cluster = Location.cluster_of(os.environ)
    known, wrong = Exclusions(History(history_root(os.environ), cluster).folder).read()
    if wrong:
        report_line(f"note: {wrong}")
    for each in known:
        report_line(
            f"{each.node}: {each.check}: {each.reason}" if each.check else f"{each.node}: {each.reason}"
        )
    click.echo(excluded_hostlist(known))
    return 0


def _load(name: str) -> "VettingProtocol":
    """Return a protocol; the exit status of the error is 2."""
    from ..vetting.protocol_files import find_protocol  # noqa: PLC0415

    try:
        return find_protocol(name, directory=current_directory(), environment=os.environ)
    except GipfelError as error:
        error.exit_status = _NO_PROTOCOL
        raise


def _seconds(text: str) -> float:
    from ..vetting.threshold import quantity  # noqa: PLC0415

    try:
        seconds = quantity(text) if text else 0.0
    except ValueError as error:
        raise click.UsageError(f"--skip-vetted takes a time such as '1 h', not {text[:40]!r}.") from error
    if seconds < 0:
        raise click.UsageError("--skip-vetted can't be negative.")
    return seconds


def _vet(options: "VettingOptions", place: "Location", json_file: str) -> int:
    from ..vetting.report import write_document  # noqa: PLC0415
    from ..vetting.run.session import vet as run  # noqa: PLC0415

    target = Path(json_file).expanduser() if json_file not in {"", "-"} else None
    with Progress() as progress:
        session = run(options, place, os.environ, progress.show)
    if json_file == "-":
        click.echo(session.report.model_dump_json(indent=1))
    else:
        _tell_result(session, table_for(stdout=True).lines(session.report))
    if target is not None:
        write_document(session.report, target)
    return 1 if session.report.exit_status is None else session.report.exit_status


def _tell_result(session: "Session", lines: list[str]) -> None:
    report = session.report
    print_lines(lines)
    # Don't break long words, so that a list of nodes can be copied.
    print_lines(textwrap.wrap(report.outcome, _WIDTH, break_long_words=False, break_on_hyphens=False))
    if report.exclude:
        click.echo(f"--exclude={report.exclude}")
    report_lines(f"note: {note}" for note in report.notes)
    report_line(f"the report is {session.folder / 'vetting.json'}")


def _list() -> int:
    from ..vetting.check import check_types  # noqa: PLC0415
    from ..vetting.protocol_files import find_protocol, known_protocols  # noqa: PLC0415

    click.echo("Protocols:")
    here = current_directory()
    for name, where in known_protocols(os.environ).items():
        click.echo(
            f"  {name:<12} {find_protocol(name, directory=here, environment=os.environ).description or where}"
        )
    click.echo("Types of checks:")
    print_lines(f"  {name}" for name in check_types())
    return 0


def _show(protocol: "VettingProtocol") -> int:
    click.echo(f"{protocol.name}: {protocol.description}".rstrip(": "))
    for check in protocol.checks:
        limit = check.threshold.text("") if check.threshold else ""
        click.echo(
            f"  {check.name}: {check.type}, {check.scope.value}, {check.severity.value} {limit}".rstrip()
        )
        for note in (*check.notes, *([f"{check.problem} {check.fix}"] if check.problem else [])):
            click.echo(f"    {note.strip()}")
    return 0


_EVERY_S = 10.0
_MAX_ROWS = 16


class Progress:
    """Progress of a vetting run: the report, redrawn in place on a terminal, else a line every 10 s."""

    def __init__(self) -> None:
        self._live = LiveTable() if _is_terminal(sys.stderr) else None
        self._said = time.monotonic()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            with contextlib.suppress(OSError, ValueError):
                self._live.draw(())

    def show(self, report: "VettingReport") -> None:
        """Show the current state; errors of a closed terminal are ignored."""
        try:
            self._show(report)
        except (OSError, ValueError):
            self._live = None

    def _show(self, report: "VettingReport") -> None:
        if self._live is not None:
            rows = min(_MAX_ROWS, max(1, shutil.get_terminal_size().lines - 12))
            self._live.draw(table_for(stdout=False).lines(report, max_rows=rows))
        elif time.monotonic() - self._said > _EVERY_S:
            self._said = time.monotonic()
            busy = sum(bool(each.running) for each in report.nodes)
            verdicts = pluralize(len(report.results), "verdict")
            report_line(f"vetting: {verdicts}, {busy} of {len(report.nodes)} nodes are busy")


def table_for(*, stdout: bool) -> "Table":
    """Return a report table for the stream: colours only on a terminal, ASCII if needed."""
    from ..vetting.report_display import WIDTH, Table  # noqa: PLC0415

    stream = sys.stdout if stdout else sys.stderr
    live = _is_terminal(stream)
    width = min(WIDTH, shutil.get_terminal_size().columns - 1) if live else WIDTH
    color = live and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    return Table(color=color, plain=not can_write("✓◐", stream), width=width)


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False
