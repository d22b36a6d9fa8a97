"""PNG images of figures by matplotlib, without browser and display: lines, heat maps, bars, areas, shapes."""

import io
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .palette import PAGE

_SMALL_FONT = 8
_DPI = 100
#: Width of a figure in pixels below which its legend has two columns.
_NARROW = 500
_FEW_COLORS = 32
_MAX_COLUMNS = 8
#: An axis with values from this one on has labels with the suffixes k, M and G.
_LONG_NUMBER = 10_000
_MARKERS = {"circle": "o", "star": "*", "diamond-open": "D"}
_STYLES: dict[str, Any] = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-.", "longdash": (0, (8, 3))}


def static_image(figure: dict[str, Any], *, width: int = 900, scale: float = 1.5) -> bytes:
    """Return a PNG of a figure of this package, with titles, legend and event marks.

    Parameters
    ----------
    width
        Width in pixels before scaling; the height is that of the layout.

    Returns
    -------
    bytes
        PNG with a background that suits the layout's font color.
    """
    # Imported here because it is slow to import and seldom needed.
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    layout = figure["layout"]
    height = float(layout.get("height", 450))
    ink = layout.get("font", {}).get("color", "#303030")
    page = Figure(figsize=(width / _DPI, height / _DPI), dpi=_DPI * scale)
    # Light ink is meant for a dark page.
    page.set_facecolor(PAGE[int(ink[1:3], 16) >= 128])
    FigureCanvasAgg(page)
    frame = _Frame(layout, width, height)
    plots = {key: _plot(page, frame, layout, key, ink) for key in layout if key.startswith("yaxis")}
    for key, plot in plots.items():
        traces = [trace for trace in figure["data"] if "yaxis" + trace.get("yaxis", "y")[1:] == key]
        _fill(page, plot, layout[key], traces, ink)
        own = f"y{key.removeprefix('yaxis')} domain"
        _draw_shapes(plot, [shape for shape in layout.get("shapes", ()) if shape["yref"] == own])
    for key in layout:
        if key.startswith("legend"):
            _legend(page, frame, [t for t in figure["data"] if t.get("legend") == key], layout[key], ink)
    for note in layout.get("annotations", []):
        _annotate(page, frame, plots, note, ink)
    title = layout.get("title", {}).get("text", "")
    page.text(frame.left, 1 - 8 / height, title, va="top", ha="left", fontsize=10, color=ink)
    output = io.BytesIO()
    page.savefig(output, format="png")
    return output.getvalue()


def small_image(image: bytes) -> bytes:
    """Return a PNG with fewer colors for notebook files; it is about a fifth as large."""
    from PIL import Image  # noqa: PLC0415 - slow to import, and seldom needed

    output = io.BytesIO()
    Image.open(io.BytesIO(image)).convert("RGB").quantize(_FEW_COLORS).save(output, "png", optimize=True)
    return output.getvalue()


def stacked_images(images: Sequence[bytes]) -> bytes:
    """Return PNGs of equal width stacked vertically in one PNG."""
    from matplotlib.image import imread, imsave  # noqa: PLC0415 - slow to import, and seldom needed

    pixels = [imread(io.BytesIO(image), format="png") for image in images]
    output = io.BytesIO()
    imsave(output, np.concatenate(pixels), format="png")
    return output.getvalue()


class _Frame:
    """Area that plotly's ``paper`` coordinates cover on the page, in fractions of the page."""

    def __init__(self, layout: dict[str, Any], width: float, height: float) -> None:
        margin = layout.get("margin", {})
        self.left: float = margin.get("l", 40) / width
        self.bottom: float = margin.get("b", 40) / height
        self.width: float = 1 - self.left - margin.get("r", 10) / width
        self.height: float = 1 - self.bottom - margin.get("t", 60) / height
        self.pixels = height

    def x(self, fraction: float) -> float:
        return self.left + fraction * self.width

    def y(self, fraction: float, shift: float = 0.0) -> float:
        return self.bottom + fraction * self.height + shift / self.pixels


def _plot(page: Any, frame: _Frame, layout: dict[str, Any], key: str, ink: str) -> Any:
    y_axis = layout[key]
    x_axis = layout["xaxis" + key.removeprefix("yaxis")]
    low, high = y_axis.get("domain", [0.0, 1.0])
    plot = page.add_axes((frame.left, frame.y(low), frame.width, (high - low) * frame.height))
    plot.set_facecolor("none")
    if y_axis.get("visible") is False:
        plot.set_axis_off()
        return plot
    plot.grid(visible=True, color=y_axis.get("gridcolor", "#dddddd"), linewidth=0.6)
    for side in plot.spines.values():
        side.set_visible(False)
    plot.tick_params(colors=ink, labelsize=_SMALL_FONT, length=0)
    if "range" in y_axis:
        plot.set_ylim(*y_axis["range"])
    if "tickvals" in y_axis:
        plot.set_yticks(y_axis["tickvals"], y_axis.get("ticktext"))
    _time_axis(plot, x_axis, ink)
    return plot


