"""Handlers of the form: requests of its page, and JupyterHub's handlers with validated options.

The requests (expected start, check of an EDF, saving a new EDF) act for one user and require JupyterHub's
scope ``servers`` for that user. A server's own token has this scope only if the site lets servers start
services.
JupyterHub checks the XSRF token of a browser's requests. No request blocks the hub: commands have time
limits, and users a rate limit.

`ValidatedServerHandler` and `ValidatedSpawnHandler` reject options before the hub stores them, and log a
user's mistake in one line.
"""

import asyncio
import contextlib
import json
import logging
import re
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, MutableMapping
from itertools import chain, count
from pathlib import Path
from typing import Any, ClassVar

from jupyterhub.apihandlers import APIHandler
from jupyterhub.apihandlers.users import UserServerAPIHandler
from jupyterhub.handlers.pages import SpawnHandler
from jupyterhub.handlers.static import CacheControlStaticFilesHandler
from jupyterhub.scopes import needs_scope
from pydantic import ValidationError
from tornado import web

from gipfel_cluster.edf.draft import Draft
from gipfel_cluster.model import GipfelError, first_problem
from gipfel_cluster.scheduler.slurm_usage import bound_text, wait_row

from ..failure import SpawnProblem, options_problems
from ..form.options import OptionError, read_options
from ..spawner import EDFSpawner
from ..start.progress import clock_text

#: Users whose requests a `RateLimiter` counts; above, the least recent one is forgotten.
_MAX_TRACKED_USERS = 4096
#: Maximum size of a request of the form's page; the largest has the text of an EDF.
_MAX_REQUEST_BYTES = 160 << 10
_STATIC = {"path": str(Path(__file__).parents[1] / "static")}
_USER = r"/api/gipfel/users/([^/]+)"
# The limit of the options is 16 KiB; this one is checked before the body is parsed.
_MAX_START_BODY_BYTES = 32 << 10


