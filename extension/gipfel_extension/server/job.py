"""Job page: the ranks of a run, and figures of all of them between two times."""

import hashlib
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from gipfel_cluster.image_verdict import SECURITY, kept_verdict
from gipfel_cluster.model import Frozen, GipfelError, OneLine

from ..diagnosis.roles import parse_selection
from ..job.figures import (
    HIGH_IS_BAD,
    HOST_METRICS,
    NIC_FIGURE_METRICS,
    OVERVIEW_METRICS,
    bands_figure,
    heat_bytes,
    nic_figure,
    values_of,
)
from ..job.metric_figures import MOST_METRICS, cluster_figure, last_steps, metric_names, metrics_figure
from ..job.ranks import Job, JobContent, read_job
from ..job.roofline import ROOFLINE_METRICS, roofline_figure
from ..job.rows import DeviceRow, Order, device_rows, nic_rows, ordered, selected_nics, selected_rows
from ..job.run_roles import launch_events
from ..job.run_storage import storage_figure
from ..rules.thresholds import drawn_rules, with_thresholds
from ..storage import DIRECTORY as STORAGE
from ..storage import read_storage
from ..telemetry.events import read_events
from ..telemetry.figures.heat import HEAT_METRICS
from ..telemetry.figures.lines import gpus_of
from ..telemetry.figures.stack import with_events
from ..telemetry.store.overview import Overview, read_overview
from ..telemetry.user_metrics import UserMetrics
from ..topology.cluster import CLUSTER_FILE, read_states
from .history import Times, is_recorded, metrics_of_run
from .job_cache import StampedCache, metrics_stamp, ranks_stamp, samples_stamp, stamp_of
from .job_responses import SecurityLine
from .responses import RunEvent
from .views import HeatMetric, event_texts

_BUCKETS, _MOST_ROWS = 240, 512
#: Most devices of a job that the page draws; a larger job is refused.
MOST_DEVICES = 16_384
FigureName = Literal["bands", "heat", "metrics", "roofline", "cluster", "storage", "nics"]
#: Jobs, and time ranges of their samples, that pages show at the same time.
_contents: StampedCache[JobContent] = StampedCache(8)
_overviews: StampedCache[Overview] = StampedCache(4)


class JobQuery(Frozen):
    """Query for the run of the page.

    ``layout`` has the sizes of the parallel axes as typed by the user; ``launch`` is ``RUN/N``. ``have`` is
    the version that the page already has: if nothing has changed since, the content is not sent again.
    """

    run: OneLine = Field("", max_length=200)
    layout: OneLine = Field("", max_length=200)
    launch: OneLine | None = Field(None, max_length=220)
    have: OneLine = Field("", max_length=64)


class JobView(JobQuery, Times):
    """Choices of the page: a time range, the order of rows, and selected ranks.

    ``select`` is an expression such as ``pp=6,7 & dp=0``; ``pick`` is the expression for what the user
    clicked, and replaces it. ``names`` are metrics logged by the user's program, ``bands`` metrics of
    devices, and ``figures`` the figures to draw. ``rows`` is the height of the heat map, ``width`` the width
    of the other figures, both in pixels.
    """

    metric: HeatMetric = "SM_ACTIVE"
    order: Order = "rank"
    select: str = Field("", max_length=1000)
    pick: str = Field("", max_length=1000)
    rows: int = Field(_MOST_ROWS, ge=16, le=_MOST_ROWS)
    width: int = Field(320, ge=200, le=10_000)
    names: tuple[OneLine, ...] = Field((), max_length=MOST_METRICS)
    bands: tuple[HeatMetric, ...] = Field((), max_length=len(HEAT_METRICS))
    figures: tuple[FigureName, ...] = Field(("bands", "heat", "metrics"), max_length=7)
    dark: bool = False


