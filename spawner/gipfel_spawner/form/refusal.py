"""Refuses options of the REST API before the hub stores them, and logs a user's mistake in one line."""

import asyncio
import contextlib
import json
import logging
import sys
from collections.abc import Iterator, MutableMapping
from typing import Any

from jupyterhub.apihandlers.users import UserServerAPIHandler
from jupyterhub.handlers.pages import SpawnHandler
from tornado import web

from ..failure.problem import SpawnProblem, options_problems
from ..spawner import EDFSpawner
from .options import read_options

# Options of 16 KiB with a name beside them, before anything is read.
_MOST_BYTES = 32 << 10


@contextlib.contextmanager
def _cancelled_start() -> Iterator[None]:
    """JupyterHub lets whoever waits for a start hear of its end as if the waiting had been ended."""
    try:
        yield
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise web.HTTPError(409, "The start was cancelled.") from None


class CheckedServerHandler(UserServerAPIHandler):  # type: ignore[misc]
    """JupyterHub's handler of servers, where options that can't be are 400 and change nothing."""

    async def post(self, user_name: str, server_name: str = "") -> None:
        """Start a server; a start that is stopped meanwhile is 409."""
        with _cancelled_start():
            await super().post(user_name, server_name)

    def get_json_body(self) -> Any:
        """The body of a change."""
        self._check_body()
        body = super().get_json_body()
        if isinstance(body, dict):
            self._check_options(body.get("user_options"))
        return body

    def get_server_json_body(self) -> Any:
        """The body of a start."""
        self._check_body()
        body = super().get_server_json_body()
        self._check_options(body["user_options"])
        return body

    def _check_body(self) -> None:
        body = self.request.body
        if not self._is_ours():
            return
        if len(body) > _MOST_BYTES:
            raise web.HTTPError(400, f"The body is longer than {_MOST_BYTES} bytes.")
        try:
            # JupyterHub, which reads it next, logs a stack.
            json.loads(body.decode(errors="replace").strip() or "null")
        except (ValueError, RecursionError):
            raise web.HTTPError(400, "The body is no JSON.") from None

    def _check_options(self, options: object) -> None:
        if isinstance(options, dict) and self._is_ours():
            with options_problems():
                read_options(options)

    def _is_ours(self) -> bool:
        return issubclass(self.settings["spawner_class"], EDFSpawner)


class PlainSpawnHandler(SpawnHandler):  # type: ignore[misc]
    """JupyterHub's handler of the form, whose log has one line for what a user did wrong."""

    async def prepare(self) -> None:
        """Refuse a link that is no text, of which JupyterHub would log a stack."""
        await super().prepare()
        try:
            for values in self.request.query_arguments.values():
                b"".join(values).decode()
        except UnicodeDecodeError:
            raise web.HTTPError(400, "This link can't be read: it is not UTF-8.") from None

    async def post(self, *names: str) -> None:
        """Start what the form says; a start that is stopped meanwhile is 409."""
        with _cancelled_start():
            if (answering := super().post(*names)) is not None:
                await answering

    @property
    def log(self) -> "PlainLog":
        """The hub's log."""
        return PlainLog(super().log, {})


class PlainLog(logging.LoggerAdapter[logging.Logger]):
    """A log without the stack of a `SpawnProblem`, which is for its user and holds its reason."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Put the problem's line in the place of its stack."""
        problem = sys.exc_info()[1]
        if kwargs.get("exc_info") and isinstance(problem, SpawnProblem):
            return f"{msg}: {problem.jupyterhub_message}", {**kwargs, "exc_info": False}
        return msg, kwargs
