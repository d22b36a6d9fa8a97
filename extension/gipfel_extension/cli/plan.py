"""``gipfel plan``: plans the parallel layout of a model on GPUs."""

import json
import re
from typing import Any

import click

from .terminal import examples

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kKmMbBtT]?)")
_FACTORS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}


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
    from ..training.layout_plan import planner  # noqa: PLC0415 - pydantic

    shape = {name: options.pop(name) for name in ("layers", "hidden", "heads", "kv_heads", "ffn")}
    more = {name: options.pop(name) for name in ("vocabulary", "gated")}
    found = planner.plan(_model(model, shape, more), **options)
    if as_document:
        click.echo(json.dumps(planner.document_of(found)))
    else:
        for line in planner.lines_of(found):
            click.echo(line)
    return 0


def _model(size: float | None, shape: dict[str, int | None], more: dict[str, Any]) -> Any:
    from pydantic import ValidationError  # noqa: PLC0415

    from gipfel_cluster.model import GipfelError  # noqa: PLC0415

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
        why = error.errors(include_url=False, include_input=False)[0]["msg"].removeprefix("Value error, ")
        raise GipfelError(f"The transformer is not valid: {why}.", "See `gipfel plan --help`.") from None
