"""Values that show themselves as plots or tables in a notebook, also in a saved one without a kernel.

`SaturationPlot` plots samples, `SaturationSummary` is a table of their statistics, and `PlanTable` is the
layout of a model on GPUs, computed by `plan`.
"""

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np

from gipfel_extension.cli.terminal import table_lines
from gipfel_extension.telemetry.figures.activity import saturation_figure
from gipfel_extension.telemetry.figures.image import small_image, static_image
from gipfel_extension.telemetry.figures.palette import PAGE
from gipfel_extension.telemetry.figures.saved import saved_figure, with_utc_text
from gipfel_extension.telemetry.figures.static_html import fragment, items, table, tag
from gipfel_extension.telemetry.metric_table import METRICS
from gipfel_extension.telemetry.sample import Device, SampleTable
from gipfel_extension.telemetry.user_metrics import UserMetrics
from gipfel_extension.training import layout_plan as planning
from gipfel_extension.training.layout_plan import ESTIMATE, gigabytes, lines_of, name_of

PLOTLY = "application/vnd.plotly.v1+json"

#: Scale of images in a notebook's file, which limits its size.
_SCALE = 0.8
_HEAD = ("device", "metric", "mean", "p10", "max", "unit")
_NUMBERS = (2, 3, 4)
_SCALES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
__all__ = ["PlanTable", "plan"]


class SaturationPlot:
    """Plots of a table of samples.

    Parameters
    ----------
    window_s
        Length of the time axis in seconds; it ends at the newest sample.
    dark
        Colours for a dark background.
    metrics
        User metrics, drawn below.
    """

    def __init__(
        self, table: SampleTable, *, window_s: float, dark: bool = False, metrics: UserMetrics | None = None
    ) -> None:
        self.simulated = table.simulated
        self._drawn = saturation_figure(table, window_s=window_s, dark=dark, metrics=metrics)
        # The lines are coloured for this background; the reader's theme may differ.
        self._drawn["layout"]["paper_bgcolor"] = PAGE[dark]
        # The top margin already includes the legend; plotly.js would add its height again.
        self._drawn["layout"]["margin"] |= {"autoexpand": False}
        #: For ``plotly.graph_objects.Figure(...)``.
        self.figure = with_utc_text(self._drawn)
        self._text = describe(table)

    def png(self, *, width: int = 900) -> bytes:
        """Return the plots as an image, drawn without a browser."""
        return static_image(self._drawn, width=width)

    def _repr_mimebundle_(self, **_: object) -> dict[str, Any]:
        return bundle(self._drawn, self._text)

    def __repr__(self) -> str:
        return self._text


def on_white(figure: dict[str, Any]) -> dict[str, Any]:
    """Return the figure on a white background, independent of the reader's theme."""
    return {**figure, "layout": {**figure["layout"], "paper_bgcolor": PAGE[False]}}


def bundle(figure: dict[str, Any], text: str) -> dict[str, Any]:
    """Return a figure as plotly JSON, PNG and text, small enough for a notebook's file."""
    saved = saved_figure(figure)
    image = base64.b64encode(small_image(static_image(saved, scale=_SCALE))).decode()
    return {PLOTLY: with_utc_text(saved), "image/png": image, "text/plain": text}


def describe(table: SampleTable) -> str:
    """Return a description of the samples in one line, for frontends without images."""
    if not table.devices:
        return "GPU and host activity: nothing was recorded."
    gpus, hosts = len(table.gpus), len(table.hosts)
    parts = [f"{gpus} GPU{'s' if gpus != 1 else ''}"] if gpus else []
    parts += ["host" if hosts == 1 else f"{hosts} hosts"] if hosts else []
    simulated = [device.simulated for device in table.devices]
    mark = "" if not any(simulated) else " (simulated)" if all(simulated) else " (partly simulated)"
    return f"GPU and host activity{mark}: {' and '.join(parts)}, {table.rows} samples."


@dataclass(frozen=True)
class SummaryRow:
    """One metric of one device.

    ``mean``, ``p10`` and ``max`` are in the metric's ``unit`` ("1" is a fraction from 0 to 1), over the
    ``samples`` in which it was known.
    """

    device: str
    simulated: bool
    metric: str
    unit: str
    mean: float
    p10: float
    max: float
    samples: int


