"""``gipfel plan`` and ``checkpoints``: the layout of a model on GPUs, and the checkpoints of its training."""

import json
import os
import re
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gipfel_cluster.messages import GipfelError

from .completion import complete_runs
from .runs import size_text
from .terminal import (
    UNREADABLE,
    examples,
    print_lines,
    replace_unprintable,
    report_line,
    report_lines,
    table_lines,
)

if TYPE_CHECKING:
    from ..data.checkpoints import Checkpoint
    from ..job.checkpoints import CheckpointReport

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kKmMbBtT]?)")
_FACTORS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
_MAX_DIPS = 20
_COLUMNS = ("checkpoint", "written", "ranks", "size", "stall", "write", "state", "")


class _Size(click.ParamType):  # type: ignore[type-arg] # generic in newer releases only
    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        match = _SIZE.fullmatch(str(value))
        if match is None:
            self.fail(f"{value!r} is not a number of parameters; write it as 7B or 350M.", param, ctx)
        return float(match[1]) * _FACTORS[match[2].lower()]


@click.command(
    epilog=examples(
        "gipfel plan --model 7B --gpus 16",
        "gipfel plan --layers 32 --hidden 4096 --heads 32 --ffn 11008 --gated --gpus 64 --sequence 8192",
        "gipfel plan --model 70B --gpus 512 --gpu H100 --batch 1024 --json",
    )
)
@click.option("--model", type=_Size(), metavar="N", help="Parameters, such as 350M or 7B.")
@click.option("--layers", type=click.IntRange(1), metavar="N", help="The transformer instead of --model.")
@click.option("--hidden", type=click.IntRange(1), metavar="N")
@click.option("--heads", type=click.IntRange(1), metavar="N")
@click.option(
    "--kv-heads", type=click.IntRange(1), metavar="N", help="Of keys and values; by default --heads."
)
@click.option("--ffn", type=click.IntRange(1), metavar="N", help="Width of the MLP; by default 4 x --hidden.")
@click.option("--vocabulary", default=50_304, show_default=True, type=click.IntRange(1), metavar="N")
@click.option("--gated", is_flag=True, help="The MLP has three matrices (SwiGLU).")
@click.option(
    "--gpus", required=True, type=click.IntRange(1, 100_000), metavar="N", help="Total number of GPUs."
)
@click.option("--gpu", default="GH200", show_default=True, metavar="MODEL")
@click.option(
    "--gpus-per-node", default=0, type=click.IntRange(0), metavar="N", help="By default the model's."
)
@click.option(
    "--memory", "memory_gb", default=0.0, type=click.FloatRange(0), metavar="GB", help="Memory of a GPU."
)
@click.option("--network", "network_gbps", default=0.0, type=click.FloatRange(0), metavar="GB/s",
              help="Between nodes, for each GPU; by default 25.")  # fmt: skip
@click.option("--storage", "storage_gbps", default=0.0, type=click.FloatRange(0), metavar="GB/s",
              help="For checkpoints; by default 10.")  # fmt: skip
@click.option("--sequence", default=4096, show_default=True, type=click.IntRange(1), metavar="TOKENS")
@click.option("--batch", default=0, type=click.IntRange(0), metavar="N",
              help="Global batch in sequences; by default eight per GPU.")  # fmt: skip
@click.option("--micro", default=1, show_default=True, type=click.IntRange(1), metavar="N",
              help="Micro-batch: sequences that a replica computes at a time.")  # fmt: skip
@click.option("--precision", default="bf16", show_default=True, type=click.Choice(["bf16", "fp32"]))
@click.option("--json", "as_document", is_flag=True, help="One JSON document on stdout, nothing else.")
def plan(*, model: float | None, as_document: bool, **options: Any) -> int:
    """Plan the parallel layout of a transformer's training: DP x TP x PP x ZeRO.

    It shows memory per GPU, traffic per link, size and interval of checkpoints, and expected scaling,
    computed from formulas rather than measured.

    Exit status: 0 a layout fits, 1 none does.
    """
    from ..training import layout_plan  # noqa: PLC0415 - pydantic

    shape = {name: options.pop(name) for name in ("layers", "hidden", "heads", "kv_heads", "ffn")}
    more = {name: options.pop(name) for name in ("vocabulary", "gated")}
    found = layout_plan.plan(_model(model, shape, more), **options)
    if as_document:
        click.echo(json.dumps(layout_plan.document_of(found)))
    else:
        print_lines(layout_plan.lines_of(found))
    return 0


def _model(size: float | None, shape: dict[str, int | None], more: dict[str, Any]) -> Any:
    from pydantic import ValidationError  # noqa: PLC0415

    from gipfel_cluster.model import first_problem  # noqa: PLC0415

    from ..training.layout_plan import Transformer  # noqa: PLC0415

    given = {name: value for name, value in shape.items() if value is not None}
    if (size is None) == (not given):
        raise click.UsageError("Give --model, or --layers, --hidden and --heads.")
    if size is not None:
        return size
    if not {"layers", "hidden", "heads"} <= given.keys():
        raise click.UsageError("A transformer needs --layers, --hidden and --heads.")
    try:
        return Transformer.model_validate(given | more)
    except ValidationError as error:
        why = first_problem(error)[1]
        raise GipfelError(f"The transformer is not valid: {why}.", "See `gipfel plan --help`.") from None


