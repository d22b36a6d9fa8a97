"""``gipfel doctor``: what this machine, cluster, account and environment can do, and what is missing."""

import json
import os
import sys

import click

from .live_table import examples


@click.command(
    epilog=examples(
        "gipfel doctor",
        "gipfel doctor --operator",
        "gipfel doctor --json",
    )
)
@click.option("--operator", is_flag=True, help="Also what a hub needs: proxy, users, addresses, state.")
@click.option("--json", "as_document", is_flag=True, help="One JSON document on stdout, nothing else.")
def doctor(*, operator: bool, as_document: bool) -> int:
    """Examine this machine, its cluster, your account and environment, and say what is missing.

    Behind each thing that is missing is the command or line that brings it. It changes nothing.

    Exit status: 0 all that is needed is here, 1 not.
    """
    from ..doctor.examine import (  # noqa: PLC0415
        colour_of,
        examine,
        lines_of,
    )
    from ..doctor.machine import Machine  # noqa: PLC0415
    from ..doctor.probes import probes  # noqa: PLC0415

    machine = Machine.here(os.environ)
    examination = examine(machine, probes(machine, operator=operator))
    if as_document:
        click.echo(json.dumps({"ok": examination.ok, **examination.model_dump(mode="json")}))
        return 0 if examination.ok else 1
    coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    for line, status in lines_of(examination, plain=not _writes_marks()):
        colour = colour_of(status) if status and coloured else ""
        click.echo(f"  {click.style(line[2], fg=colour)}{line[3:]}" if colour else line)
    return 0 if examination.ok else 1


def _writes_marks() -> bool:
    try:
        "✓✗–→".encode(  # noqa: RUF001 - a dash
            sys.stdout.encoding or "ascii"
        )
    except (UnicodeEncodeError, LookupError):
        return False
    return True
