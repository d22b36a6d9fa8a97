"""Routes about the server: run, lifetime, metrics, scripts and notebooks, and the websocket of changes."""

import asyncio
import gzip
import os
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from jupyter_core.paths import jupyter_path
from jupyter_core.utils import ensure_async
from jupyter_server.base.handlers import JupyterHandler
from tornado import web

from gipfel_cluster.model import GipfelError

from ..server.activity import WINDOW_S, current_activity
from ..server.analysis import score_document
from ..server.changes import ServerChanges, Topic, job_events
from ..server.launches import list_launches
from ..server.lifetime import ServerLifetime
from ..server.runs import CurrentRun, missing_gpus
from ..server.telemetry import ServerTelemetry
from ..server.vetting import ServerVetting
from ..telemetry.prometheus_text import CONTENT_TYPE, prometheus_text
from ..telemetry.sample import SampleTable
from ..training.papermill.notebook_file import read_content
from .base import GipfelRouteHandler, GipfelSocketHandler, root_directory, route
from .batch import batch_jobs
from .workloads import list_services, other_workloads

#: Seconds of samples in the score of `MetricsRouteHandler`.
_WINDOW_S = 60.0
#: Age up to which a response is reused, so that frequent scrapes cost no more than one per second.
_FRESH_S = 1.0
#: Name of the notebook that is listed first, for newcomers.
FIRST_NOTEBOOK = "start-here"
#: One year: the name of a script changes with its content.
_CACHE_CONTROL = "private, max-age=31536000, immutable"
_SETTING = "gipfel_changes"
#: Seconds between two observations: of topics that need only files, of topics that query a scheduler, and of
#: any topic while something is running.
_REST_S, _SCHEDULER_REST_S, _BUSY_S = 5.0, 30.0, 3.0


class RunRouteHandler(GipfelRouteHandler):
    """``GET``: node, job, environment, end of the job, devices and record."""

    @route
    async def get(self) -> None:
        """Send the run, or the reason if there is none."""
        try:
            run, broadcast = await self.telemetry.ensure_started()
            response = await asyncio.to_thread(run.describe)
            shown = await broadcast.devices()
            response["no_gpu"] = await asyncio.to_thread(missing_gpus, response["record"], shown, run.node)
            devices = [device.to_json() for device in shown]
        except GipfelError as error:
            response = {"run": None, "message": str(error), "node": "", "job_id": "", "cluster": ""}
            response |= {"edf": None, "ends_ns": None, "record": {}, "no_gpu": ""}
            devices = []
        ends = self.settings["gipfel_lifetime"].ends
        if ends is not None:
            # The hub may have extended the job, so its time takes precedence over the record's.
            response["ends_ns"] = int(ends) * 1_000_000_000
        self.finish({**response, "devices": devices})


class MetricsRouteHandler(GipfelRouteHandler):
    """``GET``: the newest samples of all GPUs and hosts, and the score of the last minute."""

    #: Scraping does not count as use of the server.
    _track_activity = False

    @route
    async def get(self) -> None:
        """Send metrics in Prometheus text format."""
        cached: tuple[float, str] | None = self.settings.get("gipfel_metrics")
        if cached is None or time.monotonic() - cached[0] > _FRESH_S:
            run, broadcast = await self.telemetry.ensure_started()
            table = await broadcast.table(_WINDOW_S)
            cached = (time.monotonic(), await asyncio.to_thread(_text, run, table))
            self.settings["gipfel_metrics"] = cached
        self.finish(cached[1], set_content_type=CONTENT_TYPE)


def _text(run: CurrentRun, table: SampleTable) -> str:
    real = tuple(device for device in table.devices if not device.simulated)
    table = replace(table, devices=real)
    document: dict[str, Any] | None = score_document(table, run.folder.telemetry) if table.gpus else None
    return prometheus_text(
        table,
        document,
        run=run.folder.name,
        cluster=run.cluster,
        job_id="" if run.created_by_server else run.job_id,
        now_ns=time.time_ns(),
    )


class ScriptsRouteHandler(JupyterHandler):
    """``GET``: a script of the labextension, compressed and cached; JupyterLab's route does neither."""

    @web.authenticated
    def get(self, name: str) -> None:
        """Send a script; compressed if the browser accepts gzip."""
        path = _installed_script(name)
        if path is None:
            raise web.HTTPError(404)
        self.set_header("Content-Type", "text/javascript; charset=utf-8")
        self.set_header("Cache-Control", _CACHE_CONTROL)
        self.set_header("Vary", "Accept-Encoding")
        if "gzip" in self.request.headers.get("Accept-Encoding", ""):
            self.set_header("Content-Encoding", "gzip")
            self.finish(_compressed(path, path.stat().st_mtime_ns))
        else:
            self.finish(path.read_bytes())


def _installed_script(name: str) -> Path | None:
    """Return the path of a script on Jupyter's data path, where the wheel installs the labextension."""
    folders = (Path(folder) / "@gipfel" / "extension" / "static" for folder in jupyter_path("labextensions"))
    return next((path for folder in folders if (path := folder / name).is_file()), None)


@cache
def _compressed(path: Path, _: int) -> bytes:
    return gzip.compress(path.read_bytes(), 6, mtime=0)


class LifetimeRouteHandler(GipfelRouteHandler):
    """``GET``: lifetime of this server; JupyterLab's polling does not count as use of the server."""

    _track_activity = False

    @property
    def lifetime(self) -> ServerLifetime:
        """Lifetime of this server."""
        found: ServerLifetime = self.settings["gipfel_lifetime"]
        return found

    @route
    async def get(self) -> None:
        """Send the end of the job, the times of notices before it, the stop of an idle server, and events."""
        await self.finish_lifetime()

    async def finish_lifetime(self) -> None:
        """Send the lifetime and the events of jobs."""
        events = await asyncio.to_thread(job_events, os.environ)
        self.finish({**self.lifetime.describe(), "events": events})


