"""``gipfel runs``: lists run folders with their sizes, and removes old ones."""

import json
import os
import re
import time
from typing import TYPE_CHECKING

import click

from .terminal import examples, report_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from gipfel_cluster.workloads.run_folders import Run

_AGE = re.compile(r"([0-9]{1,6})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


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
        found = _AGE.fullmatch(str(value).strip())
        if not found:
            self.fail(
                f"{value!r} is not a valid age; give a number and s, m, h or d, such as 30d", param, ctx
            )
        return int(found[1]) * _SECONDS[found[2]]


@click.group(cls=_RunsGroup)
def runs() -> None:
    """List, show and remove run folders: the records of your servers, launches and batch notebooks."""


@runs.command("list", epilog=examples("gipfel runs", "gipfel runs list --json"))
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
def list_(*, as_json: bool) -> int:
    """List your runs with size, score and end, the newest last."""
    from gipfel_cluster.workloads.run_folders import list_runs  # noqa: PLC0415 - pydantic

    found = list(list_runs(os.environ))
    if as_json:
        click.echo(json.dumps([each.model_dump(mode="json") for each in found]))
        return 0
    for line in _table(found):
        click.echo(line)
    if found:
        count = f"{len(found)} run{'' if len(found) == 1 else 's'}"
        report_line(f"{count}, {_size(sum(each.bytes for each in found))}")
    else:
        report_line("There are no runs.")
    return 0


@runs.command(epilog=examples("gipfel runs show alps-48812"))
@click.argument("run", metavar="RUN")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
def show(*, run: str, as_json: bool) -> int:
    """Show one run: kind, times, exit status, score and size on disk."""
    from gipfel_cluster.workloads.run_folders import find_run  # noqa: PLC0415

    found = find_run(run, os.environ)
    if as_json:
        click.echo(found.model_dump_json())
        return 0
    values = {
        "folder": found.folder,
        "kind": found.kind,
        "started": found.started,
        "ended": found.ended or ("-" if found.in_use else "not recorded"),
        "exit status": "-" if found.exit_status is None else str(found.exit_status),
        "score": "-" if found.score is None else f"{found.score:.0f}",
        "size": _size(found.bytes),
        "in use": found.in_use or "no",
    }
    for name, value in values.items():
        click.echo(f"{name:<12} {value}")
    return 0


@runs.command(
    epilog=examples(
        "gipfel runs rm alps-48812", "gipfel runs rm --older 30d", "gipfel runs rm --older 90d --yes"
    )
)
@click.argument("names", metavar="[RUN]...", nargs=-1)
@click.option(
    "--older", type=_Age(), metavar="AGE", help="Runs without a change for AGE, such as 12h or 30d."
)
@click.option("--yes", is_flag=True, help="Don't ask for confirmation.")
def rm(*, names: tuple[str, ...], older: int | None, yes: bool) -> int:
    """Remove runs, except those in use.

    Exit status: 0 removed or nothing to remove, 1 a run can't be removed, or you answered no.
    """
    from gipfel_cluster.model import GipfelError  # noqa: PLC0415
    from gipfel_cluster.workloads.run_folders import (  # noqa: PLC0415
        check_jobs,
        find_run,
        list_runs,
        remove_run,
    )

    if bool(names) == (older is not None):
        raise click.UsageError("Give either names of runs or --older.")
    if older is None:
        chosen = check_jobs([find_run(name, os.environ) for name in dict.fromkeys(names)], os.environ)
        for each in chosen:
            if each.in_use:
                raise GipfelError(
                    f"The run {each.name} is in use: {each.in_use}.", "Stop it first; see `gipfel ps`."
                )
    else:
        limit = time.time() - older
        old = [each for each in list_runs(os.environ) if each.modified < limit and not each.in_use]
        chosen = [each for each in check_jobs(old, os.environ) if not each.in_use]
    if not chosen:
        report_line("There is nothing to remove.")
        return 0
    return _remove(chosen, lambda each: remove_run(each, os.environ), yes=yes)


def _remove(chosen: "list[Run]", remove: "Callable[[Run], None]", *, yes: bool) -> int:
    from gipfel_cluster.model import GipfelError  # noqa: PLC0415

    for line in _table(chosen):
        click.echo(line)
    size = _size(sum(each.bytes for each in chosen))
    count = f"{len(chosen)} run{'s' if len(chosen) > 1 else ''}"
    if not yes and not click.confirm(f"Remove {count}, {size}?", err=True):
        return 1
    failed = 0
    for each in chosen:
        try:
            remove(each)
        except GipfelError as error:
            report_line(str(error))
            failed += 1
    done = len(chosen) - failed
    report_line(f"{done} run{'' if done == 1 else 's'} removed.")
    return 1 if failed else 0


def _table(found: "list[Run]") -> list[str]:
    if not found:
        return []
    width = max(4, *(len(each.name) for each in found))
    lines = [f"{'RUN':<{width}}  {'KIND':<10} {'CHANGED':<16} {'SIZE':>10} {'SCORE':>5}  END"]
    for each in found:
        changed = time.strftime("%Y-%m-%d %H:%M", time.localtime(each.modified)) if each.modified else ""
        score = "" if each.score is None else f"{each.score:.0f}"
        status = f"exit status {each.exit_status}" if each.exit_status is not None else "ended"
        end = status if each.ended else "in use" if each.in_use else "no end recorded"
        row = f"{each.name:<{width}}  {each.kind[:10]:<10} {changed:<16} {_size(each.bytes):>10}"
        lines.append(f"{row} {score:>5}  {end}")
    return lines


def _size(count: float) -> str:
    for unit in _UNITS:
        if count < 1024 or unit == _UNITS[-1]:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return ""
