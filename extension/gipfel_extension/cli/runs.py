"""``gipfel runs``: the table of runs, the facts about one, their names, tags and pins, and removal."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gipfel_cluster.messages import GipfelError, pluralize

from .completion import complete_runs
from .terminal import examples, print_json, print_lines, report_line, table_lines

if TYPE_CHECKING:
    from gipfel_cluster.workloads.run_folders import Run

    from ..server.run_table import TableRow

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_WIDEST_NAME = 32


def run_lines(runs: "Sequence[Run]") -> list[str]:
    """Return a title line and a line for each run; no lines for no runs. Empty columns are left out."""
    if not runs:
        return []
    table = [(title, right, [text(each) for each in runs]) for title, right, text in _COLUMNS]
    shown = [(title, right, cells) for title, right, cells in table if any(cells) or title in _ALWAYS]
    rows = [[title for title, _, _ in shown], *zip(*(cells for _, _, cells in shown), strict=True)]
    return table_lines(rows, [index for index, (_, right, _) in enumerate(shown) if right])


def facts_of(row: "TableRow") -> dict[str, str]:
    """Return the facts that `gipfel runs show` prints, by name; ``-`` stands for unknown."""
    # A positional argument has its position as its name.
    parameters = " ".join(
        value if name.isdecimal() else f"{name}={value}" for name, value in row.parameters.items()
    )
    facts = {
        "folder": row.folder,
        "name": row.display_name,
        "tags": " ".join(row.tags),
        "note": " ".join(row.note.split()),
        "pinned": "yes" if row.pinned else "no",
        "kind": row.kind,
        "started": row.started,
        "ended": row.ended or ("-" if row.in_use_reason else "not recorded"),
        "duration": duration_text(row.duration_s),
        "exit status": "" if row.exit_status is None else str(row.exit_status),
        "score": "" if row.score is None else f"{row.score:.0f}",
        "largest loss": _loss(row),
        "GPU hours": _number(row.gpu_hours),
        "energy": _energy(row),
        "throughput": "" if row.throughput is None else f"{_number(row.throughput)} {row.throughput_name}",
        "commit": _commit(row, digits=40),
        "parameters": parameters,
        "size": size_text(row.bytes),
        "in use": row.in_use_reason or "no",
    }
    return {name: text or "-" for name, text in facts.items()}


def size_text(count: float) -> str:
    """Return a number of bytes with its unit."""
    for unit in _UNITS:
        if count < 1024 or unit == _UNITS[-1]:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return ""


def duration_text(seconds: float | None) -> str:
    """Return a duration such as ``2:05:10``, or ``1-02:05:10`` from a day on; empty if unknown."""
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{days}-{hours:02}:{minutes:02}:{rest:02}" if days else f"{hours}:{minutes:02}:{rest:02}"


def _name(run: "Run") -> str:
    return f"{'*' if run.pinned else ''}{run.display_name[:_WIDEST_NAME]}"


def _changed(run: "Run") -> str:
    return time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(run.modified)) if run.modified else ""


def _loss(run: "Run") -> str:
    return f"{run.loss} {run.loss_points:.0f}" if run.loss_points is not None else ""


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def _energy(run: "Run") -> str:
    return "" if run.energy_wh is None else f"{_number(run.energy_wh)} Wh"


def _commit(run: "Run", *, digits: int = 8) -> str:
    # A plus sign, as in `git describe --dirty`, would be hard to see in a column.
    return f"{run.commit[:digits]}{' changed' if run.changed_files else ''}" if run.commit else ""


def _end(run: "Run") -> str:
    status = f"exit status {run.exit_status}" if run.exit_status is not None else "ended"
    return status if run.ended else "in use" if run.in_use_reason else "no end recorded"


#: Title, whether it is aligned to the right, and the text of each column.
_COLUMNS: "tuple[tuple[str, bool, Callable[[Run], str]], ...]" = (
    ("RUN", False, lambda run: run.name),
    ("NAME", False, _name),
    ("KIND", False, lambda run: run.kind[:12]),
    ("CHANGED", False, _changed),
    ("SIZE", True, lambda run: size_text(run.bytes)),
    ("SCORE", True, lambda run: "" if run.score is None else f"{run.score:.0f}"),
    ("LARGEST LOSS", False, _loss),
    ("DURATION", True, lambda run: duration_text(run.duration_s)),
    ("GPU HOURS", True, lambda run: _number(run.gpu_hours)),
    ("ENERGY", True, _energy),
    ("COMMIT", False, _commit),
    ("TAGS", False, lambda run: " ".join(run.tags)),
    ("END", False, _end),
)
_ALWAYS = frozenset(("RUN", "KIND", "CHANGED", "SIZE", "SCORE", "END"))


class _RunsGroup(click.Group):
    """Group whose default command is ``list``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take ``runs`` and ``runs --json`` for ``runs list …``."""
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


class _Age(click.ParamType):  # type: ignore[type-arg] # generic in newer releases only
    name = "age"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return an age such as ``30d`` in seconds."""
        from gipfel_cluster.scheduler.notation import seconds_from_units  # noqa: PLC0415 - pydantic

        try:
            return seconds_from_units(str(value).strip())
        except ValueError:
            self.fail(
                f"{value!r} is not a valid age; give a number and s, m, h or d, such as 30d", param, ctx
            )


