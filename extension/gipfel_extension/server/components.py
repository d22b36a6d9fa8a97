"""Components that the routes of one server use, created after the server answers."""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from gipfel_cluster.model import GipfelError

from .activity import ActivityMonitor
from .job_tabs import ClusterAround
from .lifetime import LifetimeSettings, ServerLifetime, hub_connection
from .telemetry import ServerTelemetry
from .vetting import ServerVetting


class ServerComponents:
    """Telemetry, activity, lifetime and vetting of one server, and the cluster around its job.

    Parameters
    ----------
    traits
        Values of the traits of `gipfel_extension.app.GipfelExtension`, by name.
    settings
        The server's settings; the routes find each component there.
    stop_server
        Function that ends the server, with the reason.
    """

    def __init__(
        self,
        traits: Mapping[str, Any],
        settings: MutableMapping[str, Any],
        log: logging.Logger,
        stop_server: Callable[[str], None],
    ) -> None:
        self._log = log
        self._telemetry = settings["gipfel"] = ServerTelemetry(
            interval=traits["interval"],
            sources=tuple(traits["sources"]) or ("host",),
            environment=dict(os.environ),
            log=log,
            advice_hold_s=traits["advice_hold"],
        )
        settings["gipfel_cluster"] = ClusterAround(
            dict(os.environ), traits["cluster_prometheus"], traits["cluster_queries"]
        )
        self._vetting = settings["gipfel_vetting"] = ServerVetting({})
        self._activity = ActivityMonitor(settings, self._telemetry)
        self._lifetime = settings["gipfel_lifetime"] = ServerLifetime(
            settings=LifetimeSettings(
                notices=tuple(minutes * 60 for minutes in traits["time_left_notices"]),
                report_interval=traits["report_interval"],
                orphan_grace=traits["orphan_grace"],
            ),
            hub=hub_connection(os.environ),
            job_end=self._job_end,
            indicators=self._activity.indicators,
            stop_server=stop_server,
            log=log,
            gpu_threshold=traits["gpu_threshold"],
        )
        self._reporting: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the recorders and the feed, and report to the hub from now on."""
        self._activity.watch_saving()
        self._reporting = asyncio.ensure_future(self._lifetime.run())
        try:
            await self._telemetry.ensure_started()
        except GipfelError as error:
            # The server works without plots; the panel shows the same message.
            self._log.error("%s", error)

    async def stop(self) -> None:
        """Stop vetting, the recorders and the feed."""
        if self._reporting is not None:
            self._reporting.cancel()
        await self._vetting.stop()
        await self._telemetry.stop()

    async def _job_end(self) -> float | None:
        """Return the end of the job as its node knows it, in seconds since 1970."""
        try:
            run, _ = await self._telemetry.ensure_started()
        except GipfelError:
            return None
        ends = (await asyncio.to_thread(run.describe))["ends_ns"]
        return None if ends is None else ends / 1e9
