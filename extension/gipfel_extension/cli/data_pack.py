"""``gipfel data fetch``, ``pack``, ``add`` and ``remove``, which write data sets, images and shards."""

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gipfel_cluster.messages import GipfelError, pluralize

from .runs import size_text
from .terminal import (
    PATH,
    LiveTable,
    examples,
    json_option,
    print_json,
    progress_bar,
    report_line,
    report_lines,
)

if TYPE_CHECKING:
    from ..data.options import Plan
    from ..data.pack import PackRequest
    from ..data.source import Source

_REDRAW_S = 0.5


@click.command(
    epilog=examples(
        "gipfel data fetch urls.txt ~/imagenet",
        "gipfel data fetch urls.txt ~/imagenet --check     has anything changed at its URL?",
        "gipfel data pack ~/imagenet imagenet.sqsh         the manifest keeps URLs, hashes and times",
    )
)
@click.argument("listed", metavar="LIST", type=PATH)
@click.argument("directory", metavar="DIR", type=PATH)
@click.option("--check", is_flag=True, help="Fetch items again that are already in DIR, and compare them.")
@json_option
def fetch(*, listed: Path, directory: Path, check: bool, as_json: bool) -> int:
    """Fetch the items of a data set by URL, and keep URL, hash and time of each.

    A line of LIST is URL [PATH] [sha256:HASH]; URLs begin with http, https or s3. An item in DIR that is
    unchanged since it was fetched is not fetched again. One that has changed since, in DIR or at its URL, is
    an error; `gipfel data pack` refuses what changed in DIR, too. If an item was deleted from DIR, the
    image's manifest keeps a tombstone for it.

    Exit status: 0 all are there, 1 not.
    """
    from ..data.fetch import fetch as fetch_items  # noqa: PLC0415
    from ..data.fetch import read_list  # noqa: PLC0415
    from ..data.pack import utc_now  # noqa: PLC0415

    table = LiveTable() if LiveTable.is_supported() and not as_json else None
    wanted = read_list(listed)
    done = 0

    def on_item(path: str) -> None:
        nonlocal done
        done += 1
        if table is not None:
            table.draw([f"{done} of at most {len(wanted)}: {path}"])

    fetched, there = fetch_items(wanted, directory, os.environ, now=utc_now, check=check, on_item=on_item)
    if as_json:
        click.echo(json.dumps({"directory": str(directory), "fetched": fetched, "there": there}))
    else:
        click.echo(f"{directory}: {fetched} items fetched, {there} were there")
    return 0


def _packing_options(command: Any) -> Any:
    for option in (
        click.option("--for", "access", type=click.Choice(["random", "sequential"]), default="random",
                     show_default=True, help="How programs read the files."),
        click.option("--compression", type=click.Choice(["auto", "none", "zstd", "gzip"]), default="auto",
                     show_default=True, help="auto: none if a sample shows that the data are compressed."),
        click.option("--readers", type=click.IntRange(1, 64), default=8, show_default=True, metavar="N",
                     help="Number of files to read at the same time."),
        json_option,
    ):  # fmt: skip
        command = option(command)
    return command


@click.command(
    epilog=examples(
        "gipfel data pack ~/imagenet /scratch/imagenet.sqsh",
        "gipfel data pack ~/tokens tokens.sqsh --for sequential",
        "SOURCE_DATE_EPOCH=1700000000 gipfel data pack ~/imagenet imagenet.sqsh",
        "gipfel data pack ~/imagenet /scratch/shards --to webdataset",
        "gipfel data pack /scratch/shards imagenet.sqsh --from webdataset",
    )
)
@click.argument("source", metavar="DIR", type=PATH)
@click.argument("target", metavar="OUT.sqsh", type=PATH)
@click.option("--replace", is_flag=True, help="Replace OUT.sqsh if it exists.")
@click.option(
    "--to",
    "to_format",
    type=click.Choice(["squashfs", "webdataset"]),
    default="squashfs",
    show_default=True,
    help="webdataset writes tar shards and index.json into a new directory.",
)
@click.option(
    "--from",
    "from_format",
    type=click.Choice(["directory", "webdataset"]),
    default="directory",
    show_default=True,
    help="webdataset reads the tar shards in DIR.",
)
@click.option(
    "--shard-size",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    metavar="MB",
    help="Size of a shard at which the next one begins.",
)
@_packing_options
def pack(
    *,
    source: Path,
    target: Path,
    replace: bool,
    to_format: str,
    from_format: str,
    shard_size: int,
    as_json: bool,
    **options: Any,
) -> int:
    """Pack a directory into a SquashFS image, with a manifest inside and hashes beside it (OUT.sqsh.json).

    The same names, contents and modes give the same bytes: times are 0 or SOURCE_DATE_EPOCH, the owner is
    root. Hard links, sparse files, user.* attributes and names of any bytes are kept. Files that can't be
    packed are reported, and nothing is packed: devices, pipes, set-user-id files, unreadable files, and files
    that change meanwhile. The root hash, which is printed, identifies all contents.

    Exit status: 0 packed, 1 not packed.
    """
    from ..data.pack import PackRequest  # noqa: PLC0415 - pyarrow, which --help can do without
    from ..data.shards import scan_shards  # noqa: PLC0415
    from ..data.source import scan  # noqa: PLC0415

    if to_format == "webdataset":
        if from_format == "webdataset" or replace:
            raise GipfelError(
                "Shards are written from a directory of files into a new one.",
                "Leave out --replace and --from.",
            )
        return _write_shards(source, target, shard_size, options["readers"], as_json=as_json)
    request = PackRequest(
        source=source,
        target=target,
        replace=replace,
        environment=os.environ,
        scan=scan_shards if from_format == "webdataset" else scan,
        **options,
    )
    return _pack(request, as_json=as_json)


