"""What a page looks at, and the figures for it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator

from gipfel_cluster.model import Frozen, Line

from ..telemetry.events import Event
from ..telemetry.figures.gpu_lines import gpu_figure
from ..telemetry.figures.heat import HEAT_METRICS, heat_figure
from ..telemetry.figures.job_lines import host_figure, job_figure
from ..telemetry.figures.lines import gpus_of
from ..telemetry.figures.marks import with_events
from ..telemetry.figures.rows import DETAIL_LINES, LINES
from ..telemetry.metrics import UserMetrics

if TYPE_CHECKING:
    from ..telemetry.overview.read import Overview

#: The longest time span that a page may ask for, in seconds.
LONGEST_WINDOW_S = 7 * 86400.0
#: A panel is a few hundred pixels wide.
BUCKETS = 600
HEAT_BUCKETS = 120
_MOST_GPUS = 64


class View(Frozen):
    """What part of the samples is asked for, and for which page.

    ``gpus`` are UUIDs of those that are shown one by one; ``metric`` is the heat map's.
    """

    type: Literal["view"] = "view"
    window: float = Field(600.0, ge=10, le=LONGEST_WINDOW_S, allow_inf_nan=False)
    dark: bool = False
    metric: Line = "SM_ACTIVE"
    gpus: tuple[Line, ...] = Field((), max_length=_MOST_GPUS)

    @field_validator("metric")
    @classmethod
    def _is_known(cls, value: str) -> str:
        if value not in HEAT_METRICS:
            raise ValueError(f"the metrics of the heat map are {', '.join(HEAT_METRICS)}")
        return value


def metrics_of(view: View) -> tuple[str, ...]:
    """The metrics that the figures of a view are drawn from."""
    lines = (*LINES.values(), *(DETAIL_LINES.values() if view.gpus else ()))
    named = (name for line in lines for name in (line.metric, line.of) if name)
    return tuple(dict.fromkeys((*named, view.metric)))


def figures_of(
    fine: "Overview",
    coarse: "Overview",
    view: View,
    metrics: UserMetrics | None,
    events: Sequence[Event] = (),
    *,
    only: Sequence[str] = (),
) -> dict[str, dict[str, Any]]:
    """The figures by name: ``job``, ``host``, ``heat``, and ``gpu/<uuid>`` for those of the view.

    Parameters
    ----------
    fine, coarse
        The same time in :data:`BUCKETS` and in :data:`HEAT_BUCKETS`.
    only
        Names of figures that are wanted; all where empty.
    """
    dark = view.dark
    gpus = {gpu.uuid: gpu for gpu in gpus_of(fine)}
    figures: dict[str, dict[str, Any]] = {}

    def wanted(name: str) -> bool:
        return not only or name in only

    if wanted("job"):
        figures["job"] = with_events(job_figure(fine, metrics=metrics, dark=dark), events, dark=dark)
    if wanted("host"):
        figures["host"] = host_figure(fine, dark=dark)
    if wanted("heat"):
        figures["heat"] = heat_figure(coarse, view.metric, dark=dark)
    for uuid in view.gpus:
        if uuid in gpus and wanted(f"gpu/{uuid}"):
            own = gpu_figure(fine, gpus[uuid], metrics=metrics, dark=dark)
            theirs = [event for event in events if event.device in ("", uuid)]
            figures[f"gpu/{uuid}"] = with_events(own, theirs, dark=dark)
    return figures


def event_words(events: Sequence[Event]) -> list[dict[str, Any]]:
    """Events for a page: the newest hundred, times in UTC milliseconds."""
    return [
        {
            "time_ms": event.time_ns // 1_000_000,
            "node": event.node,
            "kind": event.kind,
            "device": event.device,
            "message": event.message,
        }
        for event in events[-100:]
    ]
