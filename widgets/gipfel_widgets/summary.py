"""A table of what was measured: mean, 10th percentile and maximum of each metric by device."""

import html
from dataclasses import dataclass

import numpy as np

from gipfel_extension.telemetry.sample import METRICS, Device, SampleTable

_HEAD = ("device", "metric", "mean", "p10", "max", "unit")
_TOP = "vertical-align:top"
_SCALES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


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
    """Rows by device and metric; a metric that was never known has none."""

    rows: tuple[SummaryRow, ...]
    seconds: float
    source: str
    simulated: bool

    @classmethod
    def of(cls, table: SampleTable, *, seconds: float) -> "SaturationSummary":
        """Summarize a table that covers so many seconds."""
        several = len({device.node for device in table.devices}) > 1
        rows = []
        for device in (*table.gpus, *table.hosts):
            columns = table.of(device.uuid)
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
        """What the table is about, on one line."""
        mark = "Simulated: " if self.simulated else ""
        if not self.rows:
            return f"{mark}nothing was recorded in {self.seconds:.1f} s."
        return f"{mark}{self.seconds:.1f} s of {self.source or 'samples'}."

    def __str__(self) -> str:
        lines = [_HEAD, *(_cells(row) for row in self.rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(_HEAD))]
        text = [
            "  ".join(
                cell.rjust(width) if 2 <= column <= 4 else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in (lines if self.rows else [])
        ]
        return "\n".join([self.caption, *text])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        if not self.rows:
            return f"<p>{html.escape(self.caption)}</p>"
        head = "".join(f'<th scope="col">{name}</th>' for name in _HEAD)
        body, shown = [], ""
        for row in self.rows:
            device, *cells = _cells(row)
            count = sum(_cells(other)[0] == device for other in self.rows)
            label = f'<th scope="rowgroup" rowspan="{count}" style="{_TOP}">{html.escape(device)}</th>'
            body.append(
                f"<tr>{label if device != shown else ''}"
                + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
                + "</tr>"
            )
            shown = device
        caption = f"<caption>{html.escape(self.caption)}</caption>"
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _name(device: Device, *, several: bool) -> str:
    node = f" of {device.node}" if several and device.node else ""
    if device.kind == "host":
        return f"host{node}"
    # What tells two GPUs of one index apart is the UUID.
    return f"GPU {device.index}{node}" if device.index is not None else f"GPU {device.uuid}"


def _cells(row: SummaryRow) -> tuple[str, ...]:
    mark = " (simulated)" if row.simulated else ""
    numbers = (row.mean, row.p10, row.max)
    factor, unit = _scale(row.unit, row.max)
    return (f"{row.device}{mark}", row.metric, *(_number(number * factor) for number in numbers), unit)


def _scale(unit: str, most: float) -> tuple[float, str]:
    if unit == "1":
        return 100.0, "%"
    if unit.startswith("B"):
        for size, prefix in _SCALES:
            if most >= size:
                return 1 / size, prefix + unit
    return 1.0, unit


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}"
