"""A stretch of a run as a file: samples as Parquet or CSV, its time series as an image."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..telemetry.figures.activity import static_image
from ..telemetry.figures.gpu_lines import time_series_figure
from ..telemetry.figures.job_lines import host_figure
from ..telemetry.figures.lines import gpus_of
from ..telemetry.sample import METRICS, SampleTable
from ..telemetry.store.segments import write_parquet
from .history import Stretch

CONTENT_TYPES = {"parquet": "application/vnd.apache.parquet", "csv": "text/csv", "png": "image/png"}
_CHUNK_BYTES = 1 << 18


def content_of(stretch: Stretch, kind: str) -> Iterator[bytes]:
    """The file in pieces; `kind` is one of :data:`CONTENT_TYPES`."""
    if kind == "png":
        draw = time_series_figure if gpus_of(stretch.overview) else host_figure
        yield static_image(draw(stretch.overview))
    elif kind == "parquet":
        with tempfile.TemporaryDirectory(prefix="gipfel-") as folder:
            path = Path(folder) / "samples.parquet"
            write_parquet(stretch.samples(), path)
            with path.open("rb") as file:
                while piece := file.read(_CHUNK_BYTES):
                    yield piece
    else:
        yield from _csv(stretch.samples())


def _csv(table: SampleTable) -> Iterator[bytes]:
    """A line per device and time, sorted by device; what is missing is empty, rates are per second."""
    metrics = tuple(dict.fromkeys(metric for kind in METRICS.values() for metric in kind))
    yield (",".join(("time_ns", "node", "device", "kind", "index", *metrics)) + "\r\n").encode()
    for device in table.devices:
        columns = table.of(device.uuid)
        index = "" if device.index is None else str(device.index)
        head = [_field(each) for each in (device.node, device.uuid, device.kind, index)]
        own = [columns.get(metric) for metric in metrics]
        for row, time_ns in enumerate(columns["time_ns"].tolist()):
            values = ["" if c is None or not np.isfinite(c[row]) else f"{c[row]:.6g}" for c in own]
            yield (",".join((str(time_ns), *head, *values)) + "\r\n").encode()


def _field(text: str) -> str:
    """A field that no reader takes for several, and no spreadsheet for a formula."""
    safe = "".join(letter if letter.isprintable() else " " for letter in text)
    safe = f"'{safe}" if safe[:1] in ("=", "+", "-", "@") else safe
    return '"' + safe.replace('"', '""') + '"' if any(c in safe for c in ",\"'") else safe