@click.command(
    epilog=examples(
        "gipfel checkpoints ~/train-fsdp-checkpoint",
        "gipfel checkpoints alps-48812 --verify",
        "gipfel checkpoints keep:runs/7              below the site's storage class keep",
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

    Of a run whose steps were recorded, it also says what its checkpoints cost: the dips of the throughput
    while each was written, what writing in the background saved or would save, and turns of the ranks.
    A warning says where another checkpoint would not fit; $GIPFEL_STORAGE_QUOTA adds your quota.

    Exit status: 0 the newest can be resumed from, 1 it can't or there is none, 2 unreadable. Checkpoints that
    are being written, that never got their final name, or that an earlier run wrote, don't count.
    """
    from gipfel_cluster.storage_classes import resolve_path  # noqa: PLC0415 - pydantic

    from ..job.checkpoints import read_checkpoints, storage_quota  # noqa: PLC0415 - numpy

    directories, run = _places(resolve_path(place, os.environ))
    try:
        report = read_checkpoints(directories, run, verify=verify, keep=keep)
    except OSError as error:
        report_line(f"{error.filename or place} can't be read: {error.strerror}. Check the path.")
        return UNREADABLE
    quota, problem = storage_quota(os.environ)
    if as_json:
        options = {"keep": keep, "verified": verify, "quota": quota}
        click.echo(json.dumps(report.to_json() | options))
    else:
        _print(report)
        if quota:
            click.echo(f"\nSTORAGE\n{quota}")
    if problem:
        report_line(problem)
    found = {each: [one for one in report.checkpoints if one.path.parent == each] for each in directories}
    return 0 if all(_can_resume(*each) for each in found.items()) else 1


def _can_resume(directory: Path, checkpoints: list["Checkpoint"]) -> bool:
    from ..data.checkpoints import current_run  # noqa: PLC0415

    run = current_run(directory)
    finished = [
        each
        for each in checkpoints
        # A checkpoint with a damaged manifest has no run.
        if (run is None or each.run == run or (each.state == "damaged" and not each.run))
        and each.state != "writing"
        and not each.path.name.startswith(".step-")
    ]
    return bool(finished) and finished[-1].can_resume


def _places(place: str) -> tuple[list[Path], Path | None]:
    """Return the given directory, or the directories in the plans of a run's launches, and the run folder."""
    if Path(place).is_dir() and not (Path(place) / "record.json").exists():
        return [Path(place).absolute()], None
    from gipfel_cluster.workloads.run_folders import find_run  # noqa: PLC0415

    from ..job.checkpoints import checkpoint_directories  # noqa: PLC0415 - numpy

    run = Path(place) if Path(place).is_dir() else Path(find_run(place, os.environ).folder)
    named = checkpoint_directories(run)
    if not named:
        raise GipfelError(f"No launch of {place} has a checkpoint directory.", "Give the directory.")
    return named, run


def _print(report: "CheckpointReport") -> None:
    rows: list[tuple[str, ...]] = [_COLUMNS]
    for each in report.checkpoints:
        other = f"has other tensors than {report.others[each.path]}" if each.path in report.others else ""
        rows.append(_row(each, [each.problem, other, "deletable" if each.path in report.old else ""]))
    print_lines(table_lines(rows) if report.checkpoints else ())
    if report.cost is not None:
        _print_dips(report)
    print_lines(report.sentences())
    report_lines(report.notes if report.checkpoints else ())
    if not report.checkpoints:
        report_line("There are no checkpoints.")
    elif report.old:
        total = sum(each.bytes for each in report.checkpoints if each.path in report.old)
        report_line(f"{len(report.old)} may be deleted: {size_text(total)}")
    report_lines(filter(None, (each.warning for each in report.spaces)))


def _print_dips(report: "CheckpointReport") -> None:
    """Print the cost of each checkpoint of a run, the newest last, and the total cost."""
    if report.cost is None:
        return
    writes = {each.end_ns: each for each in report.writes}
    click.echo()
    rows: list[tuple[str, ...]] = [("step", "written", "stood still", "dip", "throughput")]
    for dip in report.cost.dips[-_MAX_DIPS:]:
        write = writes[dip.end_ns]
        rows.append(
            (str(dip.step), _time_text(dip.end_ns), f"{write.stall_s:.2f} s", f"{dip.seconds:.2f} s",
             f"-{100 * dip.lower:.1f} %" if dip.lower > 0 else f"+{-100 * dip.lower:.1f} %")
        )  # fmt: skip
    print_lines(table_lines(rows, [0, 2, 3, 4]) if len(rows) > 1 else ())


def _time_text(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns / 1e9).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def _row(checkpoint: "Checkpoint", notes: list[str]) -> tuple[str, ...]:
    name = replace_unprintable(checkpoint.path.name)
    time = "-" if checkpoint.time_ns is None else _time_text(checkpoint.time_ns)
    waited, wrote = (
        "-" if seconds is None else f"{seconds:.2f} s" for seconds in (checkpoint.stall_s, checkpoint.write_s)
    )
    note = ", ".join(filter(None, notes))
    ranks = "-" if checkpoint.world_size is None else str(checkpoint.world_size)
    return name, time, ranks, size_text(checkpoint.bytes), waited, wrote, checkpoint.state, note
