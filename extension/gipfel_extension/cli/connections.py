"""``gipfel net``, ``communication`` and ``topology``: how ranks are connected, and what they exchange."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gipfel_cluster.messages import GipfelError

from .completion import complete_runs
from .terminal import (
    UNREADABLE,
    examples,
    exit_2_if_unreadable,
    print_json,
    print_lines,
    printable,
    report_line,
    report_lines,
    table_lines,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..communication.report import CommunicationReport, TrafficMatrix
    from ..job.topology import JobTopology
    from ..network.record import GateRecord, NetworkRow

_MOST_ROWS, _MOST_PAIRS, _MOST_COLUMNS = 12, 8, 8
_WIDTH = 80


@click.command(
    epilog=examples(
        "gipfel net",
        "gipfel net alps-48812 --outside",
        "gipfel net alps-48812 --json | jq -r '.rows[] | select(.direction == \"listen\").port'",
    )
)
@click.argument("recording", metavar="[RUN]", default="", shell_complete=complete_runs())
@click.option(
    "--outside",
    is_flag=True,
    help="Only peers outside of the cluster, and ports that are open on all interfaces.",
)
@click.option(
    "--end",
    "reason",
    default=None,
    metavar="REASON",
    help="Cut off the network at the run's gates, within seconds. The programs behind them keep running "
    "without it. An operator does it as the user: sudo -u USER gipfel net RUN --end REASON.",
)
@click.option(
    "--end-job", "ends_job", is_flag=True, help="With --end: if nothing is behind a gate, end the job."
)
@click.option("--json", "as_document", is_flag=True, help="One JSON document on stdout, nothing else.")
@exit_2_if_unreadable
def net(recording: str, *, outside: bool, reason: str | None, ends_job: bool, as_document: bool) -> int:
    """List the connections of a run by program and rank: peers, bytes, and ports that it listened on.

    RUN is a run folder or its name, by default that of this job, else your newest. Recorders read the sockets
    of the job's own processes once a second, so a connection that lasts less than a second may be missed.
    Connections within a node are left out. Bytes are known for TCP only. The host names of peers are known
    only behind a gate, which logs what it allowed and refused. Traffic without sockets, such as RDMA and
    Slingshot's, is not seen.

    Exit status: 0; 1 nothing was recorded; 2 the run can't be read.
    """
    from ..network import read_gate, read_network  # noqa: PLC0415 - --help can do without
    from .scored_run import resolve_recording  # noqa: PLC0415

    run = resolve_recording(recording)
    if reason is not None:
        return _end(run, reason, ends_job=ends_job)
    record, gate = read_network(run), read_gate(run)
    if record is None and not gate.rows and not gate.closed:
        report_line("This run has no record of connections. It is made while a job runs, on Linux.")
        return 1
    rows = [
        row
        for row in (record.rows if record else ())
        if not outside or row.all_interfaces or row.with_outside
    ]
    notes = record.notes if record else ()
    if as_document:
        document = {
            "rows": [dict(vars(row)) for row in rows],
            "gate": [dict(vars(row)) for row in gate.rows],
            "closed": gate.closed,
            "notes": list(notes),
        }
        return print_json(document)
    names = {(row.address, row.port): row.name for row in gate.rows if row.allowed}
    for line in (*_gate_lines(gate), *_lines(rows, names)):
        # Names of programs and destinations come from programs, so they may contain control characters.
        click.echo(printable(line, colours=False))
    report_lines(notes)
    return 0


def _end(run: "Path", reason: str, *, ends_job: bool) -> int:
    """Cut off the network access at a run's gates; if it has none, end its job if that was requested."""
    from ..server.network_end import end_job, end_network, operator_name  # noqa: PLC0415

    by = operator_name()
    if end_network(run, by, reason):
        report_line(f"The network of {run.name} ends within seconds.")
    elif ends_job:
        report_line(f"Job {end_job(run, by, reason, os.environ)} ends, and its network with it.")
    else:
        report_line("Nothing in this run is behind a gate. Add --end-job to end its job.")
        return 1
    return 0


