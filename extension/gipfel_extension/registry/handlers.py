"""What every handler does first: who asks, with which scope, and from which page."""

import json
from http import HTTPStatus
from typing import Any, ClassVar

from jinja2 import Environment
from jupyterhub.services.auth import HubOAuthenticated
from tornado.web import Finish, HTTPError, RequestHandler

from .service import Registry

_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; font-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


# Before the name of a service, where senders are written down.
_SERVICE = "service:"


class Problem(HTTPError):  # noqa: N818 - an answer
    """An answer that says in one sentence what is wrong."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(status, words)
        self.words = words


class RegistryHandler(HubOAuthenticated, RequestHandler):
    """A handler that answers who has one scope, and nobody else.

    ``scopes`` are by method; a method that has none is refused.
    """

    scopes: ClassVar[dict[str, str]] = {}

    @property
    def hub_scopes(self) -> set[str]:
        """What JupyterHub's own check asks for."""
        # With an empty set it would let everybody in.
        return {self.scopes.get(self.request.method or "", "custom:gipfel-registry:nobody")}

    @property
    def registry(self) -> Registry:
        """The registry behind the pages."""
        found: Registry = self.settings["registry"]
        return found

    @property
    def who(self) -> str:
        """The hub's name of who asks; of a service with its kind, so that no user takes it."""
        model = self.current_user
        return str(model["name"]) if model["kind"] == "user" else f"{_SERVICE}{model['name']}"

    def before(self) -> int:
        """Return the query's ``before``, the number of a step; 0 without one."""
        given = self.get_query_argument("before", "0")
        if not (given.isascii() and given.isdecimal() and len(given) <= 18):
            raise Problem(400, "before is the number of a step.")
        return int(given)

    def has_scope(self, scope: str) -> bool:
        """Whether who asks has one more scope."""
        return bool(self.hub_auth.check_scopes({scope}, self.current_user))

    def set_default_headers(self) -> None:
        """No script but ours, no frame, nothing kept by caches in between."""
        self.set_header("Content-Security-Policy", _POLICY)
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Referrer-Policy", "same-origin")
        self.set_header("Cache-Control", "no-store")

    async def prepare(self) -> None:
        """Ask the hub without holding up other requests, then check scope and form key.

        Raises
        ------
        HTTPError
            403: nobody the hub knows, no scope, or a form of another page.
        """
        await self.hub_auth.get_user(self, sync=False)
        model = self.current_user
        if not model:
            await self.refuse()
        elif model["kind"] == "user" and model["name"].startswith(_SERVICE):
            raise Problem(403, f"A user whose name begins with {_SERVICE!r} can't use the registry.")
        if self.request.method not in {"GET", "HEAD"}:
            self.check_xsrf_cookie()

    async def refuse(self) -> None:
        """Answer who may not."""
        raise HTTPError(403)


class ApiHandler(RegistryHandler):
    """A handler that takes and gives JSON."""

    def reply(self, content: Any) -> None:
        """Answer with JSON."""
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps(content))

    def write_error(self, status_code: int, **options: Any) -> None:
        """Say what is wrong in one sentence."""
        self.reply({"status": status_code, "message": _words(status_code, options)})


class PageHandler(RegistryHandler):
    """A handler that shows a page; who is not logged in is sent to the hub's login."""

    async def refuse(self) -> None:
        """Send to the login; one who is logged in and lacks the scope is refused by `HubOAuthenticated`."""
        known = self._cached_hub_user
        if known:
            # A role that was given since needs a new login: the next visit asks for one.
            self.hub_auth.clear_cookie(self)
            raise HTTPError(403, reason="Forbidden", log_message=f"{known['name']} lacks the scope")
        if self.request.method != "GET":
            raise HTTPError(403)
        self.redirect(self.get_login_url())
        raise Finish

    def show(self, template: str, **values: Any) -> None:
        """Render a page."""
        environment: Environment = self.settings["pages"]
        hub = self.hub_auth
        self.finish(
            environment.get_template(template).render(
                prefix=self.settings["prefix"],
                hub_static=f"{hub.hub_host}{hub.hub_prefix}static",
                hub_home=f"{hub.hub_host}{hub.hub_prefix}home",
                **values,
            )
        )

    def write_error(self, status_code: int, **options: Any) -> None:
        """Show what is wrong, and what to do."""
        self.show("error.html", status=status_code, words=_words(status_code, options), who="")


_ADVICE = {
    403: "You lack the role for this. Ask the operators of this hub, then load the page again.",
    404: "There is nothing here.",
    413: "That is too much at once.",
}


def _words(status: int, options: dict[str, Any]) -> str:
    error = options.get("exc_info", (None, None))[1]
    if isinstance(error, Problem):
        return error.words
    return _ADVICE.get(status) or f"{HTTPStatus(status).phrase}."