class ExtendRouteHandler(LifetimeRouteHandler):
    """``POST``: extend the job."""

    @route
    async def post(self) -> None:
        """Request the time that the site allows, and send the response of `LifetimeRouteHandler`."""
        await self.lifetime.extend()
        await self.finish_lifetime()


class KeepAliveRouteHandler(LifetimeRouteHandler):
    """``POST``: keep an idle server."""

    @route
    async def post(self) -> None:
        """Count this request as use, and send the response of `LifetimeRouteHandler`."""
        await self.lifetime.keep_alive()
        await self.finish_lifetime()


class NotebooksRouteHandler(GipfelRouteHandler):
    """``GET``: the shipped notebooks."""

    @route
    async def get(self) -> None:
        """Send names and titles of the notebooks."""
        found = await asyncio.to_thread(shipped_notebooks)
        titles = [
            {"name": name, "title": title(await asyncio.to_thread(read_content, path))}
            for name, path in found.items()
        ]
        self.finish({"notebooks": titles})


class NotebookRouteHandler(GipfelRouteHandler):
    """``POST``: a copy of a shipped notebook."""

    @route
    async def post(self, name: str) -> None:
        """Copy the notebook to the server's root directory unless it exists there, and send its path."""
        path = f"{name}.ipynb"
        contents: Any = self.contents_manager
        exists = await ensure_async(contents.file_exists(path))
        if not exists:
            found = await asyncio.to_thread(shipped_notebooks)
            if name not in found:
                known = ", ".join(found) or "none"
                raise GipfelError(
                    f"This installation has no notebook {name!r}.", f"Available notebooks: {known}."
                )
            content = await asyncio.to_thread(read_content, found[name])
            model = {"type": "notebook", "format": "json", "content": content}
            await ensure_async(contents.save(model, path))
        self.set_status(200 if exists else 201)
        self.finish({"path": path, "created": not exists})


def shipped_notebooks() -> dict[str, Path]:
    """Return the file of each notebook by name, the newcomers' first; earlier paths take precedence."""
    found: dict[str, Path] = {}
    for folder in jupyter_path("gipfel", "notebooks"):
        for path in sorted(Path(folder).glob("*.ipynb")):
            found.setdefault(path.stem, path)
    return dict(sorted(found.items(), key=lambda item: (item[0] != FIRST_NOTEBOOK, item[0])))


def title(notebook: dict[str, Any]) -> str:
    """Return the first heading of a notebook without ``#``; empty if it has none."""
    for cell in notebook["cells"]:
        lines = "".join(cell.get("source", "")).splitlines() if cell.get("cell_type") == "markdown" else []
        for line in lines:
            if line.startswith("#"):
                return line.lstrip("# ")
    return ""


class ChangesRouteHandler(GipfelSocketHandler):
    """Websocket that sends the topics that have changed, and the current activity of the GPUs."""

    async def messages(self) -> AsyncIterator[dict[str, Any]]:
        """Yield a message per change; all pages of the server share the observations."""
        changes: ServerChanges | None = self.settings.get(_SETTING)
        if changes is None:
            changes = self.settings[_SETTING] = ServerChanges(_topics(self), self.log)
        async for message in changes.messages():
            yield message


def _topics(handler: JupyterHandler) -> dict[str, Topic]:
    settings = handler.settings
    telemetry: ServerTelemetry = settings["gipfel"]
    vetting: ServerVetting = settings["gipfel_vetting"]
    root = root_directory(handler)

    async def activity() -> dict[str, Any]:
        _, broadcast = await telemetry.ensure_started()
        devices, table = await broadcast.devices(), await broadcast.table(WINDOW_S)
        return await asyncio.to_thread(current_activity, table, devices, time.time_ns())

    async def launches() -> list[dict[str, Any]]:
        await telemetry.ensure_started()
        return await asyncio.to_thread(list_launches, os.environ)

    async def vettings() -> dict[str, Any]:
        run, _ = await telemetry.ensure_started()
        found = await vetting.view(run.folder.path, known="", rows=1)
        return {name: found[name] for name in ("state", "version", "problem", "can_stop")}

    async def lifetime() -> dict[str, Any]:
        found = settings["gipfel_lifetime"].describe()
        return {**found, "now_ms": 0, "events": await asyncio.to_thread(job_events, os.environ)}

    return {
        "activity": Topic(activity, _REST_S, sends_value=True),
        "launches": Topic(launches, _REST_S, _BUSY_S, lambda all_: any(e["phase"] != "ended" for e in all_)),
        "batch": Topic(
            lambda: batch_jobs(root),
            _SCHEDULER_REST_S,
            _BUSY_S,
            lambda all_: any(not task["ended"] for job in all_ for task in job["tasks"]),
        ),
        "other": Topic(
            lambda: asyncio.to_thread(other_workloads),
            _REST_S,
            _BUSY_S,
            lambda all_: any(not each["ended"] for each in all_),
        ),
        "services": Topic(
            lambda: asyncio.to_thread(list_services),
            _REST_S,
            _BUSY_S,
            lambda all_: any(not each["ended"] and each["state"] != "running" for each in all_),
        ),
        "vetting": Topic(vettings, _REST_S, 1.0, lambda found: found["state"] in ("running", "starting")),
        "lifetime": Topic(lifetime, _REST_S),
    }
