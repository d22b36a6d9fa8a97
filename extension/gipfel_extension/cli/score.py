"""``gipfel score``: how far the GPUs of a run were loaded, and where the rest went."""

import json
import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .live_table import examples, tell

if TYPE_CHECKING:
    from .scored_run import ScoredRun

_UNREADABLE = 2
_RESOURCES = ("compute", "memory", "interconnect")


def weights_of(
    context: click.Context, parameter: click.Parameter, given: tuple[str, ...]
) -> dict[str, float]:
    """The weights of some ``RESOURCE=W``; for click."""
    weights = {}
    for each in given:
        resource, _, number = each.partition("=")
        try:
            weight = float(number)
        except ValueError:
            weight = math.nan
        if resource not in _RESOURCES or not 0 <= weight < math.inf:
            raise click.BadParameter(
                f"{each!r} is not RESOURCE=W with {', '.join(_RESOURCES)} and W from 0 on.",
                context,
                parameter,
            )
        weights[resource] = weight
    return weights


@click.command(
    epilog=examples(
        "gipfel score",
        "gipfel score alps-48812",
        "gipfel score ~/.gipfel/runs/alps-48812 --json",
        "gipfel score trace.parquet --weight memory=0.8",
        "gipfel score gssr_report/daint_123456 --gpu GH200",
    )
)
@click.argument("recording", metavar="[RUN|FILE]", default="")
@click.option(
    "--weight",
    "weights",
    callback=weights_of,
    multiple=True,
    metavar="RESOURCE=W",
    help="What a resource's level is multiplied by before the highest one binds.",
)
@click.option("--gpu", default="", metavar="MODEL", help="The model of GPUs whose recording doesn't name it.")
@click.option("--json", "as_document", is_flag=True, help="One JSON document on stdout, nothing else.")
@click.option(
    "--save",
    is_flag=True,
    help="Write the document into the run folder as score.json; where the run has ended, its samples become "
    "Parquet.",
)
def score(recording: str, *, weights: dict[str, float], gpu: str, as_document: bool, save: bool) -> int:
    """Score how far the GPUs of a run were loaded, and say what took the rest.

    RUN is a run folder or its name, by default that of this job, else your newest; FILE a segment (.arrows),
    Parquet, JSON of gssr, CSV of gssr-record, text of DCGM exporter, or
    prometheus:URL?nodes=N1,N2&start=TIME&end=TIME for what a site has stored.

    Where an earlier run of the same script was scored, it says what became of that run's advice.

    Exit status: 0 it could be read, 2 it couldn't.
    """
    from ..telemetry.sample import SourceError  # noqa: PLC0415 - numpy, which --help can do without
    from .scored_run import ScoredRun, path_of  # noqa: PLC0415

    try:
        scored = ScoredRun.of(path_of(recording), weights=weights, gpu=gpu)
    except SourceError as error:
        tell(str(error))
        return _UNREADABLE
    if save:
        _save(scored)
    if as_document:
        click.echo(json.dumps(scored.document()))
    else:
        _print(scored)
    return 0


def _print(scored: "ScoredRun") -> None:
    from ..saturation.report.lines import text_of  # noqa: PLC0415

    label, environment = scored.recording.label, _environment(scored.path)
    since = scored.since.lines if scored.since else ()
    for line in text_of(
        scored.job, scored.advice, label=label, environment=environment, notes=scored.notes, since=since
    ):
        click.echo(line)


def _save(scored: "ScoredRun") -> None:
    """Write ``score.json``, and let go of what an ended run no longer needs."""
    from gipfel_cluster.model import GipfelError  # noqa: PLC0415
    from gipfel_cluster.runs import write_atomically  # noqa: PLC0415

    from ..telemetry.store.compaction import compact, run_has_ended  # noqa: PLC0415
    from ..telemetry.store.fine import FineRetention, fine_folder  # noqa: PLC0415

    run = scored.path
    if not (run / "telemetry").is_dir():
        raise GipfelError(f"{run} is no run folder.", "Without --save any recording can be scored.")
    write_atomically(run / "score.json", json.dumps(scored.document(), indent=2) + "\n")
    # Of runs that ended before, too: nobody else looks at them again.
    kept, now_ns = FineRetention.of(os.environ), time.time_ns()
    for each in run.resolve().parent.glob("*/telemetry"):
        kept.prune(fine_folder(each), now_ns)
    if run_has_ended(run):
        for reason in compact(run / "telemetry").left:
            tell(f"A segment stays as it is: {reason}.")


def _environment(path: Path) -> str:
    """The name of the environment that a run was in; empty where nobody wrote it down."""
    from ..telemetry.files import read_record_file  # noqa: PLC0415 - as above

    edf = read_record_file(path).get("edf")
    return str(edf.get("name", "")) if isinstance(edf, dict) else ""
