"""Refuses options of the REST API before the hub stores them, and logs a user's mistake in one line."""

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

from jupyterhub.apihandlers.users import UserServerAPIHandler
from jupyterhub.handlers.pages import SpawnHandler
from tornado import web

from ..failure.problem import SpawnProblem, options_problems
from ..spawner import EDFSpawner
from .options import read_options

# Options of 16 KiB with a name beside them, before anything is read.
_MOST_BYTES = 32 << 10


class CheckedServerHandler(UserServerAPIHandler):  # type: ignore[misc]
    """JupyterHub's handler of servers, where options that can't be are 400 and change nothing."""

    def get_json_body(self) -> Any:
        """The body of a change."""
        self._check_size()
        body = super().get_json_body()
        if isinstance(body, dict):
            self._check_options(body.get("user_options"))
        return body

    def get_server_json_body(self) -> Any:
        """The body of a start."""
        self._check_size()
        body = super().get_server_json_body()
        self._check_options(body["user_options"])
        return body

    def _check_size(self) -> None:
        if len(self.request.body) > _MOST_BYTES and self._is_ours():
            raise web.HTTPError(400, f"The body is longer than {_MOST_BYTES} bytes.")

    def _check_options(self, options: object) -> None:
        if isinstance(options, dict) and self._is_ours():
            with options_problems():
                read_options(options)

    def _is_ours(self) -> bool:
        return issubclass(self.settings["spawner_class"], EDFSpawner)


class PlainSpawnHandler(SpawnHandler):  # type: ignore[misc]
    """JupyterHub's handler of the form, whose log has one line for what a user did wrong."""

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
