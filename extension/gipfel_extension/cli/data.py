"""``gipfel data``: packs data sets into single files, verifies, compares, extends and mounts them."""

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .terminal import LiveTable, examples, report_line

if TYPE_CHECKING:
    from ..data.manifest import Summary
    from ..data.options import Plan
    from ..data.pack import PackRequest
    from ..data.source import Source

_UNREADABLE = 2
_REDRAW_S = 0.5
_UNITS = ("B", "kB", "MB", "GB", "TB")

_path = click.Path(path_type=Path)
_json_option = click.option(
    "--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else."
)


@click.group(
    epilog=examples(
        "gipfel data pack ~/imagenet /scratch/imagenet.sqsh",
        "gipfel data verify /scratch/imagenet.sqsh",
        "gipfel data mount /scratch/imagenet.sqsh --at /data",
    )
)
def data() -> None:
    """Pack many small files into one file that containers mount, and check it.

    Many small files are slow on a shared file system; a SquashFS image is a single file there. Programs read
    the same paths as before.
    """


def _packing_options(command: Any) -> Any:
    for option in (
        click.option("--for", "access", type=click.Choice(["random", "sequential"]), default="random",
                     show_default=True, help="How programs read the files."),
        click.option("--compression", type=click.Choice(["auto", "none", "zstd", "gzip"]), default="auto",
                     show_default=True, help="auto stores data that a sample shows to be compressed."),
        click.option("--readers", type=click.IntRange(1, 64), default=8, show_default=True, metavar="N",
                     help="Number of files to read at the same time."),
        _json_option,
    ):  # fmt: skip
        command = option(command)
    return command


@data.command(
    epilog=examples(
        "gipfel data pack ~/imagenet /scratch/imagenet.sqsh",
        "gipfel data pack ~/tokens tokens.sqsh --for sequential",
        "SOURCE_DATE_EPOCH=1700000000 gipfel data pack ~/imagenet imagenet.sqsh",
    )
)
@click.argument("source", metavar="DIR", type=_path)
@click.argument("target", metavar="OUT.sqsh", type=_path)
@click.option("--replace", is_flag=True, help="Replace OUT.sqsh if it exists.")
@_packing_options
def pack(*, source: Path, target: Path, replace: bool, as_json: bool, **options: Any) -> int:
    """Pack a directory into a SquashFS image, with a manifest inside and hashes beside it (OUT.sqsh.json).

    The same names, contents and modes give the same bytes: times are 0 or SOURCE_DATE_EPOCH, the owner is
    root. Hard links, sparse files, user.* attributes and any names are kept. What can't be packed is named:
    devices, pipes, set-user-id files, unreadable files, and files that change meanwhile.

    Exit status: 0 packed, 1 not packed.
    """
    from ..data.pack import PackRequest  # noqa: PLC0415 - pyarrow, which --help can do without

    request = PackRequest(source=source, target=target, replace=replace, environment=os.environ, **options)
    return _pack(request, as_json=as_json)


@data.command(epilog=examples("gipfel data add /scratch/imagenet.sqsh ~/new-images"))
@click.argument("image", metavar="FILE.sqsh", type=_path)
@click.argument("source", metavar="DIR", type=_path)
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


@data.command(
    epilog=examples("gipfel data verify imagenet.sqsh", "gipfel data verify imagenet.sqsh --sample 5")
)
@click.argument("image", metavar="FILE.sqsh", type=_path)
@click.option("--sample", "percent", type=click.FloatRange(0, 100, min_open=True), default=100.0,
              metavar="PERCENT", help="Read only this share of the image, chosen at random.")  # fmt: skip
@_json_option
def verify(*, image: Path, percent: float, as_json: bool) -> int:
    """Check every byte of a packed data set, and that it holds what its manifest says and nothing else.

    Exit status: 0 whole and unchanged, 1 not, 2 it can't be read.
    """
    from gipfel_cluster.model import GipfelError  # noqa: PLC0415

    from ..data.verify import verify as verify_image  # noqa: PLC0415

    try:
        found = verify_image(image, percent=percent)
    except GipfelError as error:
        report_line(str(error))
        return _UNREADABLE
    if as_json:
        click.echo(found.model_dump_json())
    else:
        for problem in found.problems:
            click.echo(problem)
        if found.valid:
            part = "" if percent >= 100 else f" ({percent:g} % of it)"
            click.echo(
                f"{image.name} is whole{part}: {found.chunks} chunks, {found.files} files, root {found.root}"
            )
    return 0 if found.valid else 1


