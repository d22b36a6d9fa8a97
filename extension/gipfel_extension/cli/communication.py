"""``gipfel communication``: bytes between the ranks of a job, and its slowest collectives."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .terminal import examples, report_line

if TYPE_CHECKING:
    from ..communication.report import CommunicationReport, TrafficMatrix

_UNREADABLE = 2
_MOST_ROWS, _MOST_PAIRS, _MOST_COLUMNS = 12, 8, 8


@click.command(
    epilog=examples(
        "gipfel communication 3 --now",
        "gipfel communication ./dumps",
        "gipfel communication ./nccl-inspector-48812 --json",
    )
)
@click.argument("which", metavar="[LAUNCH|DIR]", default="")
@click.option(
    "--now", is_flag=True, help="Make the running ranks write their dumps, and ask NCCL's RAS, first."
)
@click.option("--json", "as_document", is_flag=True, help="One JSON document on stdout, nothing else.")
def communication(which: str, *, now: bool, as_document: bool) -> int:
    """Print who sends how much to whom, and the slowest collectives.

    LAUNCH is a launch, by default the newest; DIR a directory of any job with dumps of PyTorch's flight
    recorder, files of NCCL Inspector (NCCL_INSPECTOR_DUMP_DIR) or answers of NCCL's RAS (*ras*.json). Dumps
    are never unpickled.

    A matrix shows the bytes between ranks, or between nodes above 64 ranks. The list has for equal calls of
    equal groups the median and 95th percentile of their times, the bandwidth of the algorithm and of the bus,
    and the group that is slower than its peers.

    Exit status: 0 printed, 2 nothing recorded, or not readable.
    """
    from gipfel_cluster.model import GipfelError  # noqa: PLC0415 - pydantic, which --help can do without

    from ..communication import read_communication  # noqa: PLC0415
    from ..training.launches.nccl_ras import read_document  # noqa: PLC0415
    from ..training.record.state import find_folder  # noqa: PLC0415
    from .launch_view import request_dumps  # noqa: PLC0415
    from .log_view import printable  # noqa: PLC0415

    try:
        is_directory = bool(which) and Path(which).is_dir()
        folder = Path(which) if is_directory else find_folder(which, os.environ)
        if now:
            request_dumps(folder)
        found = read_communication(folder, ras=read_document() if now else None)
    except GipfelError as error:
        report_line(str(error))
        return _UNREADABLE
    if as_document:
        click.echo(found.model_dump_json())
        return 0
    for line in communication_lines(found):
        click.echo(printable(line, colours=False))
    return 0


def communication_lines(found: "CommunicationReport", width: int = 80) -> Iterator[str]:
    """Yield the report for a terminal."""
    from ..communication.report import size_text, time_text  # noqa: PLC0415 - numpy, which --help can do without

    yield from found.lines
    yield f"From {' and '.join(found.sources)}."
    yield ""
    for each in found.groups[:_MOST_ROWS]:
        name = each.ranks or f"{each.groups} of {each.size} ranks"
        calls = ", ".join(f"{kind} x {count}" for kind, count in each.calls.items())
        yield f"  {each.label[:24]:<24} {name[:18]:<18} {size_text(each.sent):>9}  {calls}"[:width]
    yield ""
    yield f"  {'slowest calls':<40} {'median':>8} {'95 %':>8} {'algbw':>9} {'busbw':>9}"
    for row in found.slowest[:_MOST_ROWS]:
        name = f"{row.kind} {size_text(row.size)} in {row.label} x {row.calls}"
        times = ["-" if each is None else time_text(each) for each in (row.median_us, row.p95_us)]
        rates = ["-" if each is None else size_text(each) for each in (row.algbw, row.busbw)]
        yield f"  {name[:40]:<40} {times[0]:>8} {times[1]:>8} {rates[0]:>9} {rates[1]:>9}"
        if row.factor:
            yield f"    {row.slowest}: {row.factor:.1f} times as long as the others"[:width]
    yield ""
    yield from _matrix_lines(found.matrix)
    yield ""
    yield from found.notes
    yield from (f"can't be read: {each}" for each in found.problems)


def _matrix_lines(matrix: "TrafficMatrix") -> Iterator[str]:
    """Yield the matrix where it is small, else the pairs with most bytes."""
    from ..communication.report import size_text  # noqa: PLC0415

    if len(matrix.labels) <= _MOST_COLUMNS:
        short = [each.removeprefix("rank ")[-7:] for each in matrix.labels]
        yield f"  {'from / to':<9}" + "".join(f"{each:>8}" for each in short)
        for name, row in zip(short, matrix.sent, strict=True):
            yield f"  {name:<9}" + "".join(f"{size_text(each) if each else '-':>8}" for each in row)
        return
    pairs = [
        (each, first, second)
        for first, row in enumerate(matrix.sent)
        for second, each in enumerate(row)
        if each and first != second
    ]
    yield f"  most bytes between two {matrix.by}s"
    for each, first, second in sorted(pairs, reverse=True)[:_MOST_PAIRS]:
        yield f"  {matrix.labels[first]} to {matrix.labels[second]}: {size_text(each)}"
