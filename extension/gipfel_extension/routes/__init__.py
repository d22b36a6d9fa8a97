"""Authenticated routes below ``/gipfel/``, by feature; modules of `gipfel_extension.server` do the work."""

from tornado.web import RequestHandler

from .batch import BatchFormRouteHandler, BatchJobRouteHandler, BatchJobsRouteHandler
from .job import (
    JobCheckpointsRouteHandler,
    JobClusterRouteHandler,
    JobCommunicationRouteHandler,
    JobEarlierRouteHandler,
    JobFiguresRouteHandler,
    JobNetworkRouteHandler,
    JobRouteHandler,
    JobSecurityRouteHandler,
    JobStorageRouteHandler,
    JobTopologyRouteHandler,
    JobVerdictsRouteHandler,
)
from .launches import (
    LaunchActionRouteHandler,
    LaunchesRouteHandler,
    LaunchFileRouteHandler,
    LaunchLogRouteHandler,
    LookFileRouteHandler,
    LookPlanRouteHandler,
    LooksRouteHandler,
)
from .runs import (
    CompareRouteHandler,
    DownloadRouteHandler,
    RangeRouteHandler,
    RunComparisonRouteHandler,
    RunNotesRouteHandler,
    RunRemovalRouteHandler,
    RunReportRouteHandler,
    RunsRouteHandler,
    RunTableRouteHandler,
    RunTrackingRouteHandler,
    ScoreRouteHandler,
)
from .saturation import (
    SaturationRouteHandler,
    SaturationStreamRouteHandler,
    SharedSaturationRouteHandler,
    SharingRouteHandler,
    SourceRouteHandler,
)
from .security import (
    EndNetworkRouteHandler,
    KeptVerdictsRouteHandler,
    SaveEnvironmentRouteHandler,
    ScanRouteHandler,
    SharedSecurityRouteHandler,
)
from .server import (
    ChangesRouteHandler,
    ExtendRouteHandler,
    KeepAliveRouteHandler,
    LifetimeRouteHandler,
    MetricsRouteHandler,
    NotebookRouteHandler,
    NotebooksRouteHandler,
    RunRouteHandler,
    ScriptsRouteHandler,
)
from .vetting import ProtocolsRouteHandler, VettingConsentRouteHandler, VettingRouteHandler
from .workloads import (
    QuotaRouteHandler,
    ServiceOffersRouteHandler,
    ServiceShareRouteHandler,
    ServicesRouteHandler,
    WorkloadActionRouteHandler,
    WorkloadLogRouteHandler,
    WorkloadsRouteHandler,
)

