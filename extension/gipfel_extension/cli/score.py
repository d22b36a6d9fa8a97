"""``gipfel score``: the saturation score of a run's GPUs, its losses and advice."""

import json
import math
import os
import time
from typing import TYPE_CHECKING

import click

from gipfel_cluster.messages import GipfelError

from .completion import complete_runs
from .terminal import examples, print_lines, report_lines

if TYPE_CHECKING:
    from .scored_run import ScoredRun

_RESOURCES = ("compute", "memory", "interconnect")


def parse_weights(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, float]:
    """Return the weights of ``RESOURCE=W`` options, as a click callback."""
    weights = {}
    for each in values:
        resource, _, number = each.partition("=")
        try:
            weight = float(number)
        except ValueError:
            weight = math.nan
        if resource not in _RESOURCES or not 0 <= weight < math.inf:
            raise click.BadParameter(
                f"{each!r} is not RESOURCE=W with RESOURCE {', '.join(_RESOURCES)} and W >= 0.",
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
@click.argument("recording", metavar="[RUN|FILE]", default="", shell_complete=complete_runs(or_files=True))
@click.option(
    "--weight",
    "weights",
    callback=parse_weights,
    multiple=True,
    metavar="RESOURCE=W",
    help="Weight of a resource (compute, memory, interconnect). The resource with the highest weighted level "
    "is the bottleneck.",
)
@click.option("--gpu", default="", metavar="MODEL", help="GPU model, if the recording does not name it.")
@click.option("--json", "as_document", is_flag=True, help="One JSON document on stdout, nothing else.")
@click.option(
    "--save",
    is_flag=True,
    help="Write the document into the run folder as score.json; where the run has ended, its samples become "
    "Parquet.",
)
def score(recording: str, *, weights: dict[str, float], gpu: str, as_document: bool, save: bool) -> int:
    """Score how well a run used its GPUs, with losses and advice.

    RUN is a run folder or its name, by default the one of this job, else your newest one. FILE is a segment
    (.arrows), Parquet, JSON of gssr, CSV of gssr-record, text of the DCGM exporter, or
    prometheus:URL?nodes=N1,N2&start=TIME&end=TIME for a site's stored metrics.

    If an earlier run of the same script was scored, the output also compares the runs by that run's advice.

    Exit status: 0 scored, 2 the recording can't be read.
    """
    from ..telemetry.files import edf_name, read_record_file  # noqa: PLC0415 - numpy, not for --help
    from .scored_run import ScoredRun, resolve_recording  # noqa: PLC0415

    path = resolve_recording(recording)
    # Before scoring, which may take minutes.
    if save and path.exists() and not (path / "telemetry").is_dir():
        raise GipfelError(f"{path} is not a run folder.", "Score it without --save, or name a run folder.")
    scored = ScoredRun.of(path, weights=weights, gpu=gpu)
    if save:
        _save(scored)
    if as_document:
        click.echo(json.dumps(scored.document()))
    else:
        print_lines(scored.lines(edf_name(read_record_file(path))))
    return 0


def _save(scored: "ScoredRun") -> None:
    """Write ``score.json``, delete old fine samples, and convert the samples of an ended run to Parquet."""
    from gipfel_cluster.runs import write_atomically  # noqa: PLC0415

    from ..telemetry.store.compaction import compact, run_has_ended  # noqa: PLC0415
    from ..telemetry.store.fine import FineRetention, fine_folder  # noqa: PLC0415

    run = scored.path
    write_atomically(run / "score.json", json.dumps(scored.document(), indent=2) + "\n")
    # Includes earlier runs, whose fine samples nothing else deletes.
    retention, now_ns = FineRetention.from_environment(os.environ), time.time_ns()
    for each in run.resolve().parent.glob("*/telemetry"):
        retention.prune(fine_folder(each), now_ns)
    if run_has_ended(run):
        report_lines(
            f"A segment is not converted: {reason}." for reason in compact(run / "telemetry").skipped
        )
