"""``gipfel compare``: the differences of runs in configuration, commits and measurements."""

import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from .completion import complete_runs
from .terminal import examples

if TYPE_CHECKING:
    from ..diagnosis.pace_comparison import PaceComparison
    from ..server.run_comparison import GitRow, RunComparison

_WIDEST_CELL, _WIDTH = 40, 96
_SHOWN_COMMITS, _SHOWN_FILES = 5, 10


@click.command(
    epilog=examples(
        "gipfel compare alps-48812 alps-48910",
        "gipfel compare baseline fused compiled",
        "gipfel compare baseline fused --json",
    )
)
@click.argument("names", metavar="RUN RUN...", nargs=-1, required=True, shell_complete=complete_runs())
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
def compare(*, names: tuple[str, ...], as_json: bool) -> int:
    """Compare runs with the first one: configuration, commits, score, losses, energy and your metrics.

    RUN is a run's folder or the name that you gave it. Metrics that programs logged, such as tokens_per_s,
    are compared by their means. A difference may be noise: one run of each kind can't show more.

    Where ranks logged their steps, log(step=…, step_s=…), a sentence on each run says whether its steps are
    longer than the first run's, how sure that is, and the smallest difference that these runs could show.
    STEPS lists what interrupts them (set-up, checkpoints, evaluations, pauses) with its cost, and changes of
    the pace within a run with the hardware series that moved with them.

    Exit status: 0 compared, 1 there is no such run, 2 wrong usage.
    """
    from ..server.run_comparison import MAX_RUNS, compare_runs  # noqa: PLC0415 - pydantic and numpy

    names = tuple(dict.fromkeys(names))
    if not 2 <= len(names) <= MAX_RUNS:
        raise click.UsageError(f"Give 2 to {MAX_RUNS} different runs.")
    found = compare_runs(names)
    if as_json:
        click.echo(found.model_dump_json())
        return 0
    for line in comparison_lines(found):
        click.echo(line)
    return 0


def comparison_lines(comparison: "RunComparison") -> Iterator[str]:
    """Yield the text of a comparison: tables of what differs, and the commits of each run."""
    titles = [run.display_name or run.name for run in comparison.runs]
    measured = [
        (
            f"{row.name} ({row.unit})" if row.unit else row.name,
            [_measured(value, change) for value, change in zip(row.values, row.changes, strict=True)],
        )
        for row in comparison.measurements
    ]
    yield from _table("MEASURED", titles, measured)
    yield ""
    paces = [(title, pace) for title, pace in zip(titles, comparison.pace, strict=True) if pace is not None]
    if paces:
        for title, pace in paces:
            yield _pace_line(title, pace)
        yield ""
    for title, steps in zip(titles, comparison.steps, strict=False):
        if sentences := steps.sentences():
            yield f"STEPS  {title}"
            yield from (f"  {line}" for text in sentences for line in textwrap.wrap(text, _WIDTH))
            yield ""
    changed = [
        (row.key, ["-" if value is None else value for value in row.values])
        for row in comparison.configuration
    ]
    if changed:
        yield from _table("CONFIGURATION", titles, changed)
        if comparison.more:
            yield f"{comparison.more} more differences: --json has no more than these, see record.json"
    else:
        yield "CONFIGURATION  no difference"
    yield ""
    for title, row in zip(titles, comparison.git, strict=True):
        yield from _git_lines(title, row)


def _table(heading: str, titles: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> Iterator[str]:
    table = [(heading, [*titles]), *((name, [*cells]) for name, cells in rows)]
    cut = [[_cut(name), *(_cut(cell) for cell in cells)] for name, cells in table]
    widths = [max(len(row[column]) for row in cut) for column in range(len(titles) + 1)]
    for row in cut:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _git_lines(title: str, row: "GitRow") -> Iterator[str]:
    if not row.commit:
        yield f"COMMIT  {title}: not recorded"
        return
    branch = f" on {row.branch}" if row.branch else ""
    changes = f", {row.changed_files} files with uncommitted changes" if row.changed_files else ""
    if changes and row.same_changes is not None:
        changes += ", the same changes" if row.same_changes else ", other changes"
    yield f"COMMIT  {title}: {row.commit[:12]}{branch}{changes}"
    difference = row.difference
    if difference is None:
        return
    if difference.reason:
        yield f"  {difference.reason}"
    for sign, commits in (("+", difference.commits), ("-", difference.missing_commits)):
        yield from (f"  {sign} {commit}" for commit in commits[:_SHOWN_COMMITS])
        if len(commits) > _SHOWN_COMMITS:
            yield f"  {sign} {len(commits) - _SHOWN_COMMITS} more commits"
    yield from (f"    {file}" for file in difference.files[:_SHOWN_FILES])
    if len(difference.files) > _SHOWN_FILES:
        yield f"    {len(difference.files) - _SHOWN_FILES} more files"


def _pace_line(title: str, pace: "PaceComparison") -> str:
    line = f"PACE  {title}: {pace.sentence}"
    if pace.least is not None and pace.most is not None:
        line += f" 95 %: {pace.least:+.1%} to {pace.most:+.1%}"
        line += f", confidence {pace.confidence:.2f}." if pace.confidence else "."
    return line


def _measured(value: float | None, change: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4g} ({change:+.3g})" if change else f"{value:.4g}"


def _cut(text: str) -> str:
    return text if len(text) <= _WIDEST_CELL else f"{text[: _WIDEST_CELL - 1]}\u2026"
