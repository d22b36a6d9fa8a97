"""`plan`: how a model would be laid out on GPUs, as a table in a notebook."""

import html
from typing import Any

from gipfel_extension.training import plan as planning
from gipfel_extension.training.plan.lines import ESTIMATE, gigabytes, lines_of, name_of

__all__ = ["PlanTable", "plan"]


class PlanTable:
    """A plan that shows itself as a table; `plan` is the value behind it, with bytes and seconds."""

    def __init__(self, found: planning.Plan) -> None:
        self.plan = found

    def __repr__(self) -> str:
        return "\n".join(lines_of(self.plan))

    def _repr_html_(self) -> str:
        heads = (
            "layout",
            "weights",
            "gradients",
            "optimizer",
            "activations",
            "peak",
            "tokens/s",
            "efficiency",
        )
        rows = []
        for each in self.plan.candidates:
            memory = each.memory
            sizes = (memory.weights, memory.gradients, memory.optimizer, memory.activations + memory.logits)
            cells = [name_of(each), *map(gigabytes, (*sizes, memory.total))]
            cells += [f"{each.tokens_per_second:,.0f}", f"{each.step.efficiency:.0%}"]
            rows.append("".join(f"<td>{html.escape(cell)}</td>" for cell in cells))
        head = "".join(f"<th>{each}</th>" for each in heads)
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        model, checkpoint = self.plan.work.model, self.plan.checkpoint
        words = [
            f"{model.parameters / 1e9:.2f} billion parameters on {self.plan.gpus} x {self.plan.machine.name}",
            *(
                f"{each.what}: {gigabytes(each.bytes)} per GPU and step, {each.link}"
                for each in self.plan.traffic
            ),
            f"checkpoint {gigabytes(checkpoint.bytes)}, one every {checkpoint.interval / 60:.0f} min",
            *self.plan.notes,
            ESTIMATE,
        ]
        said = "".join(f"<li>{html.escape(word)}</li>" for word in words)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><ul>{said}</ul>"


def plan(model: planning.Transformer | float, *, gpus: int, **options: Any) -> PlanTable:
    """Lay a model's training out on GPUs: DP x TP x PP x ZeRO with memory, traffic, checkpoints and scaling.

    Parameters
    ----------
    model
        A `gipfel_extension.training.plan.Transformer`, or a number of parameters such as ``7e9``.
    gpus
        GPUs in all; `gipfel_extension.training.plan.plan` says the other options.

    Raises
    ------
    GipfelError
        A number can't be used, or nothing fits.
    """
    return PlanTable(planning.plan(model, gpus=gpus, **options))
