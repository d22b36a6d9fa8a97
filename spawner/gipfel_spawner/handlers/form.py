"""Handlers of the form: its page's questions to the hub, and JupyterHub's own handlers with checked options.

A question (expected start, check of an EDF, a new EDF saved) acts for one user, for whom JupyterHub's scope
``servers`` is needed; a server's own token has it not. JupyterHub checks the XSRF token of a browser's
requests. Nothing blocks the hub: commands have time limits, users a rate limit.

`CheckedServerHandler` and `PlainSpawnHandler` refuse options before the hub stores them, and log a user's
mistake in one line.
"""

import asyncio
import contextlib
import json
import logging
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, MutableMapping
from datetime import datetime
from pathlib import Path
from typing import Any

from jupyterhub.apihandlers import APIHandler
from jupyterhub.apihandlers.users import UserServerAPIHandler
from jupyterhub.handlers.pages import SpawnHandler
from jupyterhub.handlers.static import CacheControlStaticFilesHandler
from jupyterhub.scopes import needs_scope
from pydantic import ValidationError
from tornado import web

from gipfel_cluster.edf.draft import Draft
from gipfel_cluster.model import GipfelError

from ..failure.problem import SpawnProblem, options_problems
from ..form.options import OptionError, read_options
from ..spawner import EDFSpawner

_MOST_NAMES = 4096
_MOST_BYTES = 160 << 10
_FOLDER = {"path": str(Path(__file__).parents[1] / "static")}
_USER = r"/api/gipfel/users/([^/]+)"
# Options of 16 KiB with a name beside them, before anything is read.
_LONGEST_BODY = 32 << 10


class RateLimiter:
    """At most so many requests within so many seconds, for each name."""

    def __init__(
        self, most: int, seconds: float = 60.0, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = most
        self._seconds = seconds
        self._clock = clock
        self._asked: OrderedDict[str, deque[float]] = OrderedDict()

    def wait(self, name: str) -> float:
        """Count one request; return 0, or for a refused one the seconds until the next is accepted."""
        now = self._clock()
        times = self._asked.setdefault(name, deque())
        self._asked.move_to_end(name)
        while len(self._asked) > _MOST_NAMES:
            self._asked.popitem(last=False)
        while times and now - times[0] >= self._seconds:
            times.popleft()
        if len(times) >= self._most:
            return self._seconds - (now - times[0])
        times.append(now)
        return 0.0


class FormHandler(APIHandler):
    """A question of the form's page: JSON in, JSON out."""

    #: How often a user may ask.
    rate = RateLimiter(40, 60.0)

    async def answer(self, spawner: EDFSpawner, content: dict[str, Any]) -> dict[str, Any]:
        """Return the answer; a `GipfelError` becomes its ``problem``."""
        raise NotImplementedError

    @needs_scope("servers")
    async def post(self, user_name: str) -> None:
        """Answer for a user's own form, or for that of whom an administrator acts for."""
        spawner = self._spawner(user_name)
        if len(self.request.body) > _MOST_BYTES:
            raise web.HTTPError(413, f"The question is longer than {_MOST_BYTES} bytes.")
        content = self.get_json_body()
        if not isinstance(content, dict):
            raise web.HTTPError(400, "Give one object of JSON.")
        seconds = self.rate.wait(f"{self.current_user.kind}:{self.current_user.name}")
        if seconds:
            self.set_header("Retry-After", str(int(seconds) + 1))
            raise web.HTTPError(429, f"Asked too often. Try again in {int(seconds) + 1} s.")
        try:
            answer = await self.answer(spawner, content)
        except OptionError as error:
            answer = {"problem": str(error), "field": error.field}
        except GipfelError as error:
            answer = {"problem": str(error)}
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps(answer))

    def get_json_body(self) -> Any:
        """Return the body; one that is not valid JSON is 400, without a stack in the hub's log."""
        try:
            return json.loads(self.request.body)
        except (ValueError, RecursionError):
            raise web.HTTPError(400, "Give one object of JSON.") from None

    def _spawner(self, user_name: str) -> EDFSpawner:
        user = self.find_user(user_name)
        spawner = None if user is None else user.spawner
        if not isinstance(spawner, EDFSpawner):
            raise web.HTTPError(404, "There is no such user.")
        return spawner


class ExpectedStartHandler(FormHandler):
    """``POST …/expected-start`` with options: when such a job would start. No job is made."""

    rate = RateLimiter(40, 60.0)

    async def answer(self, spawner: EDFSpawner, content: dict[str, Any]) -> dict[str, Any]:
        """Return ``start``, an ISO time or empty for at once, and the same in words."""
        start = await spawner.options.expected_start(read_options(content))
        return {"start": start, "words": clock_text(start, datetime.now().astimezone())}


