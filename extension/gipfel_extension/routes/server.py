"""Server routes: ``gipfel/run`` for the panel, ``gipfel/metrics`` for a Prometheus, the panel's scripts.

Scripts are compressed and kept by the browser: their names hold a hash of their content.
"""

import asyncio
import gzip
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from jupyter_core.paths import jupyter_path
from jupyter_server.base.handlers import JupyterHandler
from tornado import web

from gipfel_cluster.model import GipfelError

from ..server.analysis import judged
from ..server.runs import CurrentRun, missing_gpus
from ..telemetry.prometheus_text import CONTENT_TYPE, Target, prometheus_text
from ..telemetry.sample import SampleTable
from .base import GipfelRouteHandler, route

#: Seconds before now that are scored.
_WINDOW_S = 60.0
#: Several scrapers, or one in a hurry, cost no more than one.
_FRESH_S = 1.0
#: A year: another content has another name.
_KEPT = "private, max-age=31536000, immutable"


class RunRouteHandler(GipfelRouteHandler):
    """``GET``: node, job, environment, time left, devices and record."""

    @route
    async def get(self) -> None:
        """Answer also where there is no run, with the reason."""
        try:
            run, broadcast = await self.telemetry.started()
            described = await asyncio.to_thread(run.describe)
            shown = await broadcast.devices()
            described["no_gpu"] = await asyncio.to_thread(missing_gpus, described["record"], shown, run.node)
            devices = [device.to_json() for device in shown]
        except GipfelError as error:
            described = {"run": None, "message": str(error), "node": "", "job_id": "", "cluster": ""}
            described |= {"edf": None, "ends_ns": None, "record": {}, "no_gpu": ""}
            devices = []
        ends = self.settings["gipfel_lifetime"].ends
        if ends is not None:
            # The hub's word: the job's time may have been extended.
            described["ends_ns"] = int(ends) * 1_000_000_000
        self.finish({**described, "devices": devices})


class MetricsRouteHandler(GipfelRouteHandler):
    """``GET``: the newest samples of all GPUs and hosts, and the score of the last minute."""

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
        """Skip it: a server that is scraped is not a server that is used."""


def _text(run: CurrentRun, table: SampleTable) -> str:
    real = tuple(device for device in table.devices if not device.simulated)
    table = replace(table, devices=real)
    document: dict[str, Any] | None = judged(table, run.folder.telemetry) if table.gpus else None
    target = Target(run.folder.name, run.cluster, "" if run.own else run.job_id)
    return prometheus_text(table, document, target, now_ns=time.time_ns())


class ScriptsRouteHandler(JupyterHandler):
    """``GET`` in place of the lab's own route, which sends such a file whole, and again with every page."""

    @web.authenticated
    def get(self, name: str) -> None:
        """Answer with a script; compressed where the browser reads that."""
        path = _installed(name)
        if path is None:
            raise web.HTTPError(404)
        self.set_header("Content-Type", "text/javascript; charset=utf-8")
        self.set_header("Cache-Control", _KEPT)
        self.set_header("Vary", "Accept-Encoding")
        if "gzip" in self.request.headers.get("Accept-Encoding", ""):
            self.set_header("Content-Encoding", "gzip")
            self.finish(_compressed(path, path.stat().st_mtime_ns))
        else:
            self.finish(path.read_bytes())


def _installed(name: str) -> Path | None:
    """Return a script where the lab finds it too: the wheel has it as data, not in the package."""
    folders = (Path(folder) / "@gipfel" / "extension" / "static" for folder in jupyter_path("labextensions"))
    return next((path for folder in folders if (path := folder / name).is_file()), None)


@cache
def _compressed(path: Path, _: int) -> bytes:
    return gzip.compress(path.read_bytes(), 6, mtime=0)