class JobDocument(Job):
    """Ranks of a run for the page, with events and the names of the metrics that its ranks logged.

    ``steps`` has the last step that each rank logged. ``growing`` is true while samples are recorded.
    ``security`` is null until the image has been judged.
    """

    version: str
    events: tuple[RunEvent, ...]
    metrics: tuple[str, ...]
    steps: dict[int, int]
    growing: bool
    security: SecurityLine | None


def job_document(folder: Path, query: JobQuery) -> dict[str, Any]:
    """Return the content of a `JobDocument`, or only ``version`` and ``unchanged`` if the page has it."""
    growing = is_recorded(folder / "telemetry")
    stamps = (ranks_stamp(folder), samples_stamp(folder), metrics_stamp(folder), stamp_of(folder / SECURITY))
    version = version_of(*stamps, query, growing)
    if query.have == version:
        return {"version": version, "unchanged": True}
    content = read_content(folder, query)
    metrics = metrics_of_run(folder) or UserMetrics()
    return {
        **content.job.model_dump(mode="json"),
        "version": version,
        "events": _events(folder),
        "metrics": metric_names(metrics, content.job.launch),
        "steps": last_steps(metrics, content.job.launch),
        "growing": growing,
        "security": _security(folder),
    }


def _security(folder: Path) -> dict[str, str] | None:
    verdict = kept_verdict(folder)
    return None if verdict is None else {"level": verdict.level, "line": verdict.line}


