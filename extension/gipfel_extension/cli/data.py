"""``gipfel data``: packs data sets into single files, verifies, compares, extends, mounts and stages them."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec

import click

from .data_pack import add, fetch, pack, remove
from .data_stage import stage, status
from .data_try import try_command
from .runs import size_text
from .terminal import examples, report_line

if TYPE_CHECKING:
    from ..data.manifest import Summary

_UNREADABLE = 2
_P = ParamSpec("_P")

_path = click.Path(path_type=Path)
_json_option = click.option(
    "--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else."
)


def _exit_2_if_unreadable(command: Callable[_P, int]) -> Callable[_P, int]:
    """Return a command with exit status 2, and the problem on stderr, where a data set can't be read."""

    @functools.wraps(command)
    def run(*arguments: _P.args, **options: _P.kwargs) -> int:
        from gipfel_cluster.model import GipfelError  # noqa: PLC0415 - pydantic, which --help can do without

        try:
            return command(*arguments, **options)
        except GipfelError as error:
            report_line(str(error))
            return _UNREADABLE

    return run


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


for _command in (fetch, pack, add, remove, stage, status, try_command):
    data.add_command(_command)


@data.command(
    epilog=examples("gipfel data verify imagenet.sqsh", "gipfel data verify imagenet.sqsh --sample 5")
)
@click.argument("image", metavar="FILE.sqsh", type=_path)
@click.option("--sample", "percent", type=click.FloatRange(0, 100, min_open=True), default=100.0,
              metavar="PERCENT", help="Read only this share of the image, chosen at random.")  # fmt: skip
@_json_option
@_exit_2_if_unreadable
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
        for problem in found.problems:
            click.echo(problem)
        if found.valid:
            part = "" if percent >= 100 or is_shards else f" ({percent:g} % of it)"
            pieces = "shards" if is_shards else "chunks"
            click.echo(
                f"{image.name} is whole{part}: {found.chunks} {pieces}, {found.files} files, "
                f"root {found.root}"
            )
    return 0 if found.valid else 1


@data.command(epilog=examples("gipfel data show imagenet.sqsh", "gipfel data show imagenet.sqsh --files"))
@click.argument("image", metavar="FILE.sqsh", type=_path)
@click.option("--files", "list_files", is_flag=True, help="List kind, mode, size and path of every entry.")
@_json_option
@_exit_2_if_unreadable
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
        click.echo(json.dumps(document | ({"entries": listed} if list_files else {})))
        return 0
    for line in _summary_lines(summary):
        click.echo(line)
    for entry in entries.values():
        click.echo(f"{entry.kind:<9} {entry.mode:04o} {entry.size:>12}  {display_path(entry.path)}")
    return 0


@data.command(
    epilog=examples("gipfel data diff old.sqsh new.sqsh", "gipfel data diff imagenet.sqsh ~/imagenet")
)
@click.argument("first", metavar="FILE|DIR", type=_path)
@click.argument("second", metavar="FILE|DIR", type=_path)
@_json_option
@_exit_2_if_unreadable
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


def _summary_lines(summary: "Summary") -> list[str]:
    packing = summary.packing
    values = {
        "files": str(summary.files),
        "data": size_text(summary.data_bytes),
        "image": size_text(summary.bytes),
        "for": f"{packing.access} access, {packing.compression}, blocks of {packing.block_size >> 10} KiB",
        "source": summary.origin.source,
        "packed": f"{summary.origin.packed} by {summary.origin.packer}",
        "extends": f"{summary.base.file}, root {summary.base.root}" if summary.base else "",
        "removed": f"{sum(each.paths for each in summary.removals)} paths" if summary.removals else "",
        "name": str((summary.croissant or {}).get("name", "")),
        "root": summary.root,
    }
    return [_printable(f"{name:<8} {value}") for name, value in values.items() if value]


def _printable(text: str) -> str:
    """Return a text without characters that move the cursor."""
    return "".join(each if each.isprintable() else "?" for each in text)