@dataclass(frozen=True)
class SaturationSummary:
    """Mean, 10th percentile and maximum by device and metric; a metric without values has no row."""

    rows: tuple[SummaryRow, ...]
    seconds: float
    source: str
    simulated: bool

    @classmethod
    def of(cls, table: SampleTable, *, seconds: float) -> "SaturationSummary":
        """Summarize a table that covers `seconds`."""
        several = len({device.node for device in table.devices}) > 1
        rows = []
        for device in (*table.gpus, *table.hosts):
            columns = table[device.uuid]
            for metric, unit in METRICS[device.kind].items():
                known = columns[metric][np.isfinite(columns[metric])]
                if len(known):
                    numbers = (known.mean(), np.percentile(known, 10), known.max())
                    mean, p10, most = (float(number) for number in numbers)
                    name = _name(device, several=several)
                    rows.append(SummaryRow(name, device.simulated, metric, unit, mean, p10, most, len(known)))
        return cls(tuple(rows), seconds, table.source, table.simulated)

    @property
    def caption(self) -> str:
        """Caption of the table, on one line."""
        mark = "Simulated: " if self.simulated else ""
        if not self.rows:
            return f"{mark}nothing was recorded in {self.seconds:.1f} s."
        return f"{mark}{self.seconds:.1f} s of {self.source or 'samples'}."

    def __str__(self) -> str:
        lines = table_lines([_HEAD, *map(_cells, self.rows)], right=_NUMBERS) if self.rows else []
        return "\n".join([self.caption, *lines])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        if not self.rows:
            return fragment(tag("p", self.caption))
        rows = map(_cells, self.rows)
        return fragment(table(_HEAD, rows, caption=self.caption, numbers=_NUMBERS, row_heads=True))


def _name(device: Device, *, several: bool) -> str:
    node = f" of {device.node}" if several and device.node else ""
    if device.kind == "host":
        return f"host{node}"
    # Without an index, only the UUID identifies the GPU.
    return f"GPU {device.index}{node}" if device.index is not None else f"GPU {device.uuid}"


def _cells(row: SummaryRow) -> tuple[str, ...]:
    mark = " (simulated)" if row.simulated else ""
    numbers = (row.mean, row.p10, row.max)
    factor, unit = _scale(row.unit, row.max)
    return (f"{row.device}{mark}", row.metric, *(_number(number * factor) for number in numbers), unit)


def _scale(unit: str, maximum: float) -> tuple[float, str]:
    if unit == "1":
        return 100.0, "%"
    if unit.startswith("B"):
        for size, prefix in _SCALES:
            if maximum >= size:
                return 1 / size, prefix + unit
    return 1.0, unit


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}"


class PlanTable:
    """Table of a layout plan; ``plan`` has the plan itself, with sizes in bytes and times in seconds."""

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
            rows.append(cells)
        model, checkpoint = self.plan.work.model, self.plan.checkpoint
        words = [
            f"{model.parameters / 1e9:.2f} billion parameters on {self.plan.gpus} x {self.plan.machine.name}",
            *(
                f"{each.purpose}: {gigabytes(each.bytes)} per GPU and step, {each.link}"
                for each in self.plan.traffic
            ),
            f"checkpoint {gigabytes(checkpoint.bytes)}, one every {checkpoint.interval / 60:.0f} min",
            *self.plan.notes,
            ESTIMATE,
        ]
        return fragment(table(heads, rows, numbers=range(1, len(heads))), items(words))


def plan(model: planning.Transformer | float, *, gpus: int, **options: Any) -> PlanTable:
    """Plan the layout of a model's training on GPUs: DP, TP, PP, ZeRO, memory, traffic, checkpoints.

    Parameters
    ----------
    model
        A `gipfel_extension.training.layout_plan.Transformer`, or a number of parameters such as ``7e9``.
    gpus
        Total number of GPUs; see `gipfel_extension.training.layout_plan.plan` for the other options.

    Raises
    ------
    GipfelError
        An option is not valid, or no layout fits.
    """
    return PlanTable(planning.plan(model, gpus=gpus, **options))