@click.group(cls=_RunsGroup)
def runs() -> None:
    """List, name, tag, pin, show and remove runs: the records of servers, launches and batch notebooks."""


@runs.command(
    "list",
    epilog=examples(
        "gipfel runs",
        "gipfel runs list --sort score --filter kind=launch --filter 'gpu_hours>10'",
        "gipfel runs list --tag sweep-3 --sort parameters.lr",
        "gipfel runs list --pinned --json",
    ),
)
@click.option("--sort", default="modified", show_default=True, metavar="COLUMN", help="Column to sort by.")
@click.option("--reverse", is_flag=True, help="The smallest value last.")
@click.option(
    "--filter",
    "conditions",
    multiple=True,
    metavar="CONDITION",
    help="Only runs that meet COLUMN, an operator (= != < <= > >=, ~ contains) and a value. Repeatable.",
)
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="Only runs with this tag. Repeatable.")
@click.option("--pinned", is_flag=True, help="Only pinned runs.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Only the last N runs of the table.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
def list_(
    *,
    sort: str,
    reverse: bool,
    conditions: tuple[str, ...],
    tags: tuple[str, ...],
    pinned: bool,
    limit: int | None,
    as_json: bool,
) -> int:
    """List your runs with score, largest loss, duration, GPU hours, energy, commit and end.

    The newest run is the last one. Columns of --sort and --filter are the keys of --json, and
    parameters.NAME for a parameter of the run's program.
    """
    from ..server.run_table import Condition, run_table  # noqa: PLC0415 - pydantic and numpy

    given = [Condition.parse(each) for each in conditions]
    given += [Condition("tags", "=", tag) for tag in tags]
    given += [Condition("pinned", "=", "yes")] if pinned else []
    found = run_table(os.environ, conditions=given, sort=sort, descending=reverse, max_rows=limit)
    if as_json:
        return print_json([each.model_dump(mode="json") for each in found])
    print_lines(run_lines(found))
    if found:
        count = pluralize(len(found), "run")
        report_line(f"{count}, {size_text(sum(each.bytes for each in found))}")
    else:
        report_line("There are no runs." if not given else "No run meets these conditions.")
    return 0


@runs.command(
    epilog=examples(
        "gipfel runs note alps-48812 --name baseline --tag sweep-3 --note 'fused optimizer'",
        "gipfel runs note baseline --pin",
        "gipfel runs note baseline --untag sweep-3 --note ''",
    )
)
@click.argument("run", metavar="RUN", shell_complete=complete_runs())
@click.option("--name", "display_name", metavar="NAME", help="Name of the run; empty removes it.")
@click.option("--note", metavar="TEXT", help="Text about the run; empty removes it.")
@click.option("--tag", "add_tags", multiple=True, metavar="TAG", help="Add a tag. Repeatable.")
@click.option("--untag", "remove_tags", multiple=True, metavar="TAG", help="Remove a tag. Repeatable.")
@click.option("--pin/--unpin", "pinned", default=None, help="Pinned runs are never pruned or removed.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
def note(*, run: str, as_json: bool, **options: Any) -> int:
    """Name, tag, describe or pin a run; without options show its notes.

    RUN is the run's folder or the name that you gave it.
    """
    return _note(
        run, {key: value for key, value in options.items() if value not in (None, ())}, as_json=as_json
    )


@runs.command(
    epilog=examples(
        "gipfel runs tag alps-48812 sweep-3 baseline", "gipfel runs tag baseline sweep-3 --remove"
    )
)
@click.argument("run", metavar="RUN", shell_complete=complete_runs())
@click.argument("tags", metavar="TAG...", nargs=-1, required=True)
@click.option("--remove", is_flag=True, help="Remove the tags instead.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
def tag(*, run: str, tags: tuple[str, ...], remove: bool, as_json: bool) -> int:
    """Add tags to a run: `gipfel runs list --tag` finds it, and `gipfel runs prune` keeps it."""
    return _note(run, {"remove_tags" if remove else "add_tags": tags}, as_json=as_json)


@runs.command(epilog=examples("gipfel runs pin alps-48812", "gipfel runs pin baseline --remove"))
@click.argument("run", metavar="RUN", shell_complete=complete_runs())
@click.option("--remove", is_flag=True, help="Remove the pin instead.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
def pin(*, run: str, remove: bool, as_json: bool) -> int:
    """Pin a run: it is never pruned or removed."""
    return _note(run, {"pinned": not remove}, as_json=as_json)


def _note(run: str, changes: dict[str, Any], *, as_json: bool) -> int:
    """Change the notes of a run, if there are changes, and print them."""
    from gipfel_cluster.workloads.run_folders import change_notes, find_run, read_notes  # noqa: PLC0415

    folder = Path(find_run(run, os.environ).folder)
    notes = change_notes(folder, changes) if changes else read_notes(folder)
    if as_json:
        click.echo(notes.model_dump_json())
        return 0
    for key, text in (("name", notes.display_name), ("tags", " ".join(notes.tags)), ("note", notes.note)):
        click.echo(f"{key:<7} {text or '-'}")
    click.echo(f"{'pinned':<7} {'yes' if notes.pinned else 'no'}")
    return 0


@runs.command(epilog=examples("gipfel runs show alps-48812"))
@click.argument("run", metavar="RUN", shell_complete=complete_runs())
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
def show(*, run: str, as_json: bool) -> int:
    """Show one run: notes, times, score, energy, commit, parameters, end and size on disk."""
    from gipfel_cluster.workloads.run_folders import find_run  # noqa: PLC0415

    from ..server.run_table import table_row  # noqa: PLC0415

    found = table_row(find_run(run, os.environ))
    if as_json:
        click.echo(found.model_dump_json())
        return 0
    for name, value in facts_of(found).items():
        click.echo(f"{name:<12} {value}")
    return 0


@runs.command(
    epilog=examples(
        "gipfel runs rm alps-48812", "gipfel runs rm --older 30d", "gipfel runs rm --older 90d --yes"
    )
)
@click.argument("names", metavar="[RUN]...", nargs=-1, shell_complete=complete_runs())
@click.option(
    "--older", type=_Age(), metavar="AGE", help="Runs without a change for AGE, such as 12h or 30d."
)
@click.option("--yes", is_flag=True, help="Don't ask for confirmation.")
def rm(*, names: tuple[str, ...], older: int | None, yes: bool) -> int:
    """Remove runs, except those in use and pinned ones.

    Exit status: 0 removed or nothing to remove, 1 a run can't be removed, or you answered no.
    """
    from gipfel_cluster.workloads.run_folders import check_jobs, find_run  # noqa: PLC0415

    if bool(names) == (older is not None):
        raise click.UsageError("Give either names of runs or --older.")
    if older is not None:
        return _remove(_removable(older=older), yes=yes)
    chosen = check_jobs([find_run(name, os.environ) for name in dict.fromkeys(names)], os.environ)
    for each in chosen:
        if each.in_use_reason:
            raise GipfelError(
                f"The run {each.name} is in use: {each.in_use_reason}.", "Stop it first; see `gipfel ps`."
            )
        if each.pinned:
            raise GipfelError(
                f"The run {each.name} is pinned.", f"Unpin it first: gipfel runs pin {each.name} --remove"
            )
    return _remove(chosen, yes=yes)


@runs.command(epilog=examples("gipfel runs prune --keep 50", "gipfel runs prune --keep 20 --older 7d --yes"))
@click.option("--keep", required=True, type=click.IntRange(0), metavar="N", help="Keep the N newest runs.")
@click.option("--older", type=_Age(), metavar="AGE", help="Only runs without a change for AGE, such as 30d.")
@click.option("--yes", is_flag=True, help="Don't ask for confirmation.")
def prune(*, keep: int, older: int | None, yes: bool) -> int:
    """Remove all but the newest runs; runs that are in use, pinned or tagged always remain.

    Exit status: as for gipfel runs rm.
    """
    return _remove(_removable(older=older or 0, keep=keep), yes=yes)


def _removable(*, older: int, keep: int | None = None) -> "list[Run]":
    """Return the runs to remove; `keep` is the number of newest runs to keep in addition to tagged ones."""
    from gipfel_cluster.workloads.run_folders import check_jobs, list_runs  # noqa: PLC0415

    found = list(list_runs(os.environ))
    if keep is not None:
        found = [each for each in found[: max(0, len(found) - keep)] if not each.tags]
    limit = time.time() - older
    old = [each for each in found if each.modified < limit and not each.in_use_reason and not each.pinned]
    return [each for each in check_jobs(old, os.environ) if not each.in_use_reason]


def _remove(runs: "list[Run]", *, yes: bool) -> int:
    from gipfel_cluster.workloads.run_folders import remove_run  # noqa: PLC0415

    if not runs:
        report_line("There is nothing to remove.")
        return 0
    print_lines(run_lines(runs))
    size = size_text(sum(each.bytes for each in runs))
    count = pluralize(len(runs), "run")
    if not yes and not click.confirm(f"Remove {count}, {size}?", err=True):
        return 1
    failed = 0
    for each in runs:
        try:
            remove_run(each, os.environ)
        except GipfelError as error:
            report_line(str(error))
            failed += 1
    done = len(runs) - failed
    report_line(f"{pluralize(done, 'run')} removed.")
    return 1 if failed else 0


#: The same commands under the singular, for ``gipfel run note``.
run_alias = _RunsGroup("run", commands=runs.commands, hidden=True, help=runs.help)
