"""Handlers of the registry: base classes, and the REST API.

Base classes have authentication, scopes, XSRF check and errors. Reports come in; node results, baselines,
recovery steps and the audit log go out.
"""

import asyncio
import json
import time
from http import HTTPStatus
from typing import Any, ClassVar, Literal

from jinja2 import Environment
from jupyterhub.services.auth import HubOAuthenticated
from pydantic import ValidationError
from tornado.web import Finish, HTTPError, RequestHandler, stream_request_body

from gipfel_cluster.model import Frozen, GipfelError

from ..vetting.history.site_registry import SharedReport
from . import queries
from .cases import steps
from .queries import RefusedError, Sender
from .rules import DAY_NS
from .service import Registry
from .settings import OPERATE_SCOPE, READ_SCOPE, VOUCH_SCOPE, WRITE_SCOPE, first_error

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
        auth = self.hub_auth
        self.finish(
            environment.get_template(template).render(
                prefix=self.settings["prefix"],
                hub=f"{auth.hub_host}{auth.hub_prefix}",
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


_MAX_DAYS = 3650
_MAX_REPORT_BYTES = 24 << 20


class Decision(Frozen):
    """Decision of an operator on a recovery step."""

    decision: Literal["approve", "dismiss"]


@stream_request_body
class ReportsHandler(ApiHandler):
    """``POST api/reports`` stores a report; ``DELETE`` deletes all reports of the requesting user."""

    scopes = {"POST": WRITE_SCOPE, "DELETE": WRITE_SCOPE}  # noqa: RUF012 - typed in the base class

    def initialize(self) -> None:
        """Prepare to receive the body."""
        self._chunks: list[bytes] = []

    async def prepare(self) -> None:
        """Raise the limit of the body's size once the sender is authorized."""
        await super().prepare()
        connection: Any = self.request.connection
        connection.set_max_body_size(_MAX_REPORT_BYTES)

    def data_received(self, chunk: bytes) -> None:
        """Append a chunk of the body."""
        self._chunks.append(chunk)

    async def post(self) -> None:
        """Store one report; answer 201, or 200 if the sender has sent the same report before."""
        try:
            body = b"".join(self._chunks)
            report = await asyncio.to_thread(SharedReport.model_validate_json, body)
        except ValidationError as error:
            raise RequestError(400, f"The body is not a valid report: {first_error(error)}") from None
        sender = Sender(name=self.requester, vouched=self.has_scope(VOUCH_SCOPE))
        try:
            new = await self.registry.receive(report, sender)
        except RefusedError as error:
            raise RequestError(error.status, str(error)) from None
        self.set_status(201 if new else 200)
        self.reply({"stored": new})

    async def delete(self) -> None:
        """Delete all reports of this user."""
        try:
            self.reply({"deleted": await self.registry.withdraw(self.requester)})
        except RefusedError as error:
            raise RequestError(error.status, str(error)) from None


class NodeHandler(ApiHandler):
    """``GET api/nodes/CLUSTER/NODE``: the newest results of one node."""

    scopes = {"GET": READ_SCOPE}  # noqa: RUF012

    async def get(self, cluster: str, node: str) -> None:
        """Return up to 500 results, newest first."""
        results = await self.registry.query(lambda session: queries.node_history(session, cluster, node))
        self.reply({"results": [each.model_dump(mode="json") for each in results]})


class WorstNodesHandler(ApiHandler):
    """``GET api/worst/CLUSTER``: the nodes with the most bad results."""

    scopes = {"GET": READ_SCOPE}  # noqa: RUF012

    async def get(self, cluster: str) -> None:
        """Return the nodes with bad results within the last ``?days=``, 7 by default."""
        since = time.time_ns() - self.days() * DAY_NS
        worst = await self.registry.query(
            lambda session: queries.worst_nodes(session, cluster, since_ns=since)
        )
        self.reply({"nodes": [each.model_dump() for each in worst]})

    def days(self) -> int:
        """Return the query's ``days``, after checking it."""
        days = self.get_query_argument("days", "7")
        if not (days.isascii() and days.isdecimal() and len(days) <= 6 and 0 < int(days) <= _MAX_DAYS):
            raise RequestError(400, f"days must be a number from 1 to {_MAX_DAYS}.")
        return int(days)


class BaselinesHandler(WorstNodesHandler):
    """``GET api/baselines/CLUSTER?model=``: usual measurements of the checks on a GPU model."""

    @property
    def hub_scopes(self) -> set[str]:
        """JupyterHub scopes of which one is required."""
        return {READ_SCOPE, WRITE_SCOPE} if self.request.method == "GET" else super().hub_scopes

    async def get(self, cluster: str) -> None:
        """Return the baselines of ``?model=`` from the last ``?days=``, 7 by default."""
        since, model = time.time_ns() - self.days() * DAY_NS, self.get_query_argument("model")
        found = await self.registry.query(
            lambda session: queries.baselines(session, cluster, model, since_ns=since)
        )
        self.reply({"baselines": [each.model_dump() for each in found]})


class StepsHandler(ApiHandler):
    """``GET api/steps``: recovery steps that wait for an operator's decision."""

    scopes = {"GET": OPERATE_SCOPE}  # noqa: RUF012

    async def get(self) -> None:
        """Return up to 200 steps, newest first; with ``?before=``, only those older than that step ID."""
        before = self.before()
        waiting = await self.registry.query(lambda session: steps(session, waiting=True, before=before))
        self.reply({"steps": [each.model_dump() for each in waiting]})


class StepHandler(ApiHandler):
    """``POST api/steps/ID``: an operator's decision on a step."""

    scopes = {"POST": OPERATE_SCOPE}  # noqa: RUF012

    async def post(self, step: str) -> None:
        """Approve the step or dismiss its case; 409 if that is not allowed."""
        try:
            decision = Decision.model_validate_json(self.request.body).decision
        except ValidationError:
            raise RequestError(400, 'Give {"decision": "approve"} or {"decision": "dismiss"}.') from None
        try:
            done = await self.registry.recovery.decide(int(step), decision, self.requester)
        except GipfelError as error:
            raise RequestError(409, str(error)) from None
        self.reply(done.model_dump())


class AuditHandler(ApiHandler):
    """``GET api/audit``: the audit log."""

    scopes = {"GET": OPERATE_SCOPE}  # noqa: RUF012

    async def get(self) -> None:
        """Return the last 200 lines, newest first."""
        lines = await self.registry.query(queries.recent_audit_lines)
        self.reply({"audit": [each.model_dump() for each in lines]})
