"""Base classes of the registry's handlers: authentication, scopes, XSRF check, errors."""

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


# Prefix of a service's name where senders are recorded.
_SERVICE = "service:"


class RequestError(HTTPError):
    """HTTP error with a message of one sentence."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, message)
        self.message = message


class RegistryHandler(HubOAuthenticated, RequestHandler):
    """Handler that requires a scope.

    ``scopes`` maps each HTTP method to its scope; a method without a scope is refused.
    """

    scopes: ClassVar[dict[str, str]] = {}

    @property
    def hub_scopes(self) -> set[str]:
        """Scopes that `HubOAuthenticated` requires."""
        # With an empty set it would accept every user.
        return {self.scopes.get(self.request.method or "", "custom:gipfel-registry:nobody")}

    @property
    def registry(self) -> Registry:
        """Registry of this application."""
        registry: Registry = self.settings["registry"]
        return registry

    @property
    def requester(self) -> str:
        """Name of the requesting user at the hub; ``service:NAME`` for a service."""
        model = self.current_user
        return str(model["name"]) if model["kind"] == "user" else f"{_SERVICE}{model['name']}"

    def before(self) -> int:
        """Return the query's ``before``, the ID of a step; 0 without one."""
        before = self.get_query_argument("before", "0")
        if not (before.isascii() and before.isdecimal() and len(before) <= 18):
            raise RequestError(400, "before must be the ID of a step.")
        return int(before)

    def has_scope(self, scope: str) -> bool:
        """Return whether the requester has this scope."""
        return bool(self.hub_auth.check_scopes({scope}, self.current_user))

    def set_default_headers(self) -> None:
        """Set headers against foreign scripts, frames and caching."""
        self.set_header("Content-Security-Policy", _POLICY)
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Referrer-Policy", "same-origin")
        self.set_header("Cache-Control", "no-store")

    async def prepare(self) -> None:
        """Authenticate at the hub without blocking other requests, then check scope and XSRF token.

        Raises
        ------
        HTTPError
            403: the requester is unknown or lacks the scope, or the XSRF token is not valid.
        """
        await self.hub_auth.get_user(self, sync=False)
        model = self.current_user
        if not model:
            await self.refuse()
        elif model["kind"] == "user" and model["name"].startswith(_SERVICE):
            raise RequestError(403, f"A user whose name begins with {_SERVICE!r} can't use the registry.")
        if self.request.method not in {"GET", "HEAD"}:
            self.check_xsrf_cookie()

    async def refuse(self) -> None:
        """Answer an unauthorized request."""
        raise HTTPError(403)


class ApiHandler(RegistryHandler):
    """Handler with JSON bodies and answers."""

    def reply(self, content: Any) -> None:
        """Answer with JSON."""
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps(content))

    def write_error(self, status_code: int, **options: Any) -> None:
        """Answer with the error as JSON."""
        self.reply({"status": status_code, "message": _message(status_code, options)})


class PageHandler(RegistryHandler):
    """Handler of a page; users without a login are redirected to the hub's login."""

    async def refuse(self) -> None:
        """Redirect to the login; answer 403 to a user who is logged in and lacks the scope."""
        user = self._cached_hub_user
        if user:
            # A role that was assigned after the login takes effect with the next login.
            self.hub_auth.clear_cookie(self)
            raise HTTPError(403, reason="Forbidden", log_message=f"{user['name']} lacks the scope")
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
        """Show the error's page."""
        self.show("error.html", status=status_code, message=_message(status_code, options), requester="")


_ADVICE = {
    403: "You lack the role for this page. Ask the operators of this hub for it, then reload the page.",
    404: "This page does not exist.",
    413: "The request is too large.",
}


def _message(status: int, options: dict[str, Any]) -> str:
    error = options.get("exc_info", (None, None))[1]
    if isinstance(error, RequestError):
        return error.message
    return _ADVICE.get(status) or f"{HTTPStatus(status).phrase}."
