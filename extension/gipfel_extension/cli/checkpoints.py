"""``gipfel checkpoints``: the checkpoints of a directory or of a run's launches, and what may be deleted."""

import json
import os
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .completion import complete_runs
from .run_lines import size_text
from .terminal import examples, report_line

if TYPE_CHECKING:
    from ..data.checkpoints import Checkpoint

_UNREADABLE = 2
_MAX_LAUNCHES = 1000
_MAX_PLAN_BYTES = 4 << 20
_COLUMNS = ("checkpoint", "written", "ranks", "size", "stall", "write", "state", "")


@click.command(
    epilog=examples(
        "gipfel checkpoints ~/train-fsdp-checkpoint",
        "gipfel checkpoints alps-48812 --verify",
        "gipfel checkpoints . --verify --keep 3 --json",
    )
)
@click.argument("place", metavar="RUN|DIR", shell_complete=complete_runs(or_files=True))
@click.option("--verify", is_flag=True, help="Read every byte that has a hash.")
@click.option("--keep", type=click.IntRange(1), default=2, show_default=True, metavar="N",
              help="Number of verified checkpoints that are not deletable.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
def checkpoints(*, place: str, verify: bool, keep: int, as_json: bool) -> int:
    """Show checkpoints: time, size, how long training waited, whether they are whole, what may be deleted.

    RUN stands for the checkpoint directories of its launches. States: verified (every byte read now), whole
    (complete, not read now), unhashed (complete as far as its format says), writing (incomplete, changed
    within an hour), torn (incomplete, older), damaged. Deletable is what is torn or damaged, and what has N
    newer checkpoints of the same run that were verified now. Nothing is deleted.

    Exit status: 0 the newest can be resumed from, 1 it can't or there is none, 2 unreadable. Checkpoints that
    are being written, that never got their final name, or that an earlier run wrote, don't count.
    """
    from ..data.checkpoints import deletable, find_checkpoints  # noqa: PLC0415

    try:
        found = {each: find_checkpoints(each, verify=verify) for each in _directories(place)}
    except OSError as error:
        report_line(f"{error.filename or place} can't be read: {error.strerror}. Check the path.")
        return _UNREADABLE
    old = {each.path for listed in found.values() for each in deletable(listed, keep)}
    listed = [each for several in found.values() for each in several]
    if as_json:
        documents = [each.document() | {"deletable": each.path in old} for each in listed]
        click.echo(json.dumps({"checkpoints": documents, "keep": keep, "verified": verify}))
    else:
        _print(listed, old)
    return 0 if found and all(_can_resume(*each) for each in found.items()) else 1


def _can_resume(directory: Path, checkpoints: list["Checkpoint"]) -> bool:
    from ..data.checkpoints import current_run  # noqa: PLC0415

    run = current_run(directory)
    finished = [
        each
        for each in checkpoints
        # A damaged manifest names no run.
        if (run is None or each.run == run or (each.state == "damaged" and not each.run))
        and each.state != "writing"
        and not each.path.name.startswith(".step-")
    ]
    return bool(finished) and finished[-1].can_resume


def _directories(place: str) -> list[Path]:
    """Return a directory, or those that the plans of a run's launches name."""
    if Path(place).is_dir():
        return [Path(place).absolute()]
    from gipfel_cluster.model import GipfelError  # noqa: PLC0415
    from gipfel_cluster.workloads.run_folders import find_run  # noqa: PLC0415

    from ..telemetry.files import read_json  # noqa: PLC0415

    folder = Path(find_run(place, os.environ).folder)
    named = set()
    for path in sorted((folder / "launches").glob("*/plan.json"))[:_MAX_LAUNCHES]:
        try:
            plan = read_json(path, _MAX_PLAN_BYTES)
        except (OSError, ValueError):
            continue
        directory = plan.get("checkpoint") if isinstance(plan, dict) else None
        if isinstance(directory, str) and directory.startswith("/"):
            named.add(Path(directory))
    if not named:
        raise GipfelError(f"No launch of {place} has a checkpoint directory.", "Give the directory.")
    return sorted(named)


def _print(checkpoints: list["Checkpoint"], old: set[Path]) -> None:
    from ..data.checkpoints import other_models  # noqa: PLC0415

    others = other_models(checkpoints)
    rows: list[tuple[str, ...]] = [_COLUMNS]
    for each in checkpoints:
        notes = [f"has other tensors than {others[each.path]}"] if each.path in others else []
        rows.append(_row(each, [each.problem, *notes, "deletable" if each.path in old else ""]))
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    for row in rows if checkpoints else ():
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())
    if not checkpoints:
        report_line("There are no checkpoints.")
    elif old:
        total = sum(each.bytes for each in checkpoints if each.path in old)
        report_line(f"{len(old)} may be deleted: {size_text(total)}")


def _row(checkpoint: "Checkpoint", notes: list[str]) -> tuple[str, ...]:
    name = "".join(each if each.isprintable() else "?" for each in checkpoint.path.name)
    time = "-"
    if checkpoint.time_ns is not None:
        time = datetime.fromtimestamp(checkpoint.time_ns / 1e9).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
    waited, wrote = (
        "-" if seconds is None else f"{seconds:.2f} s" for seconds in (checkpoint.stall_s, checkpoint.write_s)
    )
    note = ", ".join(filter(None, notes))
    ranks = "-" if checkpoint.world_size is None else str(checkpoint.world_size)
    return name, time, ranks, size_text(checkpoint.bytes), waited, wrote, checkpoint.state, note
