"""``gipfel doctor``: checks this machine, cluster, account and environment."""

import json
import os
import sys

import click

from .terminal import examples


@click.command(
    epilog=examples(
        "gipfel doctor",
        "gipfel doctor --operator",
        "gipfel doctor --json",
    )
)
@click.option(
    "--operator", is_flag=True, help="Also check a hub's requirements: proxy, users, addresses, state."
)
@click.option("--json", "as_document", is_flag=True, help="One JSON document on stdout, nothing else.")
def doctor(*, operator: bool, as_document: bool) -> int:
    """Check this machine, its cluster, your account and environment, and list what is missing.

    For each missing item it shows the command or setting that fixes it. It changes nothing.

    Exit status: 0 nothing required is missing, 1 something is.
    """
    from ..doctor.examine import (  # noqa: PLC0415
        examine,
        format_lines,
        status_colour,
    )
    from ..doctor.machine import Machine  # noqa: PLC0415
    from ..doctor.probes import probes  # noqa: PLC0415

    machine = Machine.local(os.environ)
    examination = examine(machine, probes(machine, operator=operator))
    if as_document:
        click.echo(json.dumps({"ok": examination.ok, **examination.model_dump(mode="json")}))
        return 0 if examination.ok else 1
    coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    for line, status in format_lines(examination, plain=not _writes_marks()):
        colour = status_colour(status) if status and coloured else ""
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