def _fill(page: Any, plot: Any, y_axis: dict[str, Any], traces: list[dict[str, Any]], ink: str) -> None:
    kinds = {trace["type"] for trace in traces}
    if "heatmap" in kinds:
        _draw_heat(page, plot, traces[0], ink)
    elif "bar" in kinds:
        _draw_bars(plot, traces[0], ink)
    elif any("stackgroup" in trace for trace in traces):
        _draw_areas(plot, traces)
    else:
        for trace in traces:
            _draw(plot, trace)
        if "range" not in y_axis:
            _scale(plot, traces)


def _time_axis(plot: Any, x_axis: dict[str, Any], ink: str) -> None:
    if "range" not in x_axis:
        plot.set_xticks([])
        return
    first, last = x_axis["range"]
    plot.set_xlim(first, last)
    ticks, labels = x_axis.get("tickvals"), x_axis.get("ticktext")
    shown = x_axis.get("showticklabels", True)
    if x_axis.get("type") == "date":
        ticks = [first + (last - first) * part / 4 for part in (0.5, 2, 3.5)]
        labels = [f"{datetime.fromtimestamp(tick / 1000, UTC):%H:%M:%S}" if shown else "" for tick in ticks]
    plot.set_xticks(ticks, labels)
    if shown:
        plot.set_xlabel(x_axis.get("title", {}).get("text", ""), fontsize=_SMALL_FONT, color=ink, labelpad=1)


def _draw(plot: Any, trace: dict[str, Any]) -> None:
    # A missing value, None, becomes NaN.
    values = np.array(trace["y"], float)
    if trace.get("mode") == "markers":
        _draw_points(plot, trace, values)
        return
    line = trace["line"]
    times = trace.get("x")
    plot.plot(
        [trace["x0"] + index * trace["dx"] for index in range(len(values))] if times is None else times,
        values,
        color=line["color"],
        linestyle=_STYLES[line["dash"]],
        linewidth=line["width"] * 0.8,
        label=trace["name"],
    )


def _draw_points(plot: Any, trace: dict[str, Any], values: NDArray[np.float64]) -> None:
    """Draw one marker for each point, in one color or in those of a scale."""
    marker = trace["marker"]
    scale = _color_map(marker["colorscale"]) if "colorscale" in marker else None
    places, shape = np.array(trace["x"], float), _MARKERS[marker["symbol"]]
    plot.scatter(places, values, s=marker["size"] ** 2, c=marker["color"], cmap=scale, marker=shape)


def _color_map(stops: Sequence[Sequence[Any]]) -> Any:
    from matplotlib.colors import LinearSegmentedColormap  # noqa: PLC0415 - slow to import, and seldom needed

    return LinearSegmentedColormap.from_list("gipfel", [tuple(stop) for stop in stops])


def _scale(plot: Any, traces: list[dict[str, Any]]) -> None:
    values = [value for trace in traces for value in trace["y"] if value is not None]
    lowest, highest = min(values, default=0.0), max(values, default=0.0)
    plot.set_ylim(min(0.0, 1.08 * lowest), max(0.0, 1.08 * highest) or (0.0 if lowest < 0 else 1.0))
    plot.locator_params(axis="y", nbins=3)
    if max(highest, -lowest) >= _LONG_NUMBER:
        from matplotlib.ticker import EngFormatter  # noqa: PLC0415 - slow to import, and seldom needed

        plot.yaxis.set_major_formatter(EngFormatter(sep=""))


