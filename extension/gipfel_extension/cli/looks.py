"""``gipfel stacks``, ``trace``, ``memory`` and ``flight-recorder``: look into the ranks of a launch."""

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gipfel_cluster.messages import GipfelError

from .terminal import (
    INTERRUPTED,
    examples,
    exit_2_if_unreadable,
    print_lines,
    printable,
    report_line,
    report_lines,
)

if TYPE_CHECKING:
    from ..training.launches.requests import Look, LookRequest, RankAnswer

#: Longest wait for stacks, in seconds; for a flame graph, its duration is added.
_STACKS_S = 60.0
#: Longest wait for a trace, in seconds; a little longer than ranks wait for its steps.
_STEPS_S = 630.0
_MOST_FRAMES = 40
#: Seconds to wait for dumps; ranks check for requests once a second.
_DUMP_S = 3.0
_MAX_FILES = 16
#: Exit status of `gipfel flight-recorder` for dumps that can't be read.
#: Files of Gipfel and Python that run the user's script; their frames are not shown.
_STARTERS = re.compile(r"/launches/[0-9]+/(run|program|step_hooks)\.py$|^<frozen runpy>$|/runpy\.py$")
_SPEEDSCOPE = "https://www.speedscope.app"
_MEMORY_VIEWER = "https://pytorch.org/memory_viz"

_which = click.argument("which", metavar="[LAUNCH]", default="")
_ranks = click.option(
    "--ranks",
    "ranks",
    metavar="RANKS",
    default="",
    help="0,3,8-11, all, or a selection such as 'pp=1 & dp=0' or 'node=nid001'. Default: the ranks that the "
    "last diagnosis accuses, a peer of their role, and rank 0.",
)
_yes = click.option("--yes", "-y", is_flag=True, help="Don't ask before it starts.")
_last = click.option("--last", is_flag=True, help="Ask no rank; show what the last one wrote.")
_json = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
_steps = click.option(
    "--steps",
    default=3,
    show_default=True,
    type=click.IntRange(1, 1000),
    metavar="N",
    help="Optimizer steps.",
)


@click.command(
    epilog=examples(
        "gipfel stacks                          of the newest launch: suspected ranks, a peer, rank 0",
        "gipfel stacks 3 --ranks all            where is every rank now?",
        "gipfel stacks 3 --ranks 'pp=1 & dp=0'",
        "gipfel stacks 3 --flame --seconds 30   where does the time go? an SVG, and files for speedscope",
        "gipfel stacks 3 --native               with the frames of C++, where py-spy may attach",
        "gipfel stacks 3 --last                 what the last one wrote",
    )
)
@_which
@_ranks
@click.option("--flame", is_flag=True, help="Sample the stacks for some seconds, and draw a flame graph.")
@click.option(
    "--seconds", default=10, show_default=True, type=click.IntRange(1, 600), metavar="S", help="With --flame."
)
@click.option("--native", is_flag=True, help="Frames of C and C++ too. Needs py-spy.")
@click.option(
    "--method",
    type=click.Choice(["auto", "py-spy", "signal"]),
    default="auto",
    show_default=True,
    help="auto: py-spy where it is installed beside the ranks' Python and may attach, else a signal.",
)
@_yes
@_last
@_json
def stacks(*, which: str, ranks: str, flame: bool, seconds: int, **options: Any) -> int:
    """Print where ranks of a running launch are: the Python stack of each, equal ones together.

    LAUNCH is an ID of `gipfel ps`, by default the newest. Nothing has to be prepared. A rank is asked by the
    process that started it, in the same container: with py-spy, else by a signal that Python's faulthandler
    handles in C, which needs no permission and also answers while the program holds Python's lock. If py-spy
    may not attach, the answer names the permission that is missing.

    Files stay in deeper/ of the launch's directory, with the stacks of all threads. Ctrl-C stops waiting, and
    what ranks write later is shown by --last.

    Exit status: 0 every rank answered, 1 one did not, 2 the command can't be carried out.
    """
    details = {"seconds": seconds, "method": options.pop("method"), "native": options.pop("native")}
    if details["native"]:
        details["method"] = "py-spy"
    return _run(which, ranks, "flame" if flame else "stacks", details, **options)


@click.command(
    epilog=examples(
        "gipfel trace                           of the newest launch: suspected ranks, a peer, rank 0",
        "gipfel trace 3 --ranks 0,7 --steps 5",
        "gipfel trace 3 --last                  the files of the last one",
    )
)
@_which
@_ranks
@_steps
@_yes
@_last
@_json
def trace(*, which: str, ranks: str, steps: int, **options: Any) -> int:
    """Trace a few steps of ranks of a running launch with torch's profiler.

    Every launch is armed for it. The trace begins after the next optimizer step of each rank and ends N steps
    later; the training does not stop. The files open in https://ui.perfetto.dev, which keeps them in the
    browser, and can be compared rank by rank.

    It needs the launch's step hooks, which --no-step-hooks turns off, and a program that calls
    optimizer.step() outside of torch.compile.

    Exit status: 0 every rank answered, 1 one did not, 2 the command can't be carried out.
    """
    return _run(which, ranks, "trace", {"steps": steps}, **options)


