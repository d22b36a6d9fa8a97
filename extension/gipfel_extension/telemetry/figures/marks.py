"""Marks on the time axis of a figure: events, and the stretch that shows why something is advised."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..events import Event
from .lines import plain
from .palette import MARK

#: More marks than this hide what they mark; the newest stay.
_MOST_MARKS = 20
_SHAPES = {"xid": "✗", "gpu_lost": "✗", "node_lost": "✗", "disk_full": "✗", "throttle": "▲"}


def event_sign(kind: str) -> str:
    """The shape that stands for a kind of event."""
    return _SHAPES.get(kind, "⚑")


def with_events(figure: dict[str, Any], events: Sequence[Event], *, dark: bool = False) -> dict[str, Any]:
    """The figure with a line through all plots for each event within its time axis."""
    layout = figure["layout"]
    first, last = layout.get("xaxis", {}).get("range") or (0, 0)
    inside = [event for event in events if first <= event.time_ns // 1_000_000 <= last][-_MOST_MARKS:]
    shapes, notes = [], []
    for event in inside:
        time = event.time_ns // 1_000_000
        shapes += _through(layout, _line(time, dark=dark))
        notes.append(
            {
                "text": event_sign(event.kind),
                "hovertext": plain(f"{event.kind}: {event.message}"),
                "x": time,
                "xref": "x",
                "y": 1.0,
                "yref": "y domain",
                "yanchor": "top",
                "xanchor": "center",
                "showarrow": False,
                "font": {"size": 11, "color": MARK[dark]},
                "name": "event",
            }
        )
    layout = {
        **layout,
        "shapes": [*layout.get("shapes", ()), *shapes],
        "annotations": [*layout.get("annotations", ()), *notes],
    }
    return {**figure, "layout": layout}


def with_span(figure: dict[str, Any], start_ns: int, end_ns: int, *, dark: bool = False) -> dict[str, Any]:
    """The figure with a stretch of time set off: the evidence of an advice."""
    area = {
        "type": "rect",
        "x0": start_ns // 1_000_000,
        "x1": end_ns // 1_000_000,
        "y0": 0,
        "y1": 1,
        "line": {"width": 1, "dash": "dash", "color": MARK[dark]},
        "fillcolor": MARK[dark],
        "opacity": 0.16,
        "layer": "below",
        "name": "evidence",
    }
    layout = figure["layout"]
    return {**figure, "layout": {**layout, "shapes": [*layout.get("shapes", ()), *_through(layout, area)]}}


def _through(layout: Mapping[str, Any], shape: dict[str, Any]) -> list[dict[str, Any]]:
    """A shape in each plot of a figure: between them are titles and legends."""
    numbers = [key.removeprefix("yaxis") for key in layout if key.startswith("yaxis")]
    return [{**shape, "xref": f"x{number}", "yref": f"y{number} domain"} for number in numbers]


def _line(time: int, *, dark: bool) -> dict[str, Any]:
    return {
        "type": "line",
        "x0": time,
        "x1": time,
        "y0": 0,
        "y1": 1,
        "line": {"width": 1, "dash": "dot", "color": MARK[dark]},
        "name": "event",
    }
