"""``gipfel/launches``: launches of all runs, their logs, stop and rerun."""

import asyncio
import os
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from gipfel_cluster.model import Frozen, GipfelError, Line, one_line

from ..server.launches import (
    LogPosition,
    executed_notebook,
    flight_of,
    launch_called,
    list_launches,
    log_page,
    open_rank_file,
)
from ..training.launch import Launch
from ..training.launch import launch as start_launch
from ..training.launch_summary import Kind
from .base import GipfelRouteHandler, route

_PIECE = 1 << 20


class LaunchRequest(Frozen):
    """Name of a launch."""

    launch: Line = Field(min_length=1, max_length=210)


class LogRequest(LaunchRequest):
    """Lines of a log: from a position, which is none at first, of all ranks or of one."""

    position: LogPosition | None = None
    rank: int | None = Field(None, ge=0, le=1_000_000)


class FileQuery(LaunchRequest):
    """A rank's file of a launch."""

    rank: Line = Field(pattern=r"^(0|[1-9][0-9]{0,6})$")


class LaunchesRouteHandler(GipfelRouteHandler):
    """``GET``: all launches, or one."""

    @route
    async def get(self) -> None:
        """Answer the newest, those that run first; with ``?launch=ID`` that one alone."""
        await self.settle_run()
        only = self.get_query_argument("launch", "")
        self.finish({"launches": await asyncio.to_thread(list_launches, os.environ, only)})

    async def settle_run(self) -> None:
        """Have the server's own run named in its variables, where it has one."""
        try:
            await self.telemetry.started()
        except GipfelError:
            return


class LaunchLogRouteHandler(GipfelRouteHandler):
    """``POST``, since a position may be long: log lines of the ranks of one launch."""

    @route
    async def post(self) -> None:
        """Answer lines, from where to read on, and what the flight recorder says once it has ended."""
        asked = self.body_as(LogRequest)
        self.finish(await asyncio.to_thread(_log, asked))


class LaunchActionRouteHandler(GipfelRouteHandler):
    """``POST``: stop a launch, launch it again, open its notebook."""

    @route
    async def post(self, action: str) -> None:
        """Carry out the action."""
        asked = self.body_as(LaunchRequest)
        launch = await asyncio.to_thread(launch_called, asked.launch, os.environ)
        if action == "notebook":
            root = Path(getattr(self.contents_manager, "root_dir", "."))
            self.finish({"path": await asyncio.to_thread(executed_notebook, launch, root)})
        elif action == "stop":
            await asyncio.to_thread(launch.stop)
            self.finish({"launch": asked.launch})
        else:
            await asyncio.to_thread(_again, launch)
            self.set_status(201)
            self.finish({"launch": asked.launch})


class LaunchFileRouteHandler(GipfelRouteHandler):
    """``GET``: a rank's file for another program, the profiler's trace or the flight recorder's dump."""

    @route
    async def get(self, kind: Kind) -> None:
        """Send it piece by piece, as a file to keep."""
        given = {name: self.get_query_argument(name, "", strip=False) for name in ("launch", "rank")}
        try:
            asked = FileQuery.model_validate(given)
        except ValidationError as error:
            raise GipfelError(one_line(f"The query is not valid: {error.errors()[0]['msg']}.")) from error
        launch = await asyncio.to_thread(launch_called, asked.launch, os.environ)
        file = await asyncio.to_thread(open_rank_file, launch, kind, int(asked.rank))
        name = f"launch-{launch.folder.name}-{kind}-rank-{asked.rank}"
        suffix, content = (
            (".json", "application/json") if kind == "trace" else ("", "application/octet-stream")
        )
        self.set_header("Content-Type", content)
        self.set_header("Content-Disposition", f'attachment; filename="{name}{suffix}"')
        with file:
            while piece := await asyncio.to_thread(file.read, _PIECE):
                self.write(piece)
                await self.flush()
        self.finish(set_content_type=content)


def _log(asked: LogRequest) -> dict[str, Any]:
    launch = launch_called(asked.launch, os.environ)
    rows, position, more = log_page(launch, asked.position, asked.rank)
    ended = launch.state.ended
    return {
        "lines": rows,
        "position": position.model_dump(mode="json"),
        "more": more,
        "ended": ended,
        "flight": flight_of(launch) if ended and asked.position is None else [],
    }


def _again(launch: Launch) -> None:
    try:
        spec = launch.resumed_spec
    except ValidationError as error:
        raise GipfelError(
            "This launch was requested by another version of Gipfel.", "Launch it again."
        ) from error
    start_launch(spec, os.environ, directory=Path.cwd())
