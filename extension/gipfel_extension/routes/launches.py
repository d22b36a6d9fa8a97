"""``gipfel/launches``: launches of all runs, their logs, stop and rerun."""

import asyncio
import contextlib
import os
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from gipfel_cluster.model import Frozen, GipfelError, OneLine

from ..server.launches import (
    LogPosition,
    executed_notebook,
    find_launch,
    list_launches,
    log_page,
    look_list,
    look_plan,
    open_look_file,
    open_rank_file,
)
from ..training.launch import Launch
from ..training.launch import launch as start_launch
from ..training.launch_summary import RankFileKind, flight_recorder_lines
from ..training.launches.requests import LookRequest, request_dumps, request_look
from .base import GipfelRouteHandler, invalid, root_directory, route

_PIECE = 1 << 20
_CONTENTS = {"svg": "image/svg+xml", "txt": "text/plain; charset=utf-8", "json": "application/json"}


class LaunchRequest(Frozen):
    """ID of a launch."""

    launch: OneLine = Field(min_length=1, max_length=210)


class LogRequest(LaunchRequest):
    """Request for log lines of one rank or of all; the first request of a page has no position."""

    position: LogPosition | None = None
    rank: int | None = Field(None, ge=0, le=1_000_000)


class FileQuery(LaunchRequest):
    """Query for a file that a rank of a launch has written."""

    rank: OneLine = Field(pattern=r"^(0|[1-9][0-9]{0,6})$")


class LookQuery(LaunchRequest):
    """Query for the cost of a look, that is of requesting stacks, a trace or a snapshot from running ranks.

    ``ranks`` is a selection; by default the ranks that a verdict names and one of their peers.
    """

    what: Literal["stacks", "flame", "trace", "memory", "dump"]
    ranks: OneLine = Field("", max_length=1000)
    seconds: int = Field(10, ge=1, le=600)
    steps: int = Field(3, ge=1, le=1000)


class LookFileQuery(LaunchRequest):
    """Query for a file that a rank wrote in a look; without a rank, for the flame graph of all ranks."""

    id: OneLine = Field(max_length=80)
    rank: int | None = Field(None, ge=0, le=1_000_000)


class LaunchesRouteHandler(GipfelRouteHandler):
    """``GET``: all launches, or one."""

    @route
    async def get(self) -> None:
        """Send the newest launches, running ones first; with ``?launch=ID`` only that launch."""
        with contextlib.suppress(GipfelError):
            # Start the server's run, which sets the environment variables that name it.
            await self.telemetry.ensure_started()
        only = self.get_query_argument("launch", "")
        self.finish({"launches": await asyncio.to_thread(list_launches, os.environ, only)})


class LaunchLogRouteHandler(GipfelRouteHandler):
    """``POST``: log lines of one launch; not ``GET``, because a position may be too long for a URL."""

    @route
    async def post(self) -> None:
        """Send lines, the position after them, and the flight recorder's report of an ended launch."""
        request = self.body_as(LogRequest)
        self.finish(await asyncio.to_thread(_log, request))


class LaunchActionRouteHandler(GipfelRouteHandler):
    """``POST``: stop a launch, rerun it, or open its notebook."""

    @route
    async def post(self, action: str) -> None:
        """Carry out the action."""
        request = self.body_as(LaunchRequest)
        launch = await asyncio.to_thread(find_launch, request.launch, os.environ)
        if action == "notebook":
            path = await asyncio.to_thread(executed_notebook, launch, root_directory(self))
            self.finish({"path": path})
        elif action == "stop":
            await asyncio.to_thread(launch.stop)
            self.finish({"launch": request.launch})
        else:
            await asyncio.to_thread(_rerun, launch)
            self.set_status(201)
            self.finish({"launch": request.launch})


