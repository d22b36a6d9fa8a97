"""``gipfel metrics`` and ``catalogue``: metrics in files of training programs, and all that runs record."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gipfel_cluster.messages import one_line

from .completion import complete_runs
from .terminal import UNREADABLE, examples, print_lines, report_line, report_lines, table_lines

if TYPE_CHECKING:
    from ..tracking import FileSummary, Follower
    from ..tracking.find import Kind
    from ..tracking.scalar import Series, SeriesTable

_WATCH_S = 2.0
#: Largest number of files named in notes; further files are only counted.
_MAX_NOTES = 20


@click.command(
    epilog=examples(
        "gipfel metrics runs/llama-7b",
        "gipfel metrics outputs/ --json",
        "gipfel metrics lightning_logs/version_3/metrics.csv",
        "gipfel metrics alps-48812 --watch train/loss",
        "gipfel metrics train.log --pattern 'iteration +(?P<step>\\d+).*lm loss: (?P<lm_loss>\\S+)'",
        "gipfel record --metrics outputs/ -- python train.py    (adds them to the run, live)",
    )
)
@click.argument("path", metavar="[RUN|DIR|FILE]", default="", shell_complete=complete_runs(or_files=True))
@click.option("--json", "as_document", is_flag=True, help="One JSON document on stdout, nothing else.")
@click.option(
    "--pattern",
    "expression",
    default="",
    metavar="REGEX",
    help="Read logs: values are the named groups of a regular expression, with `step`, `time` (seconds since "
    "the epoch) and `rank` as such, and `__` in a name for a slash.",
)
@click.option("--watch", default="", metavar="NAME", help="Print new values of this metric until Ctrl-C.")
def metrics(path: str, *, as_document: bool, expression: str, watch: str) -> int:
    """List the metrics in the files that a training program writes anyway; its code needs no change.

    Reads TensorBoard event files, CSV files with a step or epoch column (Lightning), trainer_state.json
    (transformers), W&B's offline files, MLflow's database and file store (mlruns), and JSON lines with a step
    or a time: below DIR or in FILE; with --pattern logs (*.log, *.out, *.err, *.txt; of RUN its ranks'). Of
    RUN, by default this job's or your newest, the metrics that it logged. None of the packages need be
    installed. The rank is the one that a line or a part of the path names, such as logs/rank3/.

    A row is one metric of one rank of one source, a directory or file with values of its own. The curve shows
    means of its values from the first to the last, between its lowest and its highest mean.

    Exit status: 0 metrics were found, 2 there are none, or they can't be read.
    """
    from ..tracking import Follower  # noqa: PLC0415 - numpy, which --help can do without
    from ..tracking.scalar import SeriesTable  # noqa: PLC0415
    from .scored_run import resolve_recording  # noqa: PLC0415

    if watch and as_document:
        raise click.UsageError("--watch prints values as they come: leave out --json.")
    follower, table = Follower(), SeriesTable()
    try:
        # The path itself may be a link; those below it are not followed.
        place = resolve_recording(path).resolve()
        logs = _log_kind(expression) if expression else None
        _add(follower, place, logs)
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        report_line(f"{path} can't be read: {reason}. Name a run, a directory or a file.")
        return UNREADABLE
    if watch:
        return _watch(follower, place, watch, logs)
    for file, scalars in follower.poll(last=True):
        table.add(_source(file, place), scalars)
    return _report(follower, table, place, as_document=as_document)


def _log_kind(expression: str) -> "Kind":
    from ..tracking.find import log_kind  # noqa: PLC0415
    from ..tracking.text_formats import LogPattern, PatternError  # noqa: PLC0415

    try:
        return log_kind(LogPattern(expression))
    except PatternError as error:
        raise click.UsageError(f"{error.problem} {error.fix}") from error


def _add(follower: "Follower", place: Path, logs: "Kind | None") -> None:
    from ..telemetry.user_metrics import METRICS_FILE  # noqa: PLC0415 - numpy, as above

    if (place / "telemetry").is_dir() and logs is not None:
        if (place / "launches").is_dir():
            follower.search(place / "launches", logs=logs)
    elif (place / "telemetry").is_dir():
        # A run folder also has JSON lines of events, so name the file of metrics.
        follower.add(place / METRICS_FILE)
    elif place.is_dir():
        follower.search(place, logs=logs)
    else:
        place.stat()
        follower.add(place, logs)


def _source(file: "FileSummary", place: Path) -> str:
    """Return a source relative to the path that was named; "." for that itself."""
    return str(file.source.relative_to(place)) if file.source.is_relative_to(place) else "."


def _watch(follower: "Follower", place: Path, name: str, logs: "Kind | None") -> int:
    """Print the values of a metric as they are written, including those in new files."""
    try:
        while True:
            for _, scalars in follower.poll():
                for each in scalars:
                    if each.name == name:
                        step = "-" if each.step is None else str(each.step)
                        rank = "" if each.rank is None else f"  rank {each.rank}"
                        click.echo(f"{step:>10}  {each.value:.6g}{rank}")
            time.sleep(_WATCH_S)
            _add(follower, place, logs)
    except KeyboardInterrupt:
        return 0
    except OSError as error:
        report_line(f"{place} can't be read: {error.strerror or error}.")
        return UNREADABLE


def _report(follower: "Follower", table: "SeriesTable", place: Path, *, as_document: bool) -> int:
    found = table.series()
    notes = _notes(follower, table)
    report_lines(notes)
    if as_document:
        click.echo(json.dumps(_document(follower, table, notes)))
    elif found:
        _print(found)
    if not found:
        report_line(f"No metrics were found in {place}. Name the directory that the training writes them to.")
        return UNREADABLE
    return 0


def _notes(follower: "Follower", table: "SeriesTable") -> list[str]:
    of_files = [f"{each.path}: {each.problem}." for each in follower.files if each.problem]
    for each in follower.files:
        if each.damaged:
            noun, are = ("entry", "is") if each.damaged == 1 else ("entries", "are")
            of_files.append(f"{each.damaged} damaged {noun} of {each.path} {are} left out.")
    notes = [*follower.notes, *of_files[:_MAX_NOTES]]
    if len(of_files) > _MAX_NOTES:
        notes.append(f"{len(of_files) - _MAX_NOTES} more notes on files are left out; --json has all files.")
    if table.left_out:
        notes.append(f"{table.left_out} values of further metrics are left out. Name a directory within it.")
    restarted = [each for each in table.series() if each.restarts]
    if restarted:
        times = "once" if restarted[0].restarts == 1 else f"{restarted[0].restarts} times"
        others = f", and those of {len(restarted) - 1} other series too" if len(restarted) > 1 else ""
        notes.append(
            f"The steps of {restarted[0].name} go back {times}{others}, as after a restart from a checkpoint."
        )
    return notes


def _document(follower: "Follower", table: "SeriesTable", notes: list[str]) -> dict[str, object]:
    files = [
        {
            "path": str(each.path),
            "kind": each.kind,
            "rank": each.rank,
            "scalars": each.scalars,
            "damaged": each.damaged,
            "problem": each.problem or None,
        }
        for each in follower.files
    ]
    return {"files": files, "series": [each.to_json() for each in table.series()], "notes": notes}


def _print(found: list["Series"]) -> None:
    """Print a row per series; the source only where there are several."""
    from ..tracking.scalar import sparkline  # noqa: PLC0415

    several = len({each.source for each in found}) > 1
    head = ("metric", "rank", "values", "steps", "last", "lowest", "highest", "curve")
    rows = [(("source",) if several else ()) + head]
    for each in found:
        rank = "-" if each.rank is None else str(each.rank)
        steps = "-" if each.last_step is None else f"{each.first_step} to {each.last_step}"
        values = (f"{value:.6g}" for value in (each.last, each.lowest, each.highest))
        cells = (one_line(each.name), rank, str(each.count), steps, *values, sparkline(each.shape.means()))
        rows.append(((one_line(each.source),) if several else ()) + cells)
    left = len(rows[0]) - len(head) + 1
    print_lines(table_lines(rows, right=range(left, len(rows[0]) - 1)))


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
    from ..telemetry.store.catalogue import catalogue as entries  # noqa: PLC0415 - numpy, which --help can do without
    from ..telemetry.store.catalogue import markdown  # noqa: PLC0415

    if as_page:
        click.echo(markdown(), nl=False)
        return 0
    words = text.lower()
    found = [each for each in entries() if words in each.name.lower() or words in each.meaning.lower()]
    if as_document:
        click.echo(json.dumps({"entries": [asdict(each) for each in found]}))
        return 0 if found else 1
    for each in found:
        unit = f" [{each.unit}]" if each.unit else ""
        click.echo(f"{each.name}{unit}  {each.kind}, {each.recorded}, {each.rate}, {each.source}")
        click.echo(f"  {each.meaning}")
    return 0 if found else 1
