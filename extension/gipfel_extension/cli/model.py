"""``gipfel model``: convert checkpoints to a format that only holds tensors."""

import os
from pathlib import Path

import click

from .terminal import examples, report_line


@click.group(epilog=examples("gipfel model convert checkpoint.pt -o weights.safetensors"))
def model() -> None:
    """Convert checkpoints of others, so that loading them can't run code; see also `gipfel scan`."""


@model.command(
    epilog=examples(
        "gipfel model convert pytorch_model.bin",
        "gipfel model convert checkpoint.pt -o weights.safetensors",
    )
)
@click.argument("source", metavar="FILE", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="By default FILE with the ending .safetensors; it must not exist.",
)
@click.option("--json", "as_document", is_flag=True, help="One JSON document on stdout, nothing else.")
def convert(source: Path, *, output: Path | None, as_document: bool) -> int:
    """Convert a checkpoint of torch or NumPy to safetensors, which holds tensors and nothing else.

    It is scanned first; a malicious one is not opened. It is read in a sandbox (bubblewrap) without network,
    without writable files and without your home directory, by torch's loader for weights only. Values that
    are not tensors, such as a step number, are counted and left out.

    Exit status: 0 converted, 1 not.
    """
    from ..gate.models.convert import convert as convert_model  # noqa: PLC0415 - --help can do without

    target = output or source.with_suffix(".safetensors")
    made = convert_model(source, target, os.environ)
    if as_document:
        click.echo(made.model_dump_json())
        return 0
    report_line(f"{made.path}: {made.tensors} tensors, {made.size / 1e6:.1f} MB.")
    if made.not_tensors:
        report_line(
            f"Left out, since they are not tensors: {made.not_tensors}, such as {made.examples[:100]}."
        )
    return 0
