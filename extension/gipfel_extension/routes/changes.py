"""``gipfel/changes``: a websocket that reports what has changed, in place of polls of every page."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from typing import Any

from jupyter_server.base.handlers import JupyterHandler

from ..server.activity import WINDOW_S, current_activity
from ..server.changes import ServerChanges, Topic
from ..server.job_events import job_events
from ..server.launches import list_launches
from ..server.telemetry import ServerTelemetry
from ..server.vetting import ServerVetting
from .base import GipfelSocketHandler
from .batch import batch_jobs, root_directory
from .services import list_services
from .workloads import other_workloads

_SETTING = "gipfel_changes"
#: Seconds between two observations: of what this server itself reads, of what asks a scheduler, and while
#: something is running.
_REST_S, _SCHEDULER_REST_S, _BUSY_S = 5.0, 30.0, 3.0


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
        "batch": Topic(lambda: batch_jobs(root), _SCHEDULER_REST_S, _BUSY_S, _has_running_task),
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


def _has_running_task(jobs: list[dict[str, Any]]) -> bool:
    return any(not task["ended"] for job in jobs for task in job["tasks"])
