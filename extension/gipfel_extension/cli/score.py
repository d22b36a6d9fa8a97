"""``gipfel score``: how far the GPUs of a run were loaded, and where the rest went."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .terminal import examples, tell

if TYPE_CHECKING:
    from ..telemetry.imports import Recording

_UNREADABLE = 2


@click.command(
    epilog=examples(
        "gipfel score alps-48812",
        "gipfel score ~/.gipfel/runs/alps-48812 --json",
        "gipfel score trace.parquet --weight memory 0.8",
        "gipfel score gssr_report/daint_123456 --gpu GH200",
    )
)
@click.argument("recording", metavar="RUN|FILE")
@click.option(
    "--weight",
    "weights",
    type=(click.Choice(["compute", "memory", "interconnect"]), click.FloatRange(min=0.0)),
    multiple=True,
    metavar="RESOURCE W",
    help="What a resource's level is multiplied by before the highest one binds.",
)
@click.option("--gpu", default="", metavar="MODEL", help="The model of GPUs whose recording doesn't name it.")
@click.option("--json", "as_document", is_flag=True, help="One JSON document on stdout, nothing else.")
def score(recording: str, *, weights: tuple[tuple[str, float], ...], gpu: str, as_document: bool) -> int:
    """Score how far the GPUs of a run were loaded, and say what took the rest.

    RUN is a run folder or its name; FILE a segment (.arrows), Parquet, JSON of gssr, CSV of gssr-record or
    text of DCGM exporter.

    Exit status: 0 it could be read, 2 it couldn't.
    """
    from ..saturation import Settings, Weights, advise, document_of, score_table  # noqa: PLC0415
    from ..saturation.lines import text_of  # noqa: PLC0415
    from ..telemetry.sample import SourceError  # noqa: PLC0415

    try:
        found = _open(recording, gpu)
    except SourceError as error:
        tell(str(error))
        return _UNREADABLE
    settings = Settings(Weights(**dict(weights)))
    job = score_table(found.table, settings, ranks=found.ranks)
    advice = advise(found.table, job, settings)
    if as_document:
        document = document_of(job, advice)
        click.echo(json.dumps({**document, "notes": [*found.notes, *document["notes"]]}))
        return 0
    environment = _environment(_path(recording))
    for line in text_of(job, advice, label=found.label, environment=environment, notes=found.notes):
        click.echo(line)
    return 0


def _open(recording: str, gpu: str) -> "Recording":
    from dataclasses import replace  # noqa: PLC0415

    from ..telemetry.imports import open_recording  # noqa: PLC0415

    found = open_recording(_path(recording))
    if not gpu:
        return found
    devices = tuple(replace(d, name=d.name or gpu) if d.kind == "gpu" else d for d in found.table.devices)
    return replace(found, table=replace(found.table, devices=devices))


def _path(recording: str) -> Path:
    """A path as it is; a bare name that is none here is that of a run."""
    from gipfel_cluster.runs import runs_root  # noqa: PLC0415

    path = Path(recording).expanduser()
    run = runs_root(dict(os.environ)) / recording
    return run if path.name == recording and not path.exists() and run.is_dir() else path


def _environment(path: Path) -> str:
    """The name of the environment that a run was in; empty where nobody wrote it down."""
    try:
        record = json.loads((path / "record.json").read_text())
        return str(record["edf"]["name"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
