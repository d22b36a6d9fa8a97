"""Authenticated routes below ``/gipfel/``, by feature; modules of `gipfel_extension.server` do the work."""

import re
from collections.abc import Callable
from importlib import import_module
from typing import Any

from tornado.httputil import HTTPMessageDelegate, HTTPServerRequest
from tornado.routing import PathMatches, Router, Rule
from tornado.web import Application, RequestHandler

#: Patterns of paths, and the module of this package and the class that handle them.
ROUTES: tuple[tuple[str, str], ...] = (
    (r"gipfel/metrics", "server.MetricsRouteHandler"),
    # The run of this server; `gipfel/runs` are all runs of the user.
    (r"gipfel/run", "server.RunRouteHandler"),
    (r"gipfel/runs", "runs.RunsRouteHandler"),
    (r"gipfel/runs/table", "runs.RunTableRouteHandler"),
    (r"gipfel/runs/notes", "runs.RunNotesRouteHandler"),
    # Several runs, each compared with the first, as in `gipfel compare`; `saturation/compare` draws two runs.
    (r"gipfel/runs/compare", "runs.RunComparisonRouteHandler"),
    (r"gipfel/runs/remove", "runs.RunRemovalRouteHandler"),
    (r"gipfel/runs/track", "runs.RunTrackingRouteHandler"),
    (r"gipfel/runs/([A-Za-z0-9][A-Za-z0-9._-]{0,127})/report", "runs.RunReportRouteHandler"),
    (r"gipfel/lifetime", "server.LifetimeRouteHandler"),
    (r"gipfel/lifetime/extend", "server.ExtendRouteHandler"),
    (r"gipfel/lifetime/keep-alive", "server.KeepAliveRouteHandler"),
    (r"gipfel/saturation", "saturation.SaturationRouteHandler"),
    # Tells open pages which documents have changed, so that they request them again.
    (r"gipfel/changes", "server.ChangesRouteHandler"),
    (r"gipfel/saturation/stream", "saturation.SaturationStreamRouteHandler"),
    (r"gipfel/saturation/range", "runs.RangeRouteHandler"),
    (r"gipfel/saturation/score", "runs.ScoreRouteHandler"),
    (r"gipfel/saturation/compare", "runs.CompareRouteHandler"),
    (r"gipfel/saturation/samples\.(parquet|csv)", "runs.DownloadRouteHandler"),
    (r"gipfel/saturation/figure\.(png)", "runs.DownloadRouteHandler"),
    (r"gipfel/sharing", "saturation.SharingRouteHandler"),
    (r"gipfel/sharing/saturation", "saturation.SharedSaturationRouteHandler"),
    (r"gipfel/sharing/security", "security.SharedSecurityRouteHandler"),
    # Saves the installed packages as a directory from which to build an image.
    (r"gipfel/environment/save", "security.SaveEnvironmentRouteHandler"),
    # Closes gates, so that the programs behind them lose the network.
    (r"gipfel/network/end", "security.EndNetworkRouteHandler"),
    (r"gipfel/scan", "security.ScanRouteHandler"),
    (r"gipfel/scan/kept", "security.KeptVerdictsRouteHandler"),
    (r"gipfel/telemetry/source", "saturation.SourceRouteHandler"),
    (r"gipfel/batch/form", "batch.BatchFormRouteHandler"),
    (r"gipfel/batch/jobs", "batch.BatchJobsRouteHandler"),
    (r"gipfel/batch/jobs/([0-9A-Za-z][0-9A-Za-z_.-]{0,63})", "batch.BatchJobRouteHandler"),
    (r"gipfel/launches", "launches.LaunchesRouteHandler"),
    (r"gipfel/launches/log", "launches.LaunchLogRouteHandler"),
    (r"gipfel/launches/(stop|rerun|notebook)", "launches.LaunchActionRouteHandler"),
    (r"gipfel/launches/(trace|dump)", "launches.LaunchFileRouteHandler"),
    (r"gipfel/launches/looks", "launches.LooksRouteHandler"),
    # What a look would take, and what it would cost.
    (r"gipfel/launches/looks/plan", "launches.LookPlanRouteHandler"),
    (r"gipfel/launches/looks/file", "launches.LookFileRouteHandler"),
    (r"gipfel/job", "job.JobRouteHandler"),
    (r"gipfel/job/figures", "job.JobFiguresRouteHandler"),
    (r"gipfel/job/topology", "job.JobTopologyRouteHandler"),
    (r"gipfel/job/communication", "job.JobCommunicationRouteHandler"),
    (r"gipfel/job/network", "job.JobNetworkRouteHandler"),
    (r"gipfel/job/security", "job.JobSecurityRouteHandler"),
    (r"gipfel/job/storage", "job.JobStorageRouteHandler"),
    (r"gipfel/job/earlier", "job.JobEarlierRouteHandler"),
    (r"gipfel/job/checkpoints", "job.JobCheckpointsRouteHandler"),
    (r"gipfel/job/verdicts", "job.JobVerdictsRouteHandler"),
    (r"gipfel/services", "workloads.ServicesRouteHandler"),
    (r"gipfel/services/offers", "workloads.ServiceOffersRouteHandler"),
    (r"gipfel/services/share", "workloads.ServiceShareRouteHandler"),
    (r"gipfel/job/cluster", "job.JobClusterRouteHandler"),
    (r"gipfel/workloads", "workloads.WorkloadsRouteHandler"),
    (r"gipfel/workloads/(stop|rerun)", "workloads.WorkloadActionRouteHandler"),
    (r"gipfel/workloads/log", "workloads.WorkloadLogRouteHandler"),
    (r"gipfel/quota", "workloads.QuotaRouteHandler"),
    (r"gipfel/vetting", "vetting.VettingRouteHandler"),
    (r"gipfel/vetting/protocols", "vetting.ProtocolsRouteHandler"),
    (r"gipfel/vetting/consent", "vetting.VettingConsentRouteHandler"),
    (r"lab/extensions/@gipfel/extension/static/([\w-]+\.[0-9a-f]{16}\.js)", "server.ScriptsRouteHandler"),
    (r"gipfel/notebooks", "server.NotebooksRouteHandler"),
    (r"gipfel/notebooks/([A-Za-z0-9][A-Za-z0-9_-]{0,99})", "server.NotebookRouteHandler"),
)