def _events(folder: Path) -> list[dict[str, Any]]:
    """Return events of recorders, GPUs, rules and launches for the page, sorted by time."""
    own = [
        {"time_ms": time_ns // 1_000_000, "node": "", "kind": kind, "device": "", "message": message}
        for time_ns, kind, message in launch_events(folder)
    ]
    found = [*event_texts(read_events(folder / "telemetry")), *own]
    return sorted(found, key=lambda each: each["time_ms"])


def read_content(folder: Path, query: JobQuery) -> JobContent:
    """Return the ranks of a run; they are read again only if files have changed."""
    key = (folder, query.layout, query.launch)
    return _contents.get(
        key, ranks_stamp(folder), lambda: read_job(folder, layout=query.layout, launch=query.launch)
    )


def job_figures(folder: Path, view: JobView) -> dict[str, Any]:
    """Return the figures of a view by name, and the selected ranks, nodes and devices.

    If the page already has the current version, only ``version`` and ``unchanged`` are returned.

    Raises
    ------
    GipfelError
        The selection is not valid for this job, or the job is too large.
    """
    stamps = ranks_stamp(folder), samples_stamp(folder), metrics_stamp(folder), _other_stamps(folder, view)
    version = version_of(*stamps, view)
    if view.have == version:
        return {"version": version, "unchanged": True}
    content = read_content(folder, view)
    group, selection = parse_selection(view.select), parse_selection(view.pick or view.select)
    overview = _overview(folder, view)
    known = [each.rank for each in content.job.ranks]
    ranks, members = selection.ranks(known, content.roles), group.ranks(known, content.roles)
    rows = device_rows(content, overview)
    lit = selected_rows(rows, selection, content) if selection.terms else None
    nics = nic_rows(content, overview) if "nics" in view.figures else []
    lit_nics = selected_nics(nics, selection, content) if selection.terms else None
    chosen = set(ranks) if selection.terms else None
    figures = _figures(folder, view, content, overview, rows, lit, chosen)
    if nics:
        own = nic_figure(overview, nics, lit_nics, dark=view.dark, width=view.width)
        figures["nics"] = with_events(own, read_events(folder / "telemetry"), dark=view.dark)
    nodes = {each.node for each in content.job.ranks if chosen is not None and each.rank in chosen}
    return {
        "run": folder.name,
        "version": version,
        "figures": figures,
        "selected": {
            "ranks": list(ranks),
            "devices": sorted(lit or ()),
            "nodes": sorted(nodes - {""}),
            "group": list(members) if group.terms else [],
        },
    }


def version_of(*parts: object) -> str:
    """Return an identifier for the state of the files and the query that a response depends on."""
    named = [part.model_copy(update={"have": ""}) if isinstance(part, JobQuery) else part for part in parts]
    return hashlib.blake2b(repr(named).encode(), digest_size=12).hexdigest()


def _overview(folder: Path, view: JobView) -> Overview:
    start, end = view.range_ns(folder / "telemetry")
    roofline = ROOFLINE_METRICS if "roofline" in view.figures else ()
    nics = NIC_FIGURE_METRICS if "nics" in view.figures else ()
    own = (*(view.bands or OVERVIEW_METRICS), *HOST_METRICS, view.metric)
    wanted = tuple(dict.fromkeys((*own, *roofline, *nics)))
    stamp: Hashable = samples_stamp(folder)
    found = _overviews.get(
        (folder, start, end, wanted),
        stamp,
        lambda: read_overview(
            folder / "telemetry", start_ns=start, end_ns=end, buckets=_BUCKETS, metrics=wanted
        ),
    )
    if len(found.devices) > MOST_DEVICES:
        raise GipfelError(
            f"The run has {len(found.devices)} devices.", f"The job page draws up to {MOST_DEVICES}."
        )
    return found


def _figures(  # noqa: PLR0917 - all that one answer is drawn from
    folder: Path,
    view: JobView,
    content: JobContent,
    overview: Overview,
    rows: Sequence[DeviceRow],
    lit: frozenset[str] | None,
    chosen: set[int] | None,
) -> dict[str, Any]:
    events = read_events(folder / "telemetry")
    found: dict[str, Any] = {}
    if "bands" in view.figures:
        named: Sequence[str] = (view.bands or OVERVIEW_METRICS) if gpus_of(overview) else HOST_METRICS
        figure = bands_figure(overview, rows, named, lit or (), dark=view.dark, width=view.width)
        marked = with_thresholds(figure, drawn_rules(), dark=view.dark)
        found["bands"] = with_events(marked, events, dark=view.dark)
    if "heat" in view.figures:
        metric = view.metric if gpus_of(overview) else HOST_METRICS[0]
        in_order = ordered(rows, view.order, values_of(overview, metric), highest=metric in HIGH_IS_BAD)
        found["heat"] = heat_bytes(overview, in_order, metric, lit, dark=view.dark, most_rows=view.rows)
    if "roofline" in view.figures:
        found["roofline"] = roofline_figure(overview, rows, lit or (), dark=view.dark)
    if "metrics" in view.figures:
        metrics = metrics_of_run(folder) or UserMetrics()
        span = _span(overview, *view.range_ns(folder / "telemetry"))
        own = metrics_figure(
            metrics, content.job.launch, view.names, chosen, span, dark=view.dark, width=view.width
        )
        marked = with_thresholds(own, drawn_rules(), dark=view.dark)
        found["metrics"] = with_events(marked, events, dark=view.dark)
    if "cluster" in view.figures and (states := read_states(folder)):
        span = _span(overview, *view.range_ns(folder / "telemetry"))
        found["cluster"] = cluster_figure(states, span, dark=view.dark, width=view.width)
    if "storage" in view.figures and (record := read_storage(folder)) is not None:
        span = _span(overview, *view.range_ns(folder / "telemetry"))
        own = storage_figure(record, span, dark=view.dark, width=view.width)
        found["storage"] = with_events(own, events, dark=view.dark)
    return found


def _other_stamps(folder: Path, view: JobView) -> Hashable:
    cluster = stamp_of(folder / CLUSTER_FILE) if "cluster" in view.figures else None
    storage = sorted((folder / STORAGE).glob("*.jsonl")) if "storage" in view.figures else []
    return cluster, tuple(stamp_of(each) for each in storage)


def _span(overview: Overview, start: int | None, end: int | None) -> tuple[int, int]:
    times = overview.time_ns if len(overview.time_ns) else np.array([0], np.int64)
    first = int(times[0]) if start is None else start
    last = int(times[-1]) + overview.bucket_ns if end is None else end
    return first, max(last, first + 1)
