"""What is no line in an image: a heat map, bars, areas on one another, and marks."""

from collections.abc import Sequence
from typing import Any

import numpy as np

_SMALL = 7


def draw_heat(page: Any, plot: Any, trace: dict[str, Any], ink: str) -> None:
    """A row per device, a column per bucket; missing cells stay empty."""
    from matplotlib.colors import LinearSegmentedColormap  # noqa: PLC0415 - slow to import, and seldom needed

    cells = np.array([[np.nan if cell is None else cell for cell in row] for row in trace["z"]], float)
    first, step = trace["x0"] - trace["dx"] / 2, trace["dx"]
    scale = LinearSegmentedColormap.from_list("gipfel", [tuple(stop) for stop in trace["colorscale"]])
    known = cells[np.isfinite(cells)]
    most = trace.get("zmax", float(known.max()) if len(known) else 1.0)
    limits = plot.get_xlim(), plot.get_ylim()
    drawn = plot.imshow(
        cells,
        aspect="auto",
        interpolation="nearest",
        origin="lower",
        extent=(first, first + step * cells.shape[1], -0.5, len(cells) - 0.5),
        cmap=scale,
        vmin=trace["zmin"],
        vmax=most,
    )
    plot.set_xlim(limits[0])
    plot.set_ylim(limits[1])
    plot.grid(visible=False)
    box = plot.get_position()
    plot.set_position((box.x0, box.y0, box.width - 0.07, box.height))
    beside = page.add_axes((box.x1 - 0.055, box.y0, 0.012, box.height))
    bar = page.colorbar(drawn, cax=beside)
    bar.outline.set_visible(False)
    given = trace["colorbar"]
    if "tickvals" in given:
        bar.set_ticks(given["tickvals"], labels=given["ticktext"])
    bar.ax.tick_params(colors=ink, labelsize=_SMALL, length=0)


def draw_bars(plot: Any, trace: dict[str, Any], ink: str) -> None:
    """Horizontal bars, each from its beginning, with its number at its end."""
    places = range(len(trace["y"]))
    plot.barh(
        places,
        trace["x"],
        left=trace["base"],
        color=trace["marker"]["color"],
        hatch=[shape * 2 for shape in trace["marker"]["pattern"]["shape"]],
        edgecolor=ink,
        linewidth=0.3,
        height=0.7,
    )
    plot.set_yticks(list(places), trace["y"])
    plot.set_ylim(len(trace["y"]) - 0.5, -0.5)
    for place, (begin, length, text) in enumerate(zip(trace["base"], trace["x"], trace["text"], strict=True)):
        plot.text(begin + length + 0.7, place, text, va="center", fontsize=_SMALL, color=ink)


def draw_areas(plot: Any, traces: Sequence[dict[str, Any]]) -> None:
    """Areas piled up in the order of the traces; a gap where nothing is known."""
    below: Any = 0.0
    for trace in traces:
        values = np.array([np.nan if value is None else value for value in trace["y"]], float)
        above = below + values
        hatch = trace.get("fillpattern", {}).get("shape", "")
        base = np.broadcast_to(below, len(values))
        plot.fill_between(
            trace["x"],
            base,
            above,
            color=trace["fillcolor"],
            linewidth=0,
            hatch=hatch * 2,
            edgecolor="#00000055",
        )
        below = above


def draw_shapes(plot: Any, shapes: Sequence[dict[str, Any]]) -> None:
    """Marks through a plot: lines of events, and stretches that are set off."""
    limits = plot.get_xlim()
    for shape in shapes:
        line = shape["line"]
        if shape["type"] == "line":
            plot.axvline(shape["x0"], color=line["color"], linestyle=":", linewidth=0.8)
        else:
            plot.axvspan(shape["x0"], shape["x1"], color=line["color"], alpha=shape["opacity"], linewidth=0)
    plot.set_xlim(limits)
