"""Output of `gipfel launch`: lists of launches, one launch, logs with the rank at the start of each line."""

import os
from functools import partial
from pathlib import Path
from typing import Any

import click

from gipfel_cluster.model import GipfelError, pluralize
from gipfel_cluster.workloads.logs import Cursor

from ..training.launch import Launch
from ..training.launch_summary import TRACE_HELP, TRACE_VIEWER, rank_file, ranks_with
from ..training.launches.logs import launch_logs
from ..training.record import LaunchState, find_folder, known_folders
from .terminal import (
    Status,
    follow_logs,
    print_json,
    print_lines,
    print_logs,
    printable,
    report_line,
    shorten,
    stop_and_wait,
)

_MAX_FILES = 16
# Bytes read at a time when a whole log is printed: of all ranks together, and the least of each rank.
_PAGE_BYTES, _MIN_BYTES = 16 << 20, 1 << 20


def row(folder: Path, state: LaunchState, *, all_runs: bool) -> str:
    """Return a launch's line in the list: title, last restart's reason, and the reason of its state.

    The title is the command in short; the name that the user gave precedes it, unless the title contains it.
    With `all_runs`, the list has launches of other jobs' runs too, and the line begins with the run.
    """
    which = f"{folder.parents[1].name}/{folder.name}" if all_runs else folder.name
    size = f"{pluralize(len(state.nodes), 'node')}, {pluralize(state.ranks, 'rank')}"
    named = "" if state.name in state.title or state.name == "launch" else f"{state.name}: "
    reasons = (*state.restarted[-1:], state.reason) if state.restarts else (state.reason,)
    why = "".join(f"; {shorten(each)}" for each in reasons if each)
    return f"{which:>4}  {state.outcome or state.phase:10} {size}  {named}{state.title}{why}"


def follow(launch: Launch, ranks: tuple[int, ...] = (), cursor: Cursor | None = None) -> int:
    """Print logs until the launch ends, and return its exit status; Ctrl-C leaves it running."""

    def read_status() -> Status:
        state = launch.state
        return Status(_headline(state), state.ended, state.exit_status)

    number = launch.folder.name
    look, end = f"`gipfel launch logs {number} -f`", f"`gipfel launch stop {number}`"
    return follow_logs(
        read_status,
        lambda cursor: launch.logs(cursor, ranks=ranks),
        cursor,
        on_interrupt=f"launch {number} keeps running; {look} follows it, {end} stops it",
    )


def show_list(*, all_runs: bool, as_json: bool) -> int:
    """Print the table of launches."""
    folders = known_folders(os.environ, all_runs=all_runs)
    states = []
    for folder in folders:
        try:
            states.append((folder, Launch(folder).settle()))
        except GipfelError as error:
            report_line(f"{folder.name} can't be read: {error}")
    if as_json:
        return print_json([{"folder": str(f), **state.model_dump(mode="json")} for f, state in states])
    for folder, state in states:
        click.echo(row(folder, state, all_runs=all_runs))
    if not folders:
        report_line("There are no launches.")
    return 0


def show_one(which: str, *, as_json: bool) -> int:
    """Print one launch."""
    launch = Launch.open(find_folder(which, os.environ))
    state = launch.settle()
    progress = launch.progress
    traces, dumps = ranks_with(launch.folder, "trace"), ranks_with(launch.folder, "dump")
    if as_json:
        content: dict[str, Any] = {
            "folder": str(launch.folder),
            **state.model_dump(mode="json"),
            "progress": progress.model_dump(),
            "processes": {rank: note.model_dump() for rank, note in launch.ranks.items()},
            "traces": {rank: str(rank_file(launch.folder, "trace", rank)) for rank in traces},
            "dumps": {rank: str(rank_file(launch.folder, "dump", rank)) for rank in dumps},
            "viewer": TRACE_VIEWER,
        }
        return print_json(content)
    click.echo(launch.started_command or launch.command, nl=False)
    click.echo(_headline(state))
    for rank, note in launch.ranks.items():
        gpu = f" GPU {note.gpu}" if note.gpu else ""
        click.echo(f"  rank {rank} on {note.node}{gpu}, pid {note.pid}, restart {note.restart}")
    print_lines(f"  {reason}" for reason in state.restarted)
    if progress.values:
        click.echo("  " + ", ".join(f"{name} {value:g}" for name, value in progress.values.items()))
    if state.failure:
        click.echo(state.failure.traceback.rstrip() or str(state.failure))
    print_lines(
        f"  profiler trace of rank {rank}: {rank_file(launch.folder, 'trace', rank)}"
        for rank in traces[:_MAX_FILES]
    )
    if traces:
        more = f" of {len(traces)} ranks" if len(traces) > _MAX_FILES else ""
        click.echo(f"  traces{more} open in {TRACE_VIEWER}: {TRACE_HELP}")
    if dumps:
        place = rank_file(launch.folder, "dump", dumps[0]).parent
        say = f"`gipfel flight-recorder {launch.folder.name}` reads them"
        click.echo(f"  flight recorder's dumps of {pluralize(len(dumps), 'rank')}: {place}; {say}")
    if state.run:
        click.echo(f"  run {state.run}; `gipfel score {state.run}` shows its score")
    print_lines(f"  {line}" for line in _since(launch.folder, state))
    click.echo(f"  {launch.folder}")
    return 0


def _since(folder: Path, state: LaunchState) -> tuple[str, ...]:
    """Return one sentence for each advice given for the previous launch, with its effect."""
    if not state.ended:
        return ()
    from ..training.launches.score import launch_advice_effect  # noqa: PLC0415

    found = launch_advice_effect(folder, os.environ)
    return () if found is None else tuple(printable(line, colours=False) for line in found.lines)


def show_logs(which: str, *, ranks: tuple[int, ...], follow_log: bool, last: int | None = None) -> int:
    """Print the logs of a launch, or their last lines only."""
    launch = Launch.open(find_folder(which, os.environ))
    most = max(_MIN_BYTES, _PAGE_BYTES // max(1, len(ranks) or launch.state.ranks))
    following = partial(follow, launch, ranks) if follow_log else None
    return print_logs(launch_logs(launch.folder), ranks, last, most, following)


def stop_one(which: str) -> int:
    """Stop a launch, and wait until all its processes have ended."""
    launch = Launch.open(find_folder(which, os.environ))
    return stop_and_wait(
        f"launch {launch.folder.name}",
        None if launch.settle().ended else launch.stop,
        lambda: launch.wait(180) is not None,
        note="ranks that ignore the signal are killed, which can take a minute",
    )


def _headline(state: Any) -> str:
    words = f"launch {state.number} {state.outcome or state.phase}"
    if state.nodes and not state.ended:
        more = " …" if len(state.nodes) > 4 else ""
        words += f": {pluralize(state.ranks, 'rank')} on {', '.join(state.nodes[:4])}{more}"
    if state.restarts:
        words += f", {state.restarts} restart{'s' if state.restarts > 1 else ''}"
        words += f" ({state.restarted[-1]})" if state.restarted else ""
    return words + (f": {state.reason}" if state.reason else "")
