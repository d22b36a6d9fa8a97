"""``gipfel/metrics``: what is measured now, for a Prometheus that holds this server's token."""

import asyncio
import time
from dataclasses import replace
from typing import Any

from ..server.analysis import judged
from ..server.run import CurrentRun
from ..telemetry.prometheus_text import CONTENT_TYPE, Target, prometheus_text
from ..telemetry.sample import SampleTable
from .base import GipfelRouteHandler, route

#: Seconds before now that are scored.
_WINDOW_S = 60.0
#: Several scrapers, or one in a hurry, cost no more than one.
_FRESH_S = 1.0


class MetricsRouteHandler(GipfelRouteHandler):
    """The newest samples of all GPUs and hosts, and the score of the last minute."""

    @route
    async def get(self) -> None:
        """Answer Prometheus text."""
        kept: tuple[float, str] | None = self.settings.get("gipfel_metrics")
        if kept is None or time.monotonic() - kept[0] > _FRESH_S:
            run, broadcast = await self.telemetry.started()
            table = await broadcast.table(_WINDOW_S)
            kept = (time.monotonic(), await asyncio.to_thread(_text, run, table))
            self.settings["gipfel_metrics"] = kept
        self.finish(kept[1], set_content_type=CONTENT_TYPE)

    def update_api_activity(self) -> None:
        """None: a server that is scraped is not a server that is used."""


def _text(run: CurrentRun, table: SampleTable) -> str:
    real = tuple(device for device in table.devices if not device.simulated)
    table = replace(table, devices=real)
    document: dict[str, Any] | None = judged(table, run.folder.telemetry) if table.gpus else None
    target = Target(run.folder.name, run.cluster, "" if run.own else run.job_id)
    return prometheus_text(table, document, target, now_ns=time.time_ns())