@click.command(
    epilog=examples("gipfel memory 3 --ranks 0", "gipfel memory 3 --steps 1 --yes", "gipfel memory 3 --last")
)
@_which
@_ranks
@_steps
@_yes
@_last
@_json
def memory(*, which: str, ranks: str, steps: int, **options: Any) -> int:
    """Write what occupies the GPU memory of ranks of a running launch, with the stacks of N steps.

    The snapshot holds all blocks of PyTorch's allocator, and the stack of each allocation and release during
    the steps. Drop the file on https://pytorch.org/memory_viz, which keeps it in the browser. Allocations
    from before have no stack. Ranks without a GPU have none.

    Exit status: 0 every rank answered, 1 one did not, 2 the command can't be carried out.
    """
    return _run(which, ranks, "memory", {"steps": steps}, **options)


@click.command(
    "flight-recorder",
    epilog=examples("gipfel flight-recorder 3 --now", "gipfel flight-recorder ./dumps --json"),
)
@click.argument("which", metavar="[ID|DIR]", default="")
@click.option("--now", is_flag=True, help="Make the running ranks write their dumps first.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
@exit_2_if_unreadable
def flight_recorder(*, which: str, now: bool, as_json: bool) -> int:
    """Find the ranks that cause a hang, from dumps of PyTorch's flight recorder.

    ID is a launch, by default the newest; DIR a directory with dumps of any job, pickle or JSON, whose names
    end in the rank. The first line names the cause, its ranks, and how many ranks wait for them.

    "Host side" means that a rank has not made a call in which others wait; "device side" means that it has
    made the call, but its GPU has not finished it. Dumps are never unpickled.

    Exit status: 0 a cause is found, or no rank waits; 1 the dumps don't show one; 2 they can't be read.
    """
    from ..training.flight_recorder import report_of  # noqa: PLC0415

    report = report_of(dumps_folder(which, now=now))
    if not as_json:
        print_lines(printable(line, colours=False) for line in report.lines)
        return report.exit_status
    click.echo(json.dumps(report.document))
    if report.reason:
        report_line(f"Cannot tell, because {report.reason}")
    report_lines(f"can't be read: {line}" for line in report.unreadable[:_MAX_FILES])
    return report.exit_status


def dumps_folder(which: str, *, now: bool) -> Path:
    """Return the directory, or the folder of the launch, that a command named; with new dumps on request."""
    from ..training.record import find_folder  # noqa: PLC0415

    is_directory = bool(which) and Path(which).is_dir()
    folder = Path(which) if is_directory else find_folder(which, os.environ)
    if now:
        request_dumps(folder)
    return folder


def request_dumps(folder: Path) -> None:
    """Make the running ranks of a launch write their dumps, and wait for them.

    Raises
    ------
    GipfelError
        The directory is not that of a launch.
    """
    from ..training.record import STATE  # noqa: PLC0415

    if not (folder / STATE).exists():
        raise GipfelError(f"{folder} is not a launch.", "--now is for launches: name one by its ID.")
    (folder / "dump").touch(mode=0o600)
    time.sleep(_DUMP_S)


@exit_2_if_unreadable
def _run(
    which: str, ranks: str, what: Any, details: dict[str, Any], *, yes: bool, last: bool, as_json: bool
) -> int:
    from ..training.launch import Launch  # noqa: PLC0415
    from ..training.record import find_folder  # noqa: PLC0415

    folder = Launch.open(find_folder(which, os.environ)).folder
    if last:
        return _show(_last_look(folder, what), as_json=as_json)
    request = _request(folder, ranks, what, details)
    if not _agreed(request, folder, yes=yes):
        return 1
    return _ask(folder, request, as_json=as_json)


def _last_look(folder: Path, what: str) -> "Look":
    from ..training.launches.requests import earlier_looks  # noqa: PLC0415

    found = next((each for each in earlier_looks(folder) if each.request.what == what), None)
    if found is None:
        raise GipfelError(f"Launch {folder.name} has none yet.", "Leave --last out.")
    return found


def _request(folder: Path, ranks: str, what: Any, details: dict[str, Any]) -> "LookRequest":
    from ..job.looks import LaunchRoles, default_ranks, select_ranks  # noqa: PLC0415 - numpy
    from ..training.launches.requests import LookRequest, check_running  # noqa: PLC0415

    check_running(folder, ())
    launch = LaunchRoles.of(folder)
    chosen = select_ranks(ranks, launch) if ranks.strip() else default_ranks(launch)
    request = LookRequest(what=what, ranks=chosen.ranks, **details)
    report_line(f"launch {folder.name}, {_named(request.ranks)} ({chosen.why}).")
    return request


def _agreed(request: "LookRequest", folder: Path, *, yes: bool) -> bool:
    """Print the cost; on a terminal, ask whether to proceed."""
    from ..job.looks import cost_of  # noqa: PLC0415

    report_line(f"cost: {cost_of(request)} The files are kept in {folder / 'deeper'}.")
    return yes or not sys.stdin.isatty() or click.confirm("Start?", default=True, err=True)


def _ask(folder: Path, request: "LookRequest", *, as_json: bool) -> int:
    from ..training.launch import Launch  # noqa: PLC0415
    from ..training.launches.requests import request_look  # noqa: PLC0415

    limit_s = _STEPS_S
    if request.what in {"stacks", "flame"}:
        limit_s = _STACKS_S + (request.seconds if request.what == "flame" else 0)
    look = request_look(folder, request)
    count = 0

    def on_answer(answer: "RankAnswer") -> None:
        nonlocal count
        count += 1
        done = f"({count} of {len(look.ranks)})"
        if request.what != "stacks" or answer.error:
            report_line(f"rank {answer.rank}: {answer.error or _size(answer.bytes)} {done}")

    try:
        look.wait(limit_s, on_answer, lambda: Launch(folder).state.ended)
    except KeyboardInterrupt:
        report_line(
            f"{_named(look.missing)} may still write into {folder / 'deeper'}; "
            f"`gipfel {_command(request.what)} {folder.name} --last` shows what came."
        )
        return INTERRUPTED
    return _show(look, as_json=as_json)


def _command(what: str) -> str:
    return "stacks --flame" if what == "flame" else what


def _show(look: "Look", *, as_json: bool) -> int:
    from ..job.looks import draw_flame_graph  # noqa: PLC0415

    svg = draw_flame_graph(look) if look.request.what == "flame" else ""
    status = 0 if not look.missing and not any(each.error for each in look.answers.values()) else 1
    if as_json:
        answers = [look.answers[rank].model_dump() for rank in sorted(look.answers)]
        document = {"id": look.identifier, "directory": str(look.directory), "answers": answers}
        click.echo(json.dumps({**document, "svg": svg, "missing": list(look.missing)}))
        return status
    if look.request.what == "stacks":
        print_lines(printable(line, colours=False) for line in stack_lines(look))
    for rank, answer in sorted(look.answers.items()):
        if answer.error:
            click.echo(printable(f"rank {rank}: {answer.error}", colours=False))
        elif look.request.what != "stacks":
            click.echo(f"rank {rank}: {answer.path} ({_size(answer.bytes)})")
    for note in dict.fromkeys(each.note for each in look.answers.values() if each.note):
        report_line(f"{note}.")
    if look.missing:
        report_line(
            f"{_named(look.missing)} did not answer. --last shows it if it comes later; `gipfel logs` shows "
            "what they print."
        )
    _tell_viewer(look, svg)
    return status


def _tell_viewer(look: "Look", svg: str) -> None:
    if svg:
        click.echo(f"flame graph: {svg}")
    viewer = {"flame": _SPEEDSCOPE, "trace": "https://ui.perfetto.dev", "memory": _MEMORY_VIEWER}
    if look.request.what in viewer and any(each.path for each in look.answers.values()):
        report_line(f"open the files in {viewer[look.request.what]}: they stay in the browser.")
    if look.request.what == "stacks":
        report_line(f"stacks of all threads: {look.directory}")


def stack_lines(look: "Look") -> list[str]:
    """Return the lines of the main threads' stacks; ranks with equal stacks are shown together."""
    from ..training.launches.requests import main_frames  # noqa: PLC0415

    groups: dict[tuple[tuple[str, str, str], ...], list[int]] = {}
    for rank in sorted(look.answers):
        text = look.text(rank)
        if text:
            groups.setdefault(main_frames(text), []).append(rank)
    lines = []
    for frames, ranks in sorted(groups.items(), key=lambda each: (len(each[1]), each[1])):
        methods = sorted({look.answers[rank].method for rank in ranks})
        lines.append(f"{_named(tuple(ranks))} ({', '.join(methods)}), {look.place(ranks[0]) or 'no frame'}:")
        own = [each for each in frames if not _STARTERS.search(each[1])]
        lines += [f"    {function} ({file}:{line})" for function, file, line in own[:_MOST_FRAMES]]
        lines.append("")
    return lines


def _named(ranks: "tuple[int, ...]") -> str:
    from ..diagnosis.verdict import named  # noqa: PLC0415

    return named(ranks)


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"
