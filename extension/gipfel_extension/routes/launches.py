"""``gipfel/launches``: launches of all runs, their logs, stopping one, launching it again."""

import asyncio
import os
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from gipfel_cluster.model import Frozen, GipfelError, Line

from ..server.launches import (
    LogPosition,
    executed_notebook,
    flight_of,
    launch_called,
    list_launches,
    log_page,
)
from ..training.launch import Launch
from ..training.launch import launch as start_launch
from .base import GipfelRouteHandler, route


class LaunchRequest(Frozen):
    """Which launch."""

    launch: Line = Field(min_length=1, max_length=210)


class LogRequest(LaunchRequest):
    """Which lines: from a position, which is none at first, of all ranks or of one."""

    position: LogPosition | None = None
    rank: int | None = Field(None, ge=0, le=1_000_000)


class LaunchesRouteHandler(GipfelRouteHandler):
    """All of them."""

    @route
    async def get(self) -> None:
        """Answer the newest, those that run first."""
        await self.settle_run()
        self.finish({"launches": await asyncio.to_thread(list_launches, os.environ)})

    async def settle_run(self) -> None:
        """Have the server's own run named in its variables, where it has one."""
        try:
            await self.telemetry.started()
        except GipfelError:
            return


class LaunchLogRouteHandler(GipfelRouteHandler):
    """What the ranks of one say; a POST, since a position may be long."""

    @route
    async def post(self) -> None:
        """Answer lines, from where to read on, and what the flight recorder says once it has ended."""
        asked = self.body_as(LogRequest)
        self.finish(await asyncio.to_thread(_log, asked))


class LaunchActionRouteHandler(GipfelRouteHandler):
    """Stop one, launch it again, open its notebook."""

    @route
    async def post(self, action: str) -> None:
        """Do it."""
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
            "This launch was asked for by another version of Gipfel.", "Launch it anew."
        ) from error
    start_launch(spec, os.environ, directory=Path.cwd())