def _handler(target: str) -> type[RequestHandler]:
    """Return the class of a route's second part in `ROUTES`, and import its module."""
    module, _, name = target.partition(".")
    found: type[RequestHandler] = getattr(import_module(f"{__name__}.{module}"), name)
    return found


def add_routes(application: Application, base_url: str, prepare: Callable[[], object]) -> None:
    """Add the routes to a server, without importing their modules: this would delay the server's start.

    ``prepare`` is called before each request; it creates what the handlers find in the server's settings.
    """
    base = re.escape(base_url.rstrip("/"))
    rules = [
        Rule(PathMatches(f"{base}/{pattern}/?"), _Route(application, target, prepare))
        for pattern, target in ROUTES
    ]
    application.default_router.rules[:0] = rules


def preload_routes() -> None:
    """Import the modules of all routes, so that the first request to each of them is quick."""
    for _, target in ROUTES:
        _handler(target)


class _Route(Router):
    """Route that imports its handler at the first request."""

    def __init__(self, application: Application, target: str, prepare: Callable[[], object]) -> None:
        self._application = application
        self._target = target
        self._prepare = prepare

    def find_handler(self, request: HTTPServerRequest, **matched: Any) -> HTTPMessageDelegate | None:
        """Return what handles the request."""
        self._prepare()
        return self._application.get_handler_delegate(request, _handler(self._target), **matched)


__all__ = ["ROUTES", "add_routes", "preload_routes"]