def _draw_heat(page: Any, plot: Any, trace: dict[str, Any], ink: str) -> None:
    """Draw a heat map with a row per device and a column per bucket; missing cells stay empty."""
    cells = np.array(trace["z"], float)
    first, step = trace["x0"] - trace["dx"] / 2, trace["dx"]
    known = cells[np.isfinite(cells)]
    most = trace.get("zmax", float(known.max()) if len(known) else 1.0)
    limits = plot.get_xlim(), plot.get_ylim()
    drawn = plot.imshow(
        cells,
        aspect="auto",
        interpolation="nearest",
        origin="lower",
        extent=(first, first + step * cells.shape[1], -0.5, len(cells) - 0.5),
        cmap=_color_map(trace["colorscale"]),
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
    bar.ax.tick_params(colors=ink, labelsize=_SMALL_FONT, length=0)


def _draw_bars(plot: Any, trace: dict[str, Any], ink: str) -> None:
    """Draw horizontal bars from their base, with their values at the end."""
    positions = range(len(trace["y"]))
    plot.barh(
        positions,
        trace["x"],
        left=trace["base"],
        color=trace["marker"]["color"],
        hatch=[shape * 2 for shape in trace["marker"]["pattern"]["shape"]],
        edgecolor=trace["marker"]["pattern"]["fgcolor"],
        linewidth=0,
        height=0.7,
    )
    plot.set_yticks(list(positions), trace["y"])
    plot.set_ylim(len(trace["y"]) - 0.5, -0.5)
    for position, (begin, length, text) in enumerate(
        zip(trace["base"], trace["x"], trace["text"], strict=True)
    ):
        plot.text(begin + length + 0.7, position, text, va="center", fontsize=_SMALL_FONT, color=ink)


def _draw_areas(plot: Any, traces: Sequence[dict[str, Any]]) -> None:
    """Draw stacked areas in the order of the traces; missing values are gaps."""
    below: Any = 0.0
    for trace in traces:
        above = below + np.array(trace["y"], float)
        pattern = trace.get("fillpattern", {})
        plot.fill_between(
            trace["x"],
            np.broadcast_to(below, len(above)),
            above,
            color=trace["fillcolor"],
            linewidth=0,
            hatch=pattern.get("shape", "") * 2,
            edgecolor=pattern.get("fgcolor", "none"),
        )
        below = above


def _draw_shapes(plot: Any, shapes: Sequence[dict[str, Any]]) -> None:
    """Draw lines of events and highlighted time ranges."""
    limits = plot.get_xlim()
    for shape in shapes:
        line = shape["line"]
        if shape["type"] == "line":
            plot.axvline(shape["x0"], color=line["color"], linestyle=":", linewidth=0.8)
        else:
            plot.axvspan(shape["x0"], shape["x1"], color=line["color"], alpha=shape["opacity"], linewidth=0)
    plot.set_xlim(limits)


def _legend_style(trace: dict[str, Any]) -> dict[str, Any]:
    marker = trace.get("marker", {})
    if trace["mode"] == "markers":
        color = marker["colorscale"][-2][1] if "colorscale" in marker else marker["color"]
        return {"color": color, "marker": _MARKERS[marker["symbol"]], "linestyle": "", "markersize": 4}
    line = trace["line"]
    width = 5 if "stackgroup" in trace else 1.3
    return {"color": line["color"], "linestyle": _STYLES[line["dash"]], "linewidth": width}


def _legend(page: Any, frame: _Frame, traces: list[dict[str, Any]], legend: dict[str, Any], ink: str) -> None:
    from matplotlib.lines import Line2D  # noqa: PLC0415 - slow to import, and seldom needed

    handles = [Line2D([], [], label=t["name"], **_legend_style(t)) for t in traces if t["showlegend"]]
    if not handles:
        return
    narrow = page.get_figwidth() * _DPI < _NARROW
    up = legend["y"] if legend["yref"] == "container" else frame.y(legend["y"])
    page.add_artist(
        page.legend(
            handles=handles,
            loc=f"{ {'top': 'upper', 'bottom': 'lower'}[legend['yanchor']] } {legend['xanchor']}",
            bbox_to_anchor=(frame.x(legend["x"]), up),
            ncols=2 if narrow else min(_MAX_COLUMNS, len(handles)),
            fontsize=_SMALL_FONT,
            frameon=False,
            labelcolor=ink,
            borderaxespad=0,
            borderpad=0.1,
            columnspacing=1.0,
            handlelength=2.4,
        )
    )


def _annotate(page: Any, frame: _Frame, plots: dict[str, Any], note: dict[str, Any], ink: str) -> None:
    up = frame.y(note["y"], note.get("yshift", 0))
    across = frame.x(note["x"]) if note["xref"] == "paper" else 0.0
    if note["yref"].endswith(" domain"):
        plot = plots["yaxis" + note["yref"].removesuffix(" domain")[1:]]
        box = plot.get_position()
        up = box.y0 + note["y"] * box.height + note.get("yshift", 0) / frame.pixels
        if note["xref"] != "paper":
            first, last = plot.get_xlim()
            across = box.x0 + (note["x"] - first) / (last - first) * box.width
    page.text(
        across,
        up,
        note["text"].replace("<br>", "\n"),
        ha={"left": "left", "right": "right"}.get(note.get("xanchor", ""), "center"),
        va={"bottom": "bottom", "top": "top"}.get(note.get("yanchor", ""), "center"),
        fontsize=8,
        color=note.get("font", {}).get("color", ink),
    )
