"""``gipfel data``: packs data sets into single files, verifies, compares, mounts, stages and tries them."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gipfel_cluster.messages import GipfelError, pluralize

from .completion import complete_runs
from .data_pack import add, fetch, pack, remove
from .data_stage import stage, status
from .runs import size_text
from .terminal import (
    INTERRUPTED,
    PATH,
    LiveTable,
    examples,
    exit_2_if_unreadable,
    json_option,
    print_json,
    print_lines,
    replace_unprintable,
    report_line,
    report_lines,
    table_lines,
)

if TYPE_CHECKING:
    from ..data.manifest import Summary
    from ..data.trial import Rate, Trial
    from ..data.trial_advice import Advice, Demand


_NAMES = {"files": "small files", "squashfs": "squashfs, mounted", "shards": "webdataset shards"}


@click.group(
    epilog=examples(
        "gipfel data pack ~/imagenet /scratch/imagenet.sqsh",
        "gipfel data verify /scratch/imagenet.sqsh",
        "gipfel data mount /scratch/imagenet.sqsh --at /data",
        "gipfel data stage /scratch/imagenet.sqsh",
        "gipfel data try ~/imagenet --run alps-48812",
    )
)
def data() -> None:
    """Pack many small files into one file that containers mount, check it, and copy it to a job's nodes.

    Many small files are slow on a shared file system; a SquashFS image is a single file there. Programs read
    the same paths as before.
    """


for _command in (fetch, pack, add, remove, stage, status):
    data.add_command(_command)


@data.command(
    epilog=examples("gipfel data verify imagenet.sqsh", "gipfel data verify imagenet.sqsh --sample 5")
)
@click.argument("image", metavar="FILE.sqsh", type=PATH)
@click.option("--sample", "percent", type=click.FloatRange(0, 100, min_open=True), default=100.0,
              metavar="PERCENT", help="Read only this share of the image, chosen at random.")  # fmt: skip
@json_option
@exit_2_if_unreadable
def verify(*, image: Path, percent: float, as_json: bool) -> int:
    """Check every byte of a packed data set, and that it holds what its manifest says and nothing else.

    FILE may also be a directory of shards with their index.json; --sample has no effect on these.

    Exit status: 0 whole and unchanged, 1 not, 2 it can't be read.
    """
    from ..data.shards import verify_shards  # noqa: PLC0415
    from ..data.verify import verify as verify_image  # noqa: PLC0415

    is_shards = image.is_dir()
    found = verify_shards(image) if is_shards else verify_image(image, percent=percent)
    if as_json:
        click.echo(found.model_dump_json())
    else:
        print_lines(found.problems)
        if found.valid:
            part = "" if percent >= 100 or is_shards else f" ({percent:g} % of it)"
            pieces = pluralize(found.chunks, "shard" if is_shards else "chunk")
            click.echo(
                f"{image.name} is whole{part}: {pieces}, {pluralize(found.files, 'file')}, "
                f"root hash {found.root}"
            )
    return 0 if found.valid else 1


@data.command(epilog=examples("gipfel data show imagenet.sqsh", "gipfel data show imagenet.sqsh --files"))
@click.argument("image", metavar="FILE.sqsh", type=PATH)
@click.option("--files", "list_files", is_flag=True, help="List kind, mode, size and path of every entry.")
@json_option
@exit_2_if_unreadable
def show(*, image: Path, list_files: bool, as_json: bool) -> int:
    """Show what a packed data set holds, where it came from, and its root hash.

    Exit status: 0 shown, 2 it can't be read.
    """
    from ..data.layers import required_summary  # noqa: PLC0415
    from ..data.manifest import display_path  # noqa: PLC0415
    from ..data.verify import load_entries  # noqa: PLC0415

    summary = required_summary(image)
    entries = load_entries(image) if list_files else {}
    if as_json:
        document = summary.model_dump(mode="json", exclude={"chunks"})
        listed = [json.loads(each.line()) for each in entries.values()]
        return print_json(document | ({"entries": listed} if list_files else {}))
    print_lines(_summary_lines(summary))
    print_lines(
        f"{entry.kind:<9} {entry.mode:04o} {entry.size:>12}  {display_path(entry.path)}"
        for entry in entries.values()
    )
    return 0


@data.command(
    epilog=examples("gipfel data diff old.sqsh new.sqsh", "gipfel data diff imagenet.sqsh ~/imagenet")
)
@click.argument("first", metavar="FILE|DIR", type=PATH)
@click.argument("second", metavar="FILE|DIR", type=PATH)
@json_option
@exit_2_if_unreadable
def diff(*, first: Path, second: Path, as_json: bool) -> int:
    """Compare two data sets by content: A path is added, R removed, M changed.

    Exit status: 0 the same, 1 different, 2 one can't be read.
    """
    from ..data.verify import compare  # noqa: PLC0415

    found = compare(first, second)
    if as_json:
        click.echo(found.model_dump_json())
    else:
        for letter, paths in (("A", found.added), ("R", found.removed), ("M", found.changed)):
            print_lines(f"{letter} {path}" for path in paths)
    return 0 if found.is_empty else 1


@data.command(epilog=examples("gipfel data mount imagenet.sqsh --at /data"))
@click.argument("image", metavar="FILE.sqsh", type=PATH)
@click.option("--at", "destination", default="/data", show_default=True, metavar="PATH",
              help="Where programs in the container find the files.")  # fmt: skip
@json_option
def mount(*, image: Path, destination: str, as_json: bool) -> int:
    """Print the line of an EDF that mounts a packed data set and its layers.

    Layers are mounted beside the image: at PATH.1, PATH.2 and so on.

    Exit status: 0 printed, 1 the image is not whole, has devices or set-user-id files, or can't be mounted
    there.
    """
    from ..data.layers import mount_lines  # noqa: PLC0415

    if not destination.startswith("/") or any(each in destination for each in ':$"\\\n'):
        raise GipfelError(f"{destination!r} is not a path in a container.", "Give one such as /data.")
    lines = mount_lines(image, destination.rstrip("/") or "/")
    if as_json:
        click.echo(json.dumps({"mounts": lines}))
    else:
        click.echo(f"mounts = {json.dumps(lines, ensure_ascii=False)}")
    return 0


def _summary_lines(summary: "Summary") -> list[str]:
    packing = summary.packing
    values = {
        "files": str(summary.files),
        "data": size_text(summary.data_bytes),
        "image": size_text(summary.bytes),
        "for": f"{packing.access} access, {packing.compression}, blocks of {packing.block_size >> 10} KiB",
        "source": summary.origin.source,
        "packed": f"{summary.origin.packed} by {summary.origin.packer}",
        "extends": f"{summary.base.file}, root hash {summary.base.root}" if summary.base else "",
        "removed": pluralize(sum(each.paths for each in summary.removals), "path")
        if summary.removals
        else "",
        "name": str((summary.croissant or {}).get("name", "")),
        "root hash": summary.root,
    }
    return [replace_unprintable(f"{name:<9} {value}") for name, value in values.items() if value]


def _numbers(_context: click.Context, _parameter: click.Parameter, text: str) -> tuple[int, ...]:
    try:
        found = tuple(sorted({int(each) for each in text.split(",") if each}))
    except ValueError:
        raise click.BadParameter("give numbers such as 4 or 2,4,8") from None
    if any(not 1 <= each <= 256 for each in found):
        raise click.BadParameter("give numbers from 1 to 256")
    return found


@data.command(
    "try",
    epilog=examples(
        "gipfel data try ~/imagenet",
        "gipfel data try ~/imagenet --run alps-48812",
        "gipfel data try imagenet.sqsh --workers 4,8,16 --seconds 10",
        "gipfel data try ~/imagenet --format files --json",
    ),
)
@click.argument("path", metavar="DATA", type=click.Path(path_type=Path))
@click.option("--workers", callback=_numbers, default="", metavar="N,…",
              help="Numbers of processes to try (default: 1, 2, 4, … up to twice the cores).")  # fmt: skip
@click.option("--format", "formats", type=click.Choice(list(_NAMES)), multiple=True,
              help="Only these formats (default: all).")  # fmt: skip
@click.option("--seconds", type=click.FloatRange(0.1, 120), default=3.0, show_default=True, metavar="S",
              help="Time of each measurement.")  # fmt: skip
@click.option("--run", "recording", metavar="RUN", shell_complete=complete_runs(),
              help="Compare with the samples that this run needed.")  # fmt: skip
@click.option("--scratch", type=click.Path(path_type=Path), metavar="DIR",
              help="Where samples are packed, on the same file system (default: beside DATA).")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
def try_command(
    *,
    path: Path,
    workers: tuple[int, ...],
    formats: tuple[str, ...],
    seconds: float,
    recording: str | None,
    scratch: Path | None,
    as_json: bool,
) -> int:
    """Measure how many samples per second can be read: cold and warm, by format and number of workers.

    DATA is a directory of files, a directory of tar shards, or a packed image. Of a directory of files, up
    to 256 MiB are packed beside it for the trial, and removed. A sample is a file, or files that share a
    name up to its first dot. Cold samples are read for the first time, warm ones again; caches of file
    servers can't be emptied. Reading alone is measured: decoding in your loader comes on top.

    With --run, the cheapest change that suffices is named: first more workers, then packing, then shards.

    Exit status: 0 measured, and it suffices or no run was given; 1 no tried format suffices; 2 DATA or
    RUN can't be read; 130 interrupted, with what was measured until then.
    """
    from ..data.trial import FORMATS, TrialRequest, default_workers, try_data  # noqa: PLC0415
    from .scored_run import resolve_recording  # noqa: PLC0415

    run = None if recording is None else resolve_recording(recording)
    if not path.exists():
        report_line(f"{path} does not exist. Give a directory or a packed image.")
        return 2
    progress = _Progress()
    cores = len(os.sched_getaffinity(0))
    trial = try_data(
        TrialRequest(
            path, workers or default_workers(cores), seconds, formats or FORMATS, scratch,
            on_rate=progress.on_rate, on_stage=progress.on_stage,
        )
    )  # fmt: skip
    progress.finish()
    demand, advice = _compare(trial, run)
    if as_json:
        document = {
            **trial.model_dump(mode="json"),
            "demand": None if demand is None else demand.model_dump(mode="json"),
            "advice": None if advice is None else advice.model_dump(mode="json"),
        }
        click.echo(json.dumps(document))
    else:
        print_lines(_lines(trial, demand, advice))
    report_lines(f"note: {note}" for note in trial.notes)
    if run is not None and demand is None:
        report_line(
            f"{run.name} has neither a metric of samples per second nor a record of its reads: "
            "log({'samples/s': …}) gives it one."
        )
    if not trial.complete:
        report_line("Interrupted: this is what was measured until then.")
        return INTERRUPTED
    return 1 if advice is not None and advice.rate is None else 0


def _compare(trial: "Trial", run: Path | None) -> "tuple[Demand | None, Advice | None]":
    from ..data.trial_advice import advise, demand_of  # noqa: PLC0415

    if run is None or not trial.rates:
        return None, None
    demand = demand_of(run, trial.rates[0].sample_bytes)
    return demand, None if demand is None else advise(trial, demand, _free_memory())


def _free_memory() -> float | None:
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (ValueError, OSError):
        return None


def _lines(trial: "Trial", demand: "Demand | None", advice: "Advice | None") -> list[str]:
    count = f"{pluralize(trial.samples, 'sample')}, " if trial.samples else ""
    lines = [f"{trial.data}: {count}{size_text(trial.bytes)}, storage: {trial.tier}", *_table(trial.rates)]
    if demand is not None:
        waited = (
            ""
            if demand.input_loss is None
            else f" Of its time {demand.input_loss:.0f} % was waiting, so it needs {demand.needed:,.0f}."
        )
        nodes = pluralize(demand.nodes, "node")
        lines += [
            "",
            f"The run got {demand.eaten:,.0f} samples/s on {nodes}, by {demand.source}.{waited}",
        ]
    if advice is not None:
        lines.append(advice.sentence)
    return lines


def _table(rates: "tuple[Rate, ...] | list[Rate]") -> list[str]:
    rows = [
        [
            _NAMES[each.format],
            str(each.workers),
            *("-" if rate is None else f"{rate:,.0f}" for rate in (each.cold, each.warm)),
            "-" if each.cold is None else f"{each.cold * each.sample_bytes / 1e6:,.1f}",
        ]
        for each in rates
    ]
    titles = ["FORMAT", "WORKERS", "COLD samples/s", "WARM samples/s", "COLD MB/s"]
    return table_lines([titles, *rows], (1, 2, 3, 4))


class _Progress:
    """Table of measurements on stderr, redrawn in place; plain lines if stderr is not a terminal."""

    def __init__(self) -> None:
        self._table = LiveTable() if LiveTable.is_supported() else None
        self._rates: list[Rate] = []

    def on_rate(self, rate: "Rate") -> None:
        self._rates.append(rate)

    def on_stage(self, stage: str) -> None:
        if self._table is None:
            report_line(stage, progress=False)
        else:
            self._table.draw([*_table(self._rates), f"… {stage}"])

    def finish(self) -> None:
        if self._table is not None:
            self._table.draw([])
