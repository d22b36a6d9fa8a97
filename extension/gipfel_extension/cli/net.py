"""``gipfel net``: which programs of a run talked to whom, and what listens."""

import json
from typing import TYPE_CHECKING

import click

from .completion import complete_runs
from .terminal import examples, report_line, table_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

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
@click.option("--json", "as_document", is_flag=True, help="One JSON document on stdout, nothing else.")
def net(recording: str, *, outside: bool, as_document: bool) -> int:
    """List the connections of a run by program and rank: peers, bytes, and ports that it listened on.

    RUN is a run folder or its name, by default that of this job, else your newest. Recorders look once a
    second at the sockets of the job's own processes; connections within a node are left out. One that ends
    within that second may be missed, and only TCP counts bytes. The names of peers are unknown, since no
    resolver is watched. Traffic that does not use sockets, such as RDMA and Slingshot's, is not seen.

    Exit status: 0; 1 nothing was recorded; 2 the run can't be read.
    """
    from ..network import read_network  # noqa: PLC0415 - --help can do without
    from ..telemetry.sample import SourceError  # noqa: PLC0415
    from .scored_run import resolve_recording  # noqa: PLC0415

    try:
        record = read_network(resolve_recording(recording))
    except SourceError as error:
        report_line(str(error))
        return _UNREADABLE
    if record is None:
        report_line("This run has no record of connections. It is made while a job runs, on Linux.")
        return 1
    rows = [row for row in record.rows if not outside or row.all_interfaces or row.with_outside]
    if as_document:
        click.echo(json.dumps({**record.to_json(), "rows": [dict(vars(row)) for row in rows]}))
        return 0
    for line in _lines(rows):
        click.echo(line)
    for note in record.notes:
        report_line(note)
    return 0


def _lines(rows: "Sequence[NetworkRow]") -> list[str]:
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
            "cluster" if row.inside else "outside, name unknown",
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
