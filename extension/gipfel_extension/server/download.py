"""A stretch of a run as a file: samples as Parquet or CSV, its time series as an image."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from ..telemetry.figures.gpu_lines import time_series_figure
from ..telemetry.figures.image import static_image
from ..telemetry.figures.job_lines import host_figure
from ..telemetry.figures.lines import gpus_of
from ..telemetry.store.export import write_export
from .history import Stretch

CONTENT_TYPES = {"parquet": "application/vnd.apache.parquet", "csv": "text/csv", "png": "image/png"}
_CHUNK_BYTES = 1 << 18


def content_of(stretch: Stretch, kind: str) -> Iterator[bytes]:
    """The file in pieces; `kind` is one of :data:`CONTENT_TYPES`."""
    if kind == "png":
        draw = time_series_figure if gpus_of(stretch.overview) else host_figure
        yield static_image(draw(stretch.overview))
        return
    with tempfile.TemporaryDirectory(prefix="gipfel-") as folder:
        path = Path(folder) / f"samples.{kind}"
        write_export(stretch.samples(), path)
        with path.open("rb") as file:
            while piece := file.read(_CHUNK_BYTES):
                yield piece
