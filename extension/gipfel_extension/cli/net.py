"""``gipfel net``: which programs of a run talked to whom, and what listens."""

import json
import os
import time
from typing import TYPE_CHECKING

import click

from .completion import complete_runs
from .terminal import examples, report_line, table_lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ..network.gate import GateRecord
    from ..network.record import NetworkRow

_UNREADABLE = 2


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
    help="End the network of the run's gates within seconds; what runs behind them goes on. An operator "
    "does it as the user: sudo -u USER gipfel net RUN --end REASON.",
)
@click.option("--json", "as_document", is_flag=True, help="One JSON document on stdout, nothing else.")
def net(recording: str, *, outside: bool, reason: str | None, as_document: bool) -> int:
    """List the connections of a run by program and rank: peers, bytes, and ports that it listened on.

    RUN is a run folder or its name, by default that of this job, else your newest. Recorders look once a
    second at the sockets of the job's own processes; connections within a node are left out. One that ends
    within that second may be missed, and only TCP counts bytes. Names are known behind a gate alone, which
    logs what it allowed and refused. Traffic without sockets, such as RDMA and Slingshot's, is not seen.

    Exit status: 0; 1 nothing was recorded; 2 the run can't be read.
    """
    from ..network import read_gate, read_network  # noqa: PLC0415 - --help can do without
    from ..telemetry.sample import SourceError  # noqa: PLC0415
    from .scored_run import resolve_recording  # noqa: PLC0415

    try:
        run = resolve_recording(recording)
        if reason is not None:
            return _end(run, reason)
        record, gate = read_network(run), read_gate(run)
    except SourceError as error:
        report_line(str(error))
        return _UNREADABLE
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
        click.echo(json.dumps(document))
        return 0
    names = {(row.address, row.port): row.name for row in gate.rows if row.allowed}
    for line in (*_gate_lines(gate), *_lines(rows, names)):
        click.echo(line)
    for note in notes:
        report_line(note)
    return 0


def _end(run: "Path", reason: str) -> int:
    """End the network of a run's gates; there must be one."""
    from gipfel_cluster.egress.start import close_gates  # noqa: PLC0415
    from gipfel_cluster.scheduler.command import current_user_name  # noqa: PLC0415

    from ..network import read_gate  # noqa: PLC0415

    if not read_gate(run).used:
        report_line("Nothing in this run is behind a gate. End its job to end its network.")
        return 1
    # sudo names the operator; without it, it is the user.
    by = os.environ.get("SUDO_USER") or current_user_name()
    try:
        close_gates(run, by, reason, time.time_ns())
    except OSError as error:
        report_line(f"The gates can't be closed: {error.strerror}. End the job instead.")
        return _UNREADABLE
    report_line(f"The network of {run.name} ends within seconds.")
    return 0


def _gate_lines(gate: "GateRecord") -> list[str]:
    """Return what a gate refused and allowed; none for a run without one."""
    from .run_lines import size_text  # noqa: PLC0415

    lines = [f"The gate is closed: {gate.closed}.", ""] if gate.closed else []
    if not gate.rows:
        return lines
    titles = ["GATE", "DESTINATION", "", "TIMES", "SENT", "RECEIVED", "WHY", "NODE"]
    rows = [
        [
            "outside" if row.protocol == "outside" else "allowed" if row.allowed else "REFUSED",
            row.place,
            row.protocol,
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
    from .run_lines import size_text  # noqa: PLC0415 - beside --help's modules, this needs none

    def size(count: int | None) -> str:
        return "not counted" if count is None else size_text(count)

    lines = []
    for row in (row for row in rows if row.direction == "listen"):
        where = "all interfaces" if row.all_interfaces else row.address
        lines.append(f"{row.program}{_rank(row)} listens on {where} of {row.node}, port {row.port}")
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


def _rank(row: "NetworkRow") -> str:
    return "" if row.rank is None else f" (rank {row.rank})"