class LooksRouteHandler(GipfelRouteHandler):
    """``GET``: looks at ranks of a launch, with the answers so far. ``POST``: request a look."""

    @route
    async def get(self) -> None:
        """Send the looks, the newest first."""
        query = self.query_as(LaunchRequest)
        launch = await asyncio.to_thread(find_launch, query.launch, os.environ)
        self.finish(await asyncio.to_thread(look_list, launch))

    @route
    async def post(self) -> None:
        """Request a look; send its ID, which is empty for dumps of the flight recorder."""
        query = self.body_as(LookQuery)
        self.set_status(201)
        self.finish({"id": await asyncio.to_thread(_start_look, query)})


class LookPlanRouteHandler(GipfelRouteHandler):
    """``GET``: the ranks that a look would be requested from, and its cost."""

    @route
    async def get(self) -> None:
        """Send ranks and cost, without requesting anything from the ranks."""
        query = self.query_as(LookQuery)
        launch = await asyncio.to_thread(find_launch, query.launch, os.environ)
        details = {"seconds": query.seconds, "steps": query.steps}
        self.finish(await asyncio.to_thread(lambda: look_plan(launch, query.what, query.ranks, **details)))


class LookFileRouteHandler(GipfelRouteHandler):
    """``GET``: a file that a rank wrote in a look."""

    @route
    async def get(self) -> None:
        """Send the file in chunks: stacks and flame graphs for display, other files as a download."""
        query = self.query_as(LookFileQuery)
        launch = await asyncio.to_thread(find_launch, query.launch, os.environ)
        file, name = await asyncio.to_thread(open_look_file, launch, query.id, query.rank)
        content = _CONTENTS.get(name.rpartition(".")[2], "application/octet-stream")
        # The file contains names of functions from the user's program, so forbid scripts and loading.
        self.set_header("Content-Security-Policy", "sandbox; default-src 'none'; style-src 'unsafe-inline'")
        shown = name.endswith((".svg", ".txt"))
        download = "" if shown else f"launch-{launch.folder.name}-{query.id}-{name}"
        with file:
            await self.send_pieces(partial(file.read, _PIECE), content, download)


class LaunchFileRouteHandler(GipfelRouteHandler):
    """``GET``: a profiler trace or a flight recorder dump of a rank."""

    @route
    async def get(self, kind: RankFileKind) -> None:
        """Send the file in chunks, as a download."""
        values = {name: self.get_query_argument(name, "", strip=False) for name in ("launch", "rank")}
        try:
            query = FileQuery.model_validate(values)
        except ValidationError as error:
            raise invalid("query", error) from error
        launch = await asyncio.to_thread(find_launch, query.launch, os.environ)
        file = await asyncio.to_thread(open_rank_file, launch, kind, int(query.rank))
        name = f"launch-{launch.folder.name}-{kind}-rank-{query.rank}"
        suffix, content = (
            (".json", "application/json") if kind == "trace" else ("", "application/octet-stream")
        )
        with file:
            await self.send_pieces(partial(file.read, _PIECE), content, f"{name}{suffix}")


def _log(request: LogRequest) -> dict[str, Any]:
    launch = find_launch(request.launch, os.environ)
    rows, position, more = log_page(launch, request.position, request.rank)
    ended = launch.state.ended
    return {
        "lines": rows,
        "position": position.model_dump(mode="json"),
        "more": more,
        "ended": ended,
        "flight_recorder": flight_recorder_lines(launch.folder) if ended and request.position is None else [],
    }


def _rerun(launch: Launch) -> None:
    try:
        spec = launch.resumed_spec
    except ValidationError as error:
        raise GipfelError(
            "This launch was started by another version of Gipfel.", "Start a new launch with this version."
        ) from error
    start_launch(spec, os.environ, directory=Path.cwd())


def _start_look(query: LookQuery) -> str:
    launch = find_launch(query.launch, os.environ)
    plan = look_plan(launch, query.what, query.ranks)
    if query.what == "dump":
        request_dumps(launch.folder)
        return ""
    request = LookRequest(what=query.what, ranks=plan["ranks"], seconds=query.seconds, steps=query.steps)
    return request_look(launch.folder, request).identifier