def _gate_lines(gate: "GateRecord") -> list[str]:
    """Return lines on what a gate refused and allowed; none for a run without a gate."""
    from gipfel_cluster.egress.log import OUTSIDE  # noqa: PLC0415

    from .runs import size_text  # noqa: PLC0415

    lines = [f"The gate is closed: {gate.closed}.", ""] if gate.closed else []
    if not gate.rows:
        return lines
    titles = ["GATE", "DESTINATION", "", "TIMES", "SENT", "RECEIVED", "WHY", "NODE"]
    rows = [
        [
            # A row of this protocol is about ranks that run without the gate, not about a destination.
            "no gate" if row.protocol == OUTSIDE else "allowed" if row.allowed else "REFUSED",
            row.place,
            "" if row.protocol == OUTSIDE else row.protocol,
            str(row.count),
            size_text(row.sent) if row.allowed else "",
            size_text(row.received) if row.allowed else "",
            row.reason,
            row.node,
        ]
        for row in gate.rows
    ]
    return [*lines, *table_lines([titles, *rows], (3, 4, 5)), ""]


def _lines(rows: "Sequence[NetworkRow]", names: "Mapping[tuple[str, int], str]") -> list[str]:
    """Return the ports that programs listen on, then the peers with their bytes."""
    from .runs import size_text  # noqa: PLC0415 - so that --help does not load it

    def size(count: int | None) -> str:
        return "not counted" if count is None else size_text(count)

    lines = []
    for row in (row for row in rows if row.direction == "listen"):
        where = "all interfaces" if row.all_interfaces else row.address
        rank = "" if row.rank is None else f" (rank {row.rank})"
        lines.append(f"{row.program}{rank} listens on {where} of {row.node}, port {row.port}")
    peers = [
        [
            row.program,
            "" if row.rank is None else str(row.rank),
            "to" if row.direction == "out" else "from",
            row.address,
            f"{row.port}/{row.protocol}",
            "cluster" if row.inside else f"outside, {names.get((row.address, row.port), 'name unknown')}",
            str(row.connections),
            size(row.sent),
            size(row.received),
            row.node,
        ]
        for row in rows
        if row.direction != "listen"
    ]
    if not peers:
        return lines or ["No connection left a node."]
    titles = ["PROGRAM", "RANK", "", "PEER", "PORT", "WHERE", "CONNECTIONS", "SENT", "RECEIVED", "NODE"]
    return [*lines, *([""] if lines else []), *table_lines([titles, *peers], (6, 7, 8))]


@click.command(
    epilog=examples(
        "gipfel communication 3 --now",
        "gipfel communication ./dumps",
        "gipfel communication ./nccl-inspector-48812 --json",
    )
)
@click.argument("which", metavar="[LAUNCH|DIR]", default="")
@click.option(
    "--now",
    is_flag=True,
    help="First make the running ranks write dumps of the flight recorder, and query NCCL's RAS.",
)
@click.option("--json", "as_document", is_flag=True, help="One JSON document on stdout, nothing else.")
@exit_2_if_unreadable
def communication(which: str, *, now: bool, as_document: bool) -> int:
    """Print who sends how much to whom, and the slowest collectives.

    LAUNCH is a launch, by default the newest; DIR a directory of any job with dumps of PyTorch's flight
    recorder, files of NCCL Inspector (NCCL_INSPECTOR_DUMP_DIR) or answers of NCCL's RAS (*ras*.json). Dumps
    are never unpickled.

    A matrix shows the bytes between ranks, or between nodes above 64 ranks. Each line of the list is for
    calls with the same collective and size, in groups of the same kind. It has the median and 95th percentile
    of their times, their algorithm and bus bandwidth, and a group that is slower than the others.

    Exit status: 0 printed, 2 nothing recorded, or not readable.
    """
    from ..communication import read_communication  # noqa: PLC0415
    from ..training.launches.hang_cause import read_document  # noqa: PLC0415
    from .looks import dumps_folder  # noqa: PLC0415

    folder = dumps_folder(which, now=now)
    found = read_communication(folder, ras=read_document() if now else None)
    if as_document:
        click.echo(found.model_dump_json())
        return 0
    print_lines(printable(line, colours=False) for line in communication_lines(found))
    return 0


