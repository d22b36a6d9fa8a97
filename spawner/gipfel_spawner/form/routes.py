"""What the form's page asks of the hub: an expected start, what is wrong with an EDF, and a new EDF saved.

Each acts for one user, for whom JupyterHub's scope ``servers`` is needed; a server's own token has it not.
JupyterHub checks the XSRF token of a browser's requests. Nothing blocks the hub: commands have time limits.
"""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

from jupyterhub.apihandlers import APIHandler
from jupyterhub.handlers.static import CacheControlStaticFilesHandler
from jupyterhub.scopes import needs_scope
from pydantic import ValidationError
from tornado import web

from gipfel_cluster.edf.draft import Draft
from gipfel_cluster.model import GipfelError

from ..cluster.rate import Rate
from .choice import ChoosingSpawner
from .options import OptionError, read_options

_MOST_BYTES = 160 << 10


class FormHandler(APIHandler):
    """A question of the form's page: JSON in, JSON out."""

    #: How often a user may ask.
    rate = Rate(40, 60.0)

    async def answer(self, spawner: ChoosingSpawner, content: dict[str, Any]) -> dict[str, Any]:
        """The answer; a `GipfelError` becomes its ``problem``."""
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
        """The body; one that is no JSON is 400, without a stack in the hub's log."""
        try:
            return json.loads(self.request.body)
        except (ValueError, RecursionError):
            raise web.HTTPError(400, "Give one object of JSON.") from None

    def _spawner(self, user_name: str) -> ChoosingSpawner:
        user = self.find_user(user_name)
        spawner = None if user is None else user.spawner
        if not isinstance(spawner, ChoosingSpawner):
            raise web.HTTPError(404, "There is no such user.")
        return spawner


class ExpectedStartHandler(FormHandler):
    """``POST …/expected-start`` with options: when such a job would start. No job is made."""

    rate = Rate(40, 60.0)

    async def answer(self, spawner: ChoosingSpawner, content: dict[str, Any]) -> dict[str, Any]:
        """``start``, an ISO time or empty for at once, and the same in words."""
        start = await spawner.expected_start(read_options(content))
        return {"start": start, "words": clock_words(start, datetime.now().astimezone())}


class EnvironmentHandler(FormHandler):
    """``POST …/environment`` with ``edf``: the diagnostics of an EDF, and what it resolves to."""

    rate = Rate(40, 60.0)

    async def answer(self, spawner: ChoosingSpawner, content: dict[str, Any]) -> dict[str, Any]:
        """As ``edf check --here --json`` says it, by a process of the user."""
        options = read_options(content)
        return await spawner.inspect_environment(options.edf, options.cluster)


class DraftHandler(FormHandler):
    """``POST …/draft`` with a `Draft`: an EDF that is pasted, uploaded or filled in, checked or saved."""

    rate = Rate(30, 60.0)

    async def answer(self, spawner: ChoosingSpawner, content: dict[str, Any]) -> dict[str, Any]:
        """As `gipfel_cluster.edf.draft` says it, by a process of the user."""
        try:
            draft = Draft.model_validate(content)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            where = ".".join(map(str, first["loc"])) or "the draft"
            raise OptionError(f"The value for {where[:60]} can't be used: {first['msg']}.") from None
        return await spawner.draft_environment(draft)


def clock_words(start: str, now: datetime) -> str:
    """A start for people: ``now``, a time of today, or a date with a time; by the hub's clock."""
    if not start:
        return "now"
    moment = datetime.fromisoformat(start).astimezone(now.tzinfo)
    return moment.strftime("%H:%M" if moment.date() == now.date() else "%Y-%m-%d %H:%M")


_FOLDER = {"path": str(Path(__file__).parents[1] / "static")}
_USER = r"/api/gipfel/users/([^/]+)"
#: Routes below the hub's own prefix.
ROUTES: tuple[tuple[Any, ...], ...] = (
    (_USER + "/expected-start", ExpectedStartHandler),
    (_USER + "/environment", EnvironmentHandler),
    (_USER + "/draft", DraftHandler),
    (r"/gipfel/static/([a-z.]+)", CacheControlStaticFilesHandler, _FOLDER),
)
