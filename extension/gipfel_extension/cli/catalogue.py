"""``gipfel catalogue``: everything that a run records."""

import json

import click

from .terminal import examples


@click.command(
    epilog=examples(
        "gipfel catalogue",
        "gipfel catalogue NVLINK",
        "gipfel catalogue --json | jq -r '.entries[] | select(.kind == \"host\").name'",
        'load("alps-48812", "SM_ACTIVE", "train/loss")    (in a notebook: from gipfel_widgets import load)',
    )
)
@click.argument("text", default="")
@click.option("--json", "as_document", is_flag=True, help="One JSON document on stdout, nothing else.")
@click.option("--markdown", "as_page", is_flag=True, help="The page of the documentation.")
def catalogue(text: str, *, as_document: bool, as_page: bool) -> int:
    """List everything that a run records: name, unit, source, rate, meaning, DCGM's field and GPM's metric.

    TEXT selects entries whose name or meaning contains it. Exit status: 0; 1 nothing contains TEXT.
    """
    from ..telemetry.catalogue import catalogue as entries  # noqa: PLC0415 - numpy, which --help can do without
    from ..telemetry.catalogue import markdown  # noqa: PLC0415

    if as_page:
        click.echo(markdown(), nl=False)
        return 0
    words = text.lower()
    found = [each for each in entries() if words in each.name.lower() or words in each.meaning.lower()]
    if as_document:
        click.echo(json.dumps({"entries": [each.to_json() for each in found]}))
        return 0 if found else 1
    for each in found:
        unit = f" [{each.unit}]" if each.unit else ""
        click.echo(f"{each.name}{unit}  {each.kind}, {each.recorded}, {each.rate}, {each.source}")
        click.echo(f"  {each.meaning}")
    return 0 if found else 1