def communication_lines(found: "CommunicationReport", width: int = 80) -> Iterator[str]:
    """Yield the lines of the report for a terminal."""
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
    """Yield the matrix if it is small, else the pairs with most bytes."""
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


@click.command(
    epilog=examples(
        "gipfel topology",
        "gipfel topology alps-48812 --select 'pp=6,7 & dp=0'",
        "gipfel topology --here",
        "gipfel topology alps-48812 --json",
    )
)
@click.argument("run", metavar="[RUN]", default="")
@click.option("--here", is_flag=True, help="This machine as it is now; reads no run.")
@click.option(
    "--select",
    metavar="EXPRESSION",
    default="",
    help="Ranks to print, as 'pp=6,7 & dp=0', 'rank=0-7', 'node=nid001', 'switch=s1' or 'nic=cxi0@nid001'.",
)
@click.option(
    "--layout",
    metavar="SIZES",
    default="",
    help="Sizes of the axes, as pp=4,dp=2, where the run has none.",
)
@click.option("--json", "as_document", is_flag=True, help="One JSON document on stdout, nothing else.")
@exit_2_if_unreadable
def topology(run: str, *, here: bool, select: str, layout: str, as_document: bool) -> int:
    """Print where a job runs: switches, nodes, NUMA nodes, GPUs, NICs, links, and the ranks on them.

    RUN is a run folder or its name, by default that of this job, else your newest. Recorders store it once,
    without root, from NVML, sysfs and Slurm. Nodes of equal hardware are printed once.

    The last line tells how scattered the job is: leaf switches used, the fewest possible, and the share of
    neighbouring ranks (pipeline stages, data-parallel replicas) that are on different ones.

    Exit status: 0 printed, 2 the run or the selection is not valid.
    """
    from ..job.topology_lines import topology_lines  # noqa: PLC0415

    if here and (run or select or layout):
        report_line("--here reads this machine and no run. Leave out RUN, --select and --layout.")
        return UNREADABLE
    found = _here() if here else _of_run(run, select, layout)
    if as_document:
        click.echo(found.model_dump_json())
        return 0
    print_lines(topology_lines(found, _WIDTH))
    return 0


def _of_run(run: str, select: str, layout: str) -> "JobTopology":
    from pydantic import ValidationError  # noqa: PLC0415

    from gipfel_cluster.model import first_problem  # noqa: PLC0415

    from ..server.job_tabs import TopologyQuery, topology_of_run  # noqa: PLC0415
    from .scored_run import resolve_recording  # noqa: PLC0415

    path = resolve_recording(run)
    if not (path / "telemetry").is_dir():
        raise GipfelError(f"{path} is not a run folder.", "`gipfel runs` lists yours.")
    try:
        query = TopologyQuery(select=select, layout=layout)
    except ValidationError as error:
        raise GipfelError(f"--select or --layout is not valid: {first_problem(error)[1]}.") from error
    return topology_of_run(path.resolve(), query)


def _here() -> "JobTopology":
    from ..diagnosis.roles import Roles  # noqa: PLC0415
    from ..job.ranks import Job, JobContent  # noqa: PLC0415
    from ..job.topology import job_topology  # noqa: PLC0415
    from ..topology.collect import collect_node, slurm_topology  # noqa: PLC0415
    from ..topology.read import (  # noqa: PLC0415
        Fabric,
        merge,
        parse_fabric,
    )

    node = os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]
    own = collect_node(node, os.environ, time.time_ns())
    problems = []
    try:
        fabric = parse_fabric(slurm_topology(os.environ))
    except ValueError as error:
        fabric = Fabric()
        problems.append(f"Slurm's topology can't be read: {error}.")
    job = Job(
        run=node,
        launch="",
        launches=(),
        world_size=None,
        source="",
        axes={},
        ranks=(),
        missing=(),
        problems=(),
    )
    return job_topology(JobContent(job, Roles()), merge([own], fabric, (), (*own.problems, *problems)))
