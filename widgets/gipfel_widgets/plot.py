"""A figure of samples as a value in a notebook: it shows itself with or without a kernel."""

import base64
from typing import Any

from gipfel_extension.telemetry.figures.activity import saturation_figure
from gipfel_extension.telemetry.figures.clock import with_utc_text
from gipfel_extension.telemetry.figures.image import small_image, static_image
from gipfel_extension.telemetry.figures.saved import saved_figure
from gipfel_extension.telemetry.metrics import UserMetrics
from gipfel_extension.telemetry.sample import SampleTable

PLOTLY = "application/vnd.plotly.v1+json"

#: A screen's pixels for one of the figure; more would be the larger part of a notebook's file.
_SCALE = 0.8
_GROUND = {False: "#ffffff", True: "#1a1a1a"}


class SaturationPlot:
    """The plots of a table of samples.

    Parameters
    ----------
    window_s
        Seconds before the newest sample that the time axis shows.
    dark
        Colours for a dark ground.
    metrics
        The user's own metrics, drawn below.
    """

    def __init__(
        self, table: SampleTable, *, window_s: float, dark: bool = False, metrics: UserMetrics | None = None
    ) -> None:
        self.simulated = table.simulated
        self._drawn = saturation_figure(table, window_s=window_s, dark=dark, metrics=metrics)
        # The ink is the author's; on a ground of the reader's theme it might not be legible.
        self._drawn["layout"]["paper_bgcolor"] = _GROUND[dark]
        # The top margin has room for the legend; plotly.js would reserve it a second time.
        self._drawn["layout"]["margin"] |= {"autoexpand": False}
        #: For ``plotly.graph_objects.Figure(...)``.
        self.figure = with_utc_text(self._drawn)
        self._text = describe(table)

    def png(self, *, width: int = 900) -> bytes:
        """The same plots as an image, drawn without a browser."""
        return static_image(self._drawn, width=width)

    def _repr_mimebundle_(self, **_: object) -> dict[str, Any]:
        return bundle(self._drawn, self._text)

    def __repr__(self) -> str:
        return self._text


def on_white(figure: dict[str, Any]) -> dict[str, Any]:
    """The figure on white, whatever the reader's theme: its ink is made for that."""
    return {**figure, "layout": {**figure["layout"], "paper_bgcolor": _GROUND[False]}}


def bundle(figure: dict[str, Any], text: str) -> dict[str, Any]:
    """A figure in every form that a notebook's reader may know, small enough for a notebook's file."""
    saved = saved_figure(figure)
    image = base64.b64encode(small_image(static_image(saved, scale=_SCALE))).decode()
    return {PLOTLY: with_utc_text(saved), "image/png": image, "text/plain": text}


def describe(table: SampleTable) -> str:
    """One line for readers without pictures."""
    if not table.devices:
        return "GPU and host activity: nothing was recorded."
    gpus, hosts = len(table.gpus), len(table.hosts)
    parts = [f"{gpus} GPU{'s' if gpus != 1 else ''}"] if gpus else []
    parts += ["host" if hosts == 1 else f"{hosts} hosts"] if hosts else []
    simulated = [device.simulated for device in table.devices]
    mark = "" if not any(simulated) else " (simulated)" if all(simulated) else " (partly simulated)"
    return f"GPU and host activity{mark}: {' and '.join(parts)}, {table.rows} samples."