@click.command(
    epilog=examples(
        "gipfel data remove imagenet.sqsh train/n0123/7.jpg", "gipfel data remove imagenet.sqsh person-17"
    )
)
@click.argument("image", metavar="FILE.sqsh", type=PATH)
@click.argument("paths", metavar="PATH…", nargs=-1, required=True)
@json_option
def remove(*, image: Path, paths: tuple[str, ...], as_json: bool) -> int:
    """Remove files and directories from a packed data set, with a tombstone for each in its manifest.

    The image is written again without them, and gets a new root hash. Its layers stay valid. Copies of the
    image elsewhere are not changed.

    Exit status: 0 removed, 1 not removed.
    """
    from ..data.layers import RemoveRequest  # noqa: PLC0415
    from ..data.layers import remove as remove_paths  # noqa: PLC0415

    progress = _Progress()
    wanted = [os.fsencode(path) for path in paths]
    summary = remove_paths(RemoveRequest(image, wanted, os.environ, progress.on_plan, progress.on_progress))
    progress.finish()
    document = {"file": str(image), **summary.model_dump(mode="json", exclude={"chunks"})}
    found = summary.removals[-1]
    lines = [
        f"{image}: {pluralize(found.paths, 'path')} removed, {pluralize(summary.files, 'file')} left",
        f"root hash {summary.root}",
    ]
    click.echo(json.dumps(document) if as_json else "\n".join(lines))
    return 0


@click.command(epilog=examples("gipfel data add /scratch/imagenet.sqsh ~/new-images"))
@click.argument("image", metavar="FILE.sqsh", type=PATH)
@click.argument("source", metavar="DIR", type=PATH)
@_packing_options
def add(*, image: Path, source: Path, as_json: bool, **options: Any) -> int:
    """Add files to a packed data set, as a layer beside it: FILE.1.sqsh, FILE.2.sqsh and so on.

    The image itself is not rewritten. A path that it has already is refused.

    Exit status: 0 packed, 1 not packed.
    """
    from ..data.layers import next_layer, refuse_known_paths  # noqa: PLC0415
    from ..data.pack import PackRequest  # noqa: PLC0415

    target, base = next_layer(image)
    request = PackRequest(
        source=source,
        target=target,
        base=base,
        environment=os.environ,
        check=lambda found: refuse_known_paths(image, found),
        **options,
    )
    return _pack(request, as_json=as_json)


def _pack(request: "PackRequest", *, as_json: bool) -> int:
    from dataclasses import replace  # noqa: PLC0415

    from ..data.pack import pack as pack_source  # noqa: PLC0415

    progress = _Progress()
    watched = replace(request, on_plan=progress.on_plan, on_progress=progress.on_progress)
    summary = pack_source(watched)
    progress.finish()
    if as_json:
        click.echo(
            json.dumps({"file": str(request.target), **summary.model_dump(mode="json", exclude={"chunks"})})
        )
        return 0
    click.echo(
        f"{request.target}: {pluralize(summary.files, 'file')}, {size_text(summary.data_bytes)} "
        f"in {size_text(summary.bytes)}"
    )
    click.echo(f"root hash {summary.root}")
    return 0


def _write_shards(source: Path, target: Path, shard_size: int, readers: int, *, as_json: bool) -> int:
    from ..data.webdataset import ShardRequest, write_shards  # noqa: PLC0415

    progress = _Progress()
    index = write_shards(
        ShardRequest(
            source, target, shard_size * 1_000_000, readers, progress.on_shards, progress.on_progress
        )
    )
    progress.finish()
    if as_json:
        return print_json({"directory": str(target), **index.model_dump(mode="json", by_alias=True)})
    samples = sum(each.nsamples for each in index.shardlist)
    files, shards = pluralize(index.files, "file"), pluralize(len(index.shardlist), "shard")
    click.echo(f"{target}: {files}, {pluralize(samples, 'sample')} in {shards}")
    click.echo(f"root hash {index.root}")
    return 0


class _Progress:
    """Plan and progress on stderr; the remaining time is estimated from bytes."""

    def __init__(self) -> None:
        self._table = LiveTable() if LiveTable.is_supported() else None
        self._total = self._read = 0
        self._started = self._drawn = time.monotonic()

    def on_plan(self, source: "Source", plan: "Plan") -> None:
        report_lines(f"note: {note}." for note in source.notes)
        self._total = source.data_bytes
        how = (
            "stored" if plan.packing.compression == "none" else f"compressed with {plan.packing.compression}"
        )
        report_line(
            f"{pluralize(len(source.files()), 'file')}, {size_text(self._total)}: {how}, "
            f"about {size_text(plan.estimated_bytes)}, for {plan.packing.access} access"
        )

    def on_shards(self, source: "Source", shards: int) -> None:
        report_lines(f"note: {note}." for note in source.notes)
        self._total = source.data_bytes
        files = pluralize(len(source.files()), "file")
        report_line(f"{files}, {size_text(self._total)}: {pluralize(shards, 'shard')}")

    def on_progress(self, read: int) -> None:
        self._read = read
        if self._table and time.monotonic() - self._drawn >= _REDRAW_S:
            self._draw()

    def finish(self) -> None:
        if self._table and self._total:
            self._draw()

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        elapsed = self._drawn - self._started
        left = elapsed * (self._total - self._read) / self._read if self._read else 0.0
        if self._table:
            bar, amount = progress_bar(self._read, self._total), size_text(self._read)
            self._table.draw([f"{bar}  {amount} of {size_text(self._total)}, {left:.0f} s left"])