@data.command(epilog=examples("gipfel data show imagenet.sqsh", "gipfel data show imagenet.sqsh --files"))
@click.argument("image", metavar="FILE.sqsh", type=_path)
@click.option("--files", "list_files", is_flag=True, help="List kind, mode, size and path of every entry.")
@_json_option
def show(*, image: Path, list_files: bool, as_json: bool) -> int:
    """Show what a packed data set holds, where it came from, and its root hash.

    Exit status: 0 shown, 2 it can't be read.
    """
    from gipfel_cluster.model import GipfelError  # noqa: PLC0415

    from ..data.layers import required_summary  # noqa: PLC0415
    from ..data.manifest import shown  # noqa: PLC0415
    from ..data.verify import load_entries  # noqa: PLC0415

    try:
        summary = required_summary(image)
        entries = load_entries(image) if list_files else {}
    except GipfelError as error:
        report_line(str(error))
        return _UNREADABLE
    if as_json:
        document = summary.model_dump(mode="json", exclude={"chunks"})
        listed = [json.loads(each.line()) for each in entries.values()]
        click.echo(json.dumps(document | ({"entries": listed} if list_files else {})))
        return 0
    for line in _summary_lines(summary):
        click.echo(line)
    for entry in entries.values():
        click.echo(f"{entry.kind:<9} {entry.mode:04o} {entry.size:>12}  {shown(entry.path)}")
    return 0


@data.command(
    epilog=examples("gipfel data diff old.sqsh new.sqsh", "gipfel data diff imagenet.sqsh ~/imagenet")
)
@click.argument("first", metavar="FILE|DIR", type=_path)
@click.argument("second", metavar="FILE|DIR", type=_path)
@_json_option
def diff(*, first: Path, second: Path, as_json: bool) -> int:
    """Compare two data sets by content: A path is added, R removed, M changed.

    Exit status: 0 the same, 1 different, 2 one can't be read.
    """
    from gipfel_cluster.model import GipfelError  # noqa: PLC0415

    from ..data.compare import compare  # noqa: PLC0415

    try:
        found = compare(first, second)
    except GipfelError as error:
        report_line(str(error))
        return _UNREADABLE
    if as_json:
        click.echo(found.model_dump_json())
    else:
        for letter, paths in (("A", found.added), ("R", found.removed), ("M", found.changed)):
            for path in paths:
                click.echo(f"{letter} {path}")
    return 0 if found.is_empty else 1


@data.command(epilog=examples("gipfel data mount imagenet.sqsh --at /data"))
@click.argument("image", metavar="FILE.sqsh", type=_path)
@click.option("--at", "destination", default="/data", show_default=True, metavar="PATH",
              help="Where programs in the container find the files.")  # fmt: skip
@_json_option
def mount(*, image: Path, destination: str, as_json: bool) -> int:
    """Print the line of an EDF that mounts a packed data set and its layers.

    Layers are mounted beside the image: at PATH.1, PATH.2 and so on.

    Exit status: 0 printed, 1 the image is not whole or can't be mounted there.
    """
    from gipfel_cluster.model import GipfelError  # noqa: PLC0415

    from ..data.layers import mount_lines  # noqa: PLC0415

    if not destination.startswith("/") or any(each in destination for each in ':$"\\\n'):
        raise GipfelError(f"{destination!r} is not a path in a container.", "Give one such as /data.")
    lines = mount_lines(image, destination.rstrip("/") or "/")
    if as_json:
        click.echo(json.dumps({"mounts": lines}))
    else:
        click.echo(f"mounts = {json.dumps(lines, ensure_ascii=False)}")
    return 0


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
        f"{request.target}: {summary.files} files, {_size(summary.data_bytes)} in {_size(summary.bytes)}"
    )
    click.echo(f"root {summary.root}")
    return 0


class _Progress:
    """Plan and progress on stderr; the estimate of the time left is by bytes."""

    def __init__(self) -> None:
        self._table = LiveTable() if LiveTable.possible() else None
        self._total = self._read = 0
        self._started = self._drawn = time.monotonic()

    def on_plan(self, source: "Source", plan: "Plan") -> None:
        for note in source.notes:
            report_line(f"note: {note}.")
        self._total = source.data_bytes
        how = (
            "stored" if plan.packing.compression == "none" else f"compressed with {plan.packing.compression}"
        )
        report_line(
            f"{len(source.files())} files, {_size(self._total)}: {how}, about {_size(plan.estimated_bytes)}, "
            f"for {plan.packing.access} access"
        )

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
        share = 100 * self._read / self._total if self._total else 100
        if self._table:
            self._table.draw(
                [f"{share:3.0f} %  {_size(self._read)} of {_size(self._total)}, {left:.0f} s left"]
            )


def _summary_lines(summary: "Summary") -> list[str]:
    packing = summary.packing
    values = {
        "files": str(summary.files),
        "data": _size(summary.data_bytes),
        "image": _size(summary.bytes),
        "for": f"{packing.access} access, {packing.compression}, blocks of {packing.block_size >> 10} KiB",
        "source": summary.origin.source,
        "packed": f"{summary.origin.packed} by {summary.origin.packer}",
        "extends": f"{summary.base.file}, root {summary.base.root}" if summary.base else "",
        "name": str((summary.croissant or {}).get("name", "")),
        "root": summary.root,
    }
    return [_printable(f"{name:<8} {value}") for name, value in values.items() if value]


def _printable(text: str) -> str:
    """Return a text without characters that move the cursor."""
    return "".join(each if each.isprintable() else "?" for each in text)


def _size(count: float) -> str:
    for unit in _UNITS:
        if count < 1000 or unit == _UNITS[-1]:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return ""