class RateLimiter:
    """Limit of ``max_requests`` within ``seconds`` for each user."""

    def __init__(
        self, max_requests: int, seconds: float = 60.0, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_requests = max_requests
        self._seconds = seconds
        self._clock = clock
        self._requests: OrderedDict[str, deque[float]] = OrderedDict()

    def acquire(self, name: str) -> float:
        """Count one request; return 0, or for a refused one the seconds until the next is accepted."""
        now = self._clock()
        times = self._requests.setdefault(name, deque())
        self._requests.move_to_end(name)
        while len(self._requests) > _MAX_TRACKED_USERS:
            self._requests.popitem(last=False)
        while times and now - times[0] >= self._seconds:
            times.popleft()
        if len(times) >= self._max_requests:
            return self._seconds - (now - times[0])
        times.append(now)
        return 0.0


class FormHandler(APIHandler):
    """Base of the handlers for requests of the form's page, with JSON bodies and answers."""

    #: Rate limit of a user's requests; each subclass has its own.
    rate: ClassVar[RateLimiter]

    async def answer(self, spawner: EDFSpawner, content: dict[str, Any]) -> dict[str, Any]:
        """Return the answer; a `GipfelError` becomes its ``problem``."""
        raise NotImplementedError

    @needs_scope("servers")
    async def post(self, user_name: str) -> None:
        """Answer a request for a user's form, sent by the user or by an administrator."""
        spawner = self._spawner(user_name)
        if len(self.request.body) > _MAX_REQUEST_BYTES:
            raise web.HTTPError(413, f"The request is longer than {_MAX_REQUEST_BYTES} bytes.")
        content = self.get_json_body()
        if not isinstance(content, dict):
            raise web.HTTPError(400, "Give one object of JSON.")
        seconds = self.rate.acquire(f"{self.current_user.kind}:{self.current_user.name}")
        if seconds:
            self.set_header("Retry-After", str(int(seconds) + 1))
            raise web.HTTPError(429, f"Too many requests. Try again in {int(seconds) + 1} s.")
        try:
            answer = await self.answer(spawner, content)
        except OptionError as error:
            answer = {"problem": str(error), "field": error.field}
        except GipfelError as error:
            answer = {"problem": str(error)}
        self.finish(json.dumps(answer))

    def get_json_body(self) -> Any:
        """Return the body; answer 400 to invalid JSON, without a stack trace in the hub's log."""
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
    """Answer ``POST …/expected-start`` with the time at which a job with these options would start."""

    rate = RateLimiter(40, 60.0)

    async def answer(self, spawner: EDFSpawner, content: dict[str, Any]) -> dict[str, Any]:
        """Return ``start``, the latest time in ISO format or empty for immediately, and the same as ``text``.

        If there were earlier jobs, ``bound`` is a sentence about the waits of jobs like this one, and
        ``waits`` a table of all: partition, GPUs, number of jobs, and the times within which half and 95 %
        of them started.
        """
        found = await spawner.options.forecast(read_options(content))
        answer: dict[str, Any] = {
            "start": found.latest,
            "text": clock_text(found.latest) if found.latest else "now",
        }
        if found.waits:
            answer["waits"] = [wait_row(each) for each in found.waits]
            answer["bound"] = bound_text(found.similar) if found.similar else ""
        return answer


class EnvironmentHandler(FormHandler):
    """Answer ``POST …/environment`` with the diagnostics of an EDF, and the resolved EDF."""

    rate = RateLimiter(40, 60.0)

    async def answer(self, spawner: EDFSpawner, content: dict[str, Any]) -> dict[str, Any]:
        """Return the answer of ``edf check --here --json``, run as the user."""
        options = read_options(content)
        return await spawner.options.inspect_environment(options.edf, options.cluster)


class SecurityHandler(FormHandler):
    """Answer ``POST …/security`` with the verdict on the image of an EDF."""

    rate = RateLimiter(40, 60.0)

    async def answer(self, spawner: EDFSpawner, content: dict[str, Any]) -> dict[str, Any]:
        """Return `SecurityVerdict.to_json` of the verdict, computed as the user; empty without one."""
        options = read_options(content)
        return await spawner.options.judge_environment(options.edf, options.cluster)


class DraftHandler(FormHandler):
    """Answer ``POST …/draft``: check or save an EDF that was pasted, uploaded or filled in."""

    rate = RateLimiter(30, 60.0)

    async def answer(self, spawner: EDFSpawner, content: dict[str, Any]) -> dict[str, Any]:
        """Return the answer of `gipfel_cluster.edf.draft`, run as the user."""
        try:
            draft = Draft.model_validate(content)
        except ValidationError as error:
            key, message = first_problem(error)
            raise OptionError(f"The value for {key[:60] or 'the draft'} is not valid: {message}.") from None
        return await spawner.options.draft_environment(draft)


#: Routes below the hub's own prefix.
ROUTES: tuple[tuple[Any, ...], ...] = (
    (_USER + "/expected-start", ExpectedStartHandler),
    (_USER + "/environment", EnvironmentHandler),
    (_USER + "/security", SecurityHandler),
    (_USER + "/draft", DraftHandler),
    (r"/gipfel/static/([a-z.]+)", CacheControlStaticFilesHandler, _STATIC),
)


@contextlib.contextmanager
def _cancelled_start() -> Iterator[None]:
    """Answer 409 if the start is cancelled while the request waits for it."""
    try:
        yield
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise web.HTTPError(409, "The start was cancelled.") from None


class ValidatedServerHandler(UserServerAPIHandler):
    """JupyterHub's handler of servers, which answers 400 to invalid options and then changes nothing."""

    async def post(self, user_name: str, server_name: str = "") -> None:
        """Start a server; answer 409 if the start is stopped meanwhile."""
        with _cancelled_start():
            await super().post(user_name, server_name)

    def get_json_body(self) -> Any:
        """Return the validated body of a PATCH or DELETE request."""
        self._check_body()
        body = super().get_json_body()
        if isinstance(body, dict):
            self._check_options(body.get("user_options"))
        return body

    def get_server_json_body(self) -> Any:
        """Return the validated body of a POST request, which starts a server."""
        self._check_body()
        body = super().get_server_json_body()
        self._check_options(body["user_options"])
        return body

    def _check_body(self) -> None:
        body = self.request.body
        if not self._uses_edf_spawner():
            return
        if len(body) > _MAX_START_BODY_BYTES:
            raise web.HTTPError(413, f"The body is longer than {_MAX_START_BODY_BYTES} bytes.")
        try:
            # Checked here, because JupyterHub logs a stack trace of invalid JSON.
            json.loads(body.decode(errors="replace").strip() or "null")
        except (ValueError, RecursionError):
            raise web.HTTPError(400, "The body is not valid JSON.") from None

    def _check_options(self, options: object) -> None:
        if isinstance(options, dict) and self._uses_edf_spawner():
            with options_problems():
                read_options(options)

    def _uses_edf_spawner(self) -> bool:
        return issubclass(self.settings["spawner_class"], EDFSpawner)


def free_name(name: str, active: set[str]) -> str:
    """Return this server name, or if it is active the first free one of ``name-2``, ``name-3`` and so on."""
    stem = (name or "session")[:26].rstrip("-")
    candidates = chain([name], (f"{stem}-{number}" for number in count(2)))
    return next(each for each in candidates if each not in active)


#: Parameter of a link to the form with the number of an earlier session.
REPEAT_PARAMETER = "gipfel_repeat"


class ValidatedSpawnHandler(SpawnHandler):
    """JupyterHub's handler of the form, which logs a user's mistake in one line.

    If the link has the parameter `REPEAT_PARAMETER`, the form shows the options of that session of the user.
    """

    #: Number of an earlier session, 0 for none.
    repeat = 0

    async def prepare(self) -> None:
        """Refuse a link that is not UTF-8, for which JupyterHub would log a stack trace."""
        await super().prepare()
        # JupyterHub reads all other parameters as options of a start.
        number = self.request.query_arguments.pop(REPEAT_PARAMETER, [b""])[-1]
        if re.fullmatch(rb"[0-9]{1,15}", number):
            self.repeat = int(number)
        try:
            for values in self.request.query_arguments.values():
                b"".join(values).decode()
        except UnicodeDecodeError:
            raise web.HTTPError(400, "The link is not valid: it is not UTF-8.") from None

    async def post(self, *names: str) -> None:
        """Start with the form's options; answer 409 if the start is stopped meanwhile."""
        with _cancelled_start():
            if (result := super().post(*self._with_service_name(names))) is not None:
                await result

    def _with_service_name(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return user and server; a service chosen for the default server gets a server with its own name."""
        service = self.get_body_argument("service", "")
        if len(names) > 1 or not self.allow_named_servers or not re.fullmatch(r"[a-z0-9-]{1,30}", service):
            return names
        user = self.find_user(names[0]) if names else self.current_user
        if user is None or not isinstance(user.spawner, EDFSpawner):
            return names
        active = {each.name for each in user.spawners.values() if each.active}
        return user.name, free_name(service, active)

    @property
    def log(self) -> "NoTracebackLogger":
        """Log of the hub, without stack traces of users' mistakes."""
        return NoTracebackLogger(super().log, {})


class NoTracebackLogger(logging.LoggerAdapter[logging.Logger]):
    """Logger that replaces the stack trace of a `SpawnProblem`, a user's mistake, by its message."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Append the problem's message, and suppress its stack trace."""
        problem = sys.exc_info()[1]
        if kwargs.get("exc_info") and isinstance(problem, SpawnProblem):
            return f"{msg}: {problem.jupyterhub_message}", {**kwargs, "exc_info": False}
        return msg, kwargs
