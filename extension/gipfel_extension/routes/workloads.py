"""``gipfel/workloads``: workloads of the kinds that have no routes of their own."""

import asyncio
import os
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from gipfel_cluster.model import Frozen
from gipfel_cluster.workloads.kinds import Workload, Workloads
from gipfel_cluster.workloads.logs import last_lines

from .base import GipfelRouteHandler, route

#: Largest number of workloads in a response, and of lines of a log.
MAX_WORKLOADS, MAX_LINES = 200, 200
#: ``ID`` or ``RUN/ID``.
_ID = "^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?$"
#: What the panel shows of a workload.
WORKLOAD_FIELDS = {
    *("id", "kind", "name", "title", "state", "ended", "reason", "nodes"),
    *("created_ns", "started_ns", "ended_ns", "exit_status"),
}
_WITH_OWN_ROUTES = frozenset(("launch", "batch", "service"))


class WorkloadRequest(Frozen):
    """Kind and ID of a workload, as `gipfel ps` lists them."""

    kind: str = Field(min_length=1, max_length=64, pattern="^[A-Za-z][A-Za-z0-9_-]*$")
    id: str = Field(min_length=1, max_length=300, pattern=_ID)


class WorkloadsRouteHandler(GipfelRouteHandler):
    """``GET``: the user's workloads of these kinds."""

    @route
    async def get(self) -> None:
        """Send the newest workloads, the newest first."""
        self.finish({"workloads": await asyncio.to_thread(other_workloads)})


class WorkloadActionRouteHandler(GipfelRouteHandler):
    """``POST``: stop or rerun one workload."""

    @route
    async def post(self, action: Literal["stop", "rerun"]) -> None:
        """Request the end of a workload, or start it again; send the workload's ID."""
        request = self.body_as(WorkloadRequest)
        started = await asyncio.to_thread(_stop if action == "stop" else _rerun, request)
        self.finish({"id": started.id, "kind": started.kind})


class WorkloadLogRouteHandler(GipfelRouteHandler):
    """``GET``: the end of a workload's log."""

    @route
    async def get(self) -> None:
        """Send the last lines of all ranks or tasks, ordered by time."""
        request = self.query_as(WorkloadRequest)
        self.finish({"lines": await asyncio.to_thread(_log, request)})


def _workloads() -> Workloads:
    return Workloads(os.environ, {})


def other_workloads() -> list[dict[str, Any]]:
    """Return the workloads of these kinds, the newest first; do not query the scheduler about others."""
    found = _workloads()
    kinds = (kind for kind in found.kinds if kind not in _WITH_OWN_ROUTES)
    listed = (each for kind in kinds for each in found.list(ended=True, kind=kind))
    newest = sorted(listed, key=lambda each: each.created_ns, reverse=True)[:MAX_WORKLOADS]
    return [each.model_dump(mode="json", include=WORKLOAD_FIELDS) for each in newest]


def _find(found: Workloads, request: WorkloadRequest) -> Workload:
    return found.find(f"{request.kind}:{request.id}")


def _stop(request: WorkloadRequest) -> Workload:
    found = _workloads()
    workload = _find(found, request)
    if not workload.ended:
        found.stop(workload)
    return workload


def _rerun(request: WorkloadRequest) -> Workload:
    found = _workloads()
    return found.rerun(_find(found, request), directory=Path.home(), report=lambda _: None)


def _log(request: WorkloadRequest) -> list[dict[str, Any]]:
    found = _workloads()
    lines, _ = last_lines(found.logs(_find(found, request)), MAX_LINES)
    return [{"rank": line.rank, "text": line.text} for line in lines]