ROUTES: tuple[tuple[str, type[RequestHandler]], ...] = (
    (r"gipfel/metrics", MetricsRouteHandler),
    # The run of this server; `gipfel/runs` are all runs of the user.
    (r"gipfel/run", RunRouteHandler),
    (r"gipfel/runs", RunsRouteHandler),
    (r"gipfel/runs/table", RunTableRouteHandler),
    (r"gipfel/runs/notes", RunNotesRouteHandler),
    # Several runs, each compared with the first, as in `gipfel compare`; `saturation/compare` draws two runs.
    (r"gipfel/runs/compare", RunComparisonRouteHandler),
    (r"gipfel/runs/remove", RunRemovalRouteHandler),
    (r"gipfel/runs/track", RunTrackingRouteHandler),
    (r"gipfel/runs/([A-Za-z0-9][A-Za-z0-9._-]{0,127})/report", RunReportRouteHandler),
    (r"gipfel/lifetime", LifetimeRouteHandler),
    (r"gipfel/lifetime/extend", ExtendRouteHandler),
    (r"gipfel/lifetime/keep-alive", KeepAliveRouteHandler),
    (r"gipfel/saturation", SaturationRouteHandler),
    # Tells open pages which documents have changed, so that they request them again.
    (r"gipfel/changes", ChangesRouteHandler),
    (r"gipfel/saturation/stream", SaturationStreamRouteHandler),
    (r"gipfel/saturation/range", RangeRouteHandler),
    (r"gipfel/saturation/score", ScoreRouteHandler),
    (r"gipfel/saturation/compare", CompareRouteHandler),
    (r"gipfel/saturation/samples\.(parquet|csv)", DownloadRouteHandler),
    (r"gipfel/saturation/figure\.(png)", DownloadRouteHandler),
    (r"gipfel/sharing", SharingRouteHandler),
    (r"gipfel/sharing/saturation", SharedSaturationRouteHandler),
    (r"gipfel/sharing/security", SharedSecurityRouteHandler),
    # Saves the installed packages as a directory from which to build an image.
    (r"gipfel/environment/save", SaveEnvironmentRouteHandler),
    # Closes gates, so that the programs behind them lose the network.
    (r"gipfel/network/end", EndNetworkRouteHandler),
    (r"gipfel/scan", ScanRouteHandler),
    (r"gipfel/scan/kept", KeptVerdictsRouteHandler),
    (r"gipfel/telemetry/source", SourceRouteHandler),
    (r"gipfel/batch/form", BatchFormRouteHandler),
    (r"gipfel/batch/jobs", BatchJobsRouteHandler),
    (r"gipfel/batch/jobs/([0-9A-Za-z][0-9A-Za-z_.-]{0,63})", BatchJobRouteHandler),
    (r"gipfel/launches", LaunchesRouteHandler),
    (r"gipfel/launches/log", LaunchLogRouteHandler),
    (r"gipfel/launches/(stop|rerun|notebook)", LaunchActionRouteHandler),
    (r"gipfel/launches/(trace|dump)", LaunchFileRouteHandler),
    (r"gipfel/launches/looks", LooksRouteHandler),
    # What a look would take, and what it would cost.
    (r"gipfel/launches/looks/plan", LookPlanRouteHandler),
    (r"gipfel/launches/looks/file", LookFileRouteHandler),
    (r"gipfel/job", JobRouteHandler),
    (r"gipfel/job/figures", JobFiguresRouteHandler),
    (r"gipfel/job/topology", JobTopologyRouteHandler),
    (r"gipfel/job/communication", JobCommunicationRouteHandler),
    (r"gipfel/job/network", JobNetworkRouteHandler),
    (r"gipfel/job/security", JobSecurityRouteHandler),
    (r"gipfel/job/storage", JobStorageRouteHandler),
    (r"gipfel/job/earlier", JobEarlierRouteHandler),
    (r"gipfel/job/checkpoints", JobCheckpointsRouteHandler),
    (r"gipfel/job/verdicts", JobVerdictsRouteHandler),
    (r"gipfel/services", ServicesRouteHandler),
    (r"gipfel/services/offers", ServiceOffersRouteHandler),
    (r"gipfel/services/share", ServiceShareRouteHandler),
    (r"gipfel/job/cluster", JobClusterRouteHandler),
    (r"gipfel/workloads", WorkloadsRouteHandler),
    (r"gipfel/workloads/(stop|rerun)", WorkloadActionRouteHandler),
    (r"gipfel/workloads/log", WorkloadLogRouteHandler),
    (r"gipfel/quota", QuotaRouteHandler),
    (r"gipfel/vetting", VettingRouteHandler),
    (r"gipfel/vetting/protocols", ProtocolsRouteHandler),
    (r"gipfel/vetting/consent", VettingConsentRouteHandler),
    (r"lab/extensions/@gipfel/extension/static/([\w-]+\.[0-9a-f]{16}\.js)", ScriptsRouteHandler),
    (r"gipfel/notebooks", NotebooksRouteHandler),
    (r"gipfel/notebooks/([A-Za-z0-9][A-Za-z0-9_-]{0,99})", NotebookRouteHandler),
)

__all__ = ["ROUTES"]