class EnvironmentHandler(FormHandler):
    """``POST …/environment`` with ``edf``: the diagnostics of an EDF, and what it resolves to."""

    rate = RateLimiter(40, 60.0)

    async def answer(self, spawner: EDFSpawner, content: dict[str, Any]) -> dict[str, Any]:
        """Return the answer of ``edf check --here --json``, run as the user."""
        options = read_options(content)
        return await spawner.options.inspect_environment(options.edf, options.cluster)


class DraftHandler(FormHandler):
    """``POST …/draft`` with a `Draft`: an EDF that is pasted, uploaded or filled in, checked or saved."""

    rate = RateLimiter(30, 60.0)

    async def answer(self, spawner: EDFSpawner, content: dict[str, Any]) -> dict[str, Any]:
        """Return the answer of `gipfel_cluster.edf.draft`, run as the user."""
        try:
            draft = Draft.model_validate(content)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            where = ".".join(map(str, first["loc"])) or "the draft"
            raise OptionError(f"The value for {where[:60]} can't be used: {first['msg']}.") from None
        return await spawner.options.draft_environment(draft)


def clock_text(start: str, now: datetime) -> str:
    """Return a start for people: ``now``, a time of today, or a date with a time; by the hub's clock."""
    if not start:
        return "now"
    moment = datetime.fromisoformat(start).astimezone(now.tzinfo)
    return moment.strftime("%H:%M" if moment.date() == now.date() else "%Y-%m-%d %H:%M")


#: Routes below the hub's own prefix.
ROUTES: tuple[tuple[Any, ...], ...] = (
    (_USER + "/expected-start", ExpectedStartHandler),
    (_USER + "/environment", EnvironmentHandler),
    (_USER + "/draft", DraftHandler),
    (r"/gipfel/static/([a-z.]+)", CacheControlStaticFilesHandler, _FOLDER),
)


@contextlib.contextmanager
def _cancelled_start() -> Iterator[None]:
    """Turn the end of a start into 409: JupyterHub ends whoever waits for it with a cancellation."""
    try:
        yield
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise web.HTTPError(409, "The start was cancelled.") from None


class CheckedServerHandler(UserServerAPIHandler):
    """JupyterHub's handler of servers, where options that can't be used are 400 and change nothing."""

    async def post(self, user_name: str, server_name: str = "") -> None:
        """Start a server; a start that is stopped meanwhile is 409."""
        with _cancelled_start():
            await super().post(user_name, server_name)

    def get_json_body(self) -> Any:
        """Return the body of a change."""
        self._check_body()
        body = super().get_json_body()
        if isinstance(body, dict):
            self._check_options(body.get("user_options"))
        return body

    def get_server_json_body(self) -> Any:
        """Return the body of a start."""
        self._check_body()
        body = super().get_server_json_body()
        self._check_options(body["user_options"])
        return body

    def _check_body(self) -> None:
        body = self.request.body
        if not self._is_ours():
            return
        if len(body) > _LONGEST_BODY:
            raise web.HTTPError(400, f"The body is longer than {_LONGEST_BODY} bytes.")
        try:
            # JupyterHub, which reads it next, logs a stack.
            json.loads(body.decode(errors="replace").strip() or "null")
        except (ValueError, RecursionError):
            raise web.HTTPError(400, "The body is not valid JSON.") from None

    def _check_options(self, options: object) -> None:
        if isinstance(options, dict) and self._is_ours():
            with options_problems():
                read_options(options)

    def _is_ours(self) -> bool:
        return issubclass(self.settings["spawner_class"], EDFSpawner)


class PlainSpawnHandler(SpawnHandler):
    """JupyterHub's handler of the form, whose log has one line for a user's mistake."""

    async def prepare(self) -> None:
        """Refuse a link that is not UTF-8, of which JupyterHub would log a stack."""
        await super().prepare()
        try:
            for values in self.request.query_arguments.values():
                b"".join(values).decode()
        except UnicodeDecodeError:
            raise web.HTTPError(400, "This link can't be read: it is not UTF-8.") from None

    async def post(self, *names: str) -> None:
        """Start with the form's options; a start that is stopped meanwhile is 409."""
        with _cancelled_start():
            if (answering := super().post(*names)) is not None:
                await answering

    @property
    def log(self) -> "PlainLog":
        """Log of the hub, without stacks of users' mistakes."""
        return PlainLog(super().log, {})


class PlainLog(logging.LoggerAdapter[logging.Logger]):
    """A log without the stack of a `SpawnProblem`, which is for its user and holds its reason."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Put the problem's line in the place of its stack."""
        problem = sys.exc_info()[1]
        if kwargs.get("exc_info") and isinstance(problem, SpawnProblem):
            return f"{msg}: {problem.jupyterhub_message}", {**kwargs, "exc_info": False}
        return msg, kwargs
