"""Server extension: its configuration, and startup and shutdown of the objects that the routes use."""

import asyncio
import os
from typing import Any

from jupyter_server.extension.application import ExtensionApp
from traitlets import Dict, Float, List, Unicode

from gipfel_cluster.model import GipfelError

from .routes import ROUTES
from .server.activity import ActivityMonitor
from .server.job_tabs import ClusterAround
from .server.lifetime import LifetimeSettings, ServerLifetime, hub_connection
from .server.telemetry import ServerTelemetry
from .server.vetting import ServerVetting
from .topology.cluster import PROMETHEUS_QUERIES


class GipfelExtension(ExtensionApp):
    """Gipfel's routes and recorders in a Jupyter server."""

    name = "gipfel_extension"
    load_other_extensions = True

    interval = Float(
        None,
        allow_none=True,
        min=0.1,
        help="Seconds between two samples of the recorders that this server starts, at least 0.1. "
        "Default: None, which means 0.1 for GPUs that update their counters that often (the live stream then "
        "has means over 1 s), and 1 for others. The recorder of a job uses the interval of the job.",
    ).tag(config=True)
    sources = List(
        Unicode(),
        default_value=["host", "auto"],
        help="Sources that a server outside a job records on its machine: 'host', 'nvml', 'auto' (NVML if "
        "there is a GPU), 'replay:FILE' or 'synthetic:NAME'. Default: host and auto. Empty: only the host.",
    ).tag(config=True)

    time_left_notices = List(
        Float(min=0),
        default_value=[30.0, 10.0, 2.0],
        help="Minutes before the end of the job at which JupyterLab shows a notice. Default: 30, 10, 2.",
    ).tag(config=True)
    report_interval = Float(
        30.0,
        min=0.5,
        help="Seconds between two activity reports to the hub. Default: 30.",
    ).tag(config=True)
    orphan_grace = Float(
        600.0,
        min=0,
        help="Seconds for which the hub must refuse this server's token before it stops. Default: 600.",
    ).tag(config=True)
    gpu_threshold = Float(
        0.05,
        help="Activity in the last minute from which a GPU counts as busy, 0 to 1. Default: 0.05.",
    ).tag(config=True)

    advice_hold = Float(
        60.0,
        min=0,
        help="Seconds for which evidence must be present before the panel shows an advice, and absent before "
        "the panel removes it. Default: 60.",
    ).tag(config=True)

    cluster_prometheus = Unicode(
        "",
        help="Address of the site's Prometheus, from which the job page shows the cluster around a job, such "
        "as 'https://prometheus.example.org'. Default: empty, which means sinfo and squeue.",
    ).tag(config=True)
    cluster_queries = Dict(
        value_trait=Unicode(),
        default_value=dict(PROMETHEUS_QUERIES),
        help="PromQL of the numbers of nodes (allocated, idle, down) and jobs (running, pending) there. "
        "Default: the names of the Prometheus exporter for Slurm.",
    ).tag(config=True)

    _reporting: asyncio.Task[None] | None = None

    def initialize_settings(self) -> None:
        """Create the objects that the routes use; they start once the event loop runs."""
        self.telemetry = ServerTelemetry(
            interval=self.interval,
            sources=tuple(self.sources) or ("host",),
            environment=dict(os.environ),
            log=self.log,
            advice_hold_s=self.advice_hold,
        )
        self.settings["gipfel"] = self.telemetry
        self.settings["gipfel_cluster"] = ClusterAround(
            dict(os.environ), self.cluster_prometheus, self.cluster_queries
        )
        self.settings["gipfel_vetting"] = ServerVetting({})
        self.activity = ActivityMonitor(self.settings, self.telemetry)
        self.lifetime = self.settings["gipfel_lifetime"] = ServerLifetime(
            settings=LifetimeSettings(
                notices=tuple(minutes * 60 for minutes in self.time_left_notices),
                report_interval=self.report_interval,
                orphan_grace=self.orphan_grace,
            ),
            hub=hub_connection(os.environ),
            job_end=self._job_end,
            indicators=self.activity.indicators,
            stop_server=self._stop_server,
            log=self.log,
            gpu_threshold=self.gpu_threshold,
        )

    def initialize_handlers(self) -> None:
        """Add the routes."""
        self.handlers.extend([(rf"/{path}/?", handler) for path, handler in ROUTES])

    async def _job_end(self) -> float | None:
        """Return the end of the job as its node knows it, in seconds since 1970."""
        try:
            run, _ = await self.telemetry.ensure_started()
        except GipfelError:
            return None
        ends = (await asyncio.to_thread(run.describe))["ends_ns"]
        return None if ends is None else ends / 1e9

    def _stop_server(self, reason: str) -> None:
        self.log.critical("%s", reason)
        if self.serverapp is not None:
            self.serverapp.stop(from_signal=True)

    async def _start_jupyter_server_extension(self, serverapp: Any) -> None:  # noqa: ARG002
        self.activity.watch_saving()
        self._reporting = asyncio.ensure_future(self.lifetime.run())
        try:
            await self.telemetry.ensure_started()
        except GipfelError as error:
            # The server starts without plots; the panel shows the same message.
            self.log.error("%s", error)

    async def stop_extension(self) -> None:
        """Stop the recorders and the feed."""
        if self._reporting is not None:
            self._reporting.cancel()
        await self.settings["gipfel_vetting"].stop()
        await self.telemetry.stop()
