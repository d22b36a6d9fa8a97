"""Job page: the ranks of a run, and figures of all of them between two times."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, field_validator, model_validator

from gipfel_cluster.model import Frozen, GipfelError, OneLine

from ..diagnosis.role_selection import RoleSelection, parse_selection
from ..job.figures import HIGH_IS_BAD, HOST_METRICS, OVERVIEW_METRICS, bands_figure, heat_bytes, values_of
from ..job.metric_figures import MOST_METRICS, metric_names, metrics_figure
from ..job.ranks import JobContent, read_job
from ..job.rows import Order, device_rows, ordered, selected_rows
from ..telemetry.events import read_events
from ..telemetry.figures.heat import HEAT_METRICS
from ..telemetry.figures.lines import gpus_of
from ..telemetry.figures.stack import with_events
from ..telemetry.sample import SourceError
from ..telemetry.store.overview import Overview, read_overview
from ..telemetry.user_metrics import UserMetrics
from .history import metrics_of_run
from .views import event_texts

_BUCKETS, _MOST_ROWS = 240, 512
#: A larger job is not drawn by the page.
MOST_DEVICES = 16_384


class JobQuery(Frozen):
    """Run of the page; ``layout`` are sizes of axes that a person typed, ``launch`` is ``RUN/N``."""

    run: OneLine = Field("", max_length=200)
    layout: OneLine = Field("", max_length=200)
    launch: OneLine | None = Field(None, max_length=220)


class JobView(JobQuery):
    """What the page shows: times in UTC milliseconds, the order of rows, and selected ranks.

    ``select`` is an expression such as ``pp=6,7 & dp=0``. ``names`` are users' metrics. ``rows`` is the
    height of the heat map in pixels.
    """

    since: int | None = Field(None, ge=0, le=2**53 - 1)
    until: int | None = Field(None, ge=0, le=2**53 - 1)
    metric: OneLine = "SM_ACTIVE"
    order: Order = "rank"
    select: str = Field("", max_length=1000)
    rows: int = Field(_MOST_ROWS, ge=16, le=_MOST_ROWS)
    names: tuple[OneLine, ...] = Field((), max_length=MOST_METRICS)
    dark: bool = False

    @field_validator("metric")
    @classmethod
    def _is_known(cls, value: str) -> str:
        if value not in HEAT_METRICS:
            raise ValueError(f"the metrics of the heat map are {', '.join(HEAT_METRICS)}")
        return value

    @model_validator(mode="after")
    def _in_order(self) -> "JobView":
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise ValueError("since must be before until")
        return self


def job_document(folder: Path, query: JobQuery) -> dict[str, Any]:
    """Return the ranks of a run, its events, and the names of the metrics that its ranks logged."""
    content = read_job(folder, layout=query.layout, launch=query.launch)
    metrics = metrics_of_run(folder) or UserMetrics()
    return {
        **content.job.model_dump(mode="json"),
        "events": event_texts(read_events(folder / "telemetry")),
        "metrics": metric_names(metrics, content.job.launch),
    }


def job_figures(folder: Path, view: JobView) -> dict[str, Any]:
    """Return the figures ``bands``, ``heat`` and ``metrics``, and the selected ranks and devices.

    Raises
    ------
    GipfelError
        The selection is not valid for this job, or the job is too large.
    """
    content = read_job(folder, layout=view.layout, launch=view.launch)
    selection = _selection(view.select)
    start, end = (None if ms is None else ms * 1_000_000 for ms in (view.since, view.until))
    wanted = dict.fromkeys((*OVERVIEW_METRICS, *HOST_METRICS, view.metric))
    overview = read_overview(
        folder / "telemetry", start_ns=start, end_ns=end, buckets=_BUCKETS, metrics=wanted
    )
    if len(overview.devices) > MOST_DEVICES:
        raise GipfelError(
            f"The run has {len(overview.devices)} devices.", f"The job page draws up to {MOST_DEVICES}."
        )
    try:
        ranks = selection.ranks((each.rank for each in content.job.ranks), content.roles)
        drawn = _device_figures(content, overview, view, selection)
    except SourceError as error:
        raise GipfelError(error.problem, error.fix) from error
    chosen = set(ranks) if selection.terms else None
    span = _span(overview, start, end)
    metrics = metrics_of_run(folder) or UserMetrics()
    own = metrics_figure(metrics, content.job.launch, view.names, chosen, span, dark=view.dark)
    events = read_events(folder / "telemetry")
    return {
        "run": folder.name,
        "figures": {
            "bands": with_events(drawn["bands"], events, dark=view.dark),
            "heat": drawn["heat"],
            "metrics": with_events(own, events, dark=view.dark),
        },
        "selected": {"ranks": list(ranks), "devices": drawn["devices"]},
    }


def _selection(text: str) -> RoleSelection:
    try:
        return parse_selection(text)
    except SourceError as error:
        raise GipfelError(error.problem, error.fix) from error


def _device_figures(
    content: JobContent, overview: Overview, view: JobView, selection: RoleSelection
) -> dict[str, Any]:
    rows = device_rows(content, overview)
    lit = selected_rows(rows, selection, content) if selection.terms else None
    named: Sequence[str] = OVERVIEW_METRICS if gpus_of(overview) else HOST_METRICS
    values = values_of(overview, view.metric)
    in_order = ordered(rows, view.order, values, highest=view.metric in HIGH_IS_BAD)
    return {
        "bands": bands_figure(overview, rows, named, lit or (), dark=view.dark),
        "heat": heat_bytes(overview, in_order, view.metric, lit, dark=view.dark, most_rows=view.rows),
        "devices": sorted(lit or ()),
    }


def _span(overview: Overview, start: int | None, end: int | None) -> tuple[int, int]:
    times = overview.time_ns if len(overview.time_ns) else np.array([0], np.int64)
    first = int(times[0]) if start is None else start
    last = int(times[-1]) + overview.bucket_ns if end is None else end
    return first, max(last, first + 1)
