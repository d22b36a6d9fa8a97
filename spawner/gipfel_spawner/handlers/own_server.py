"""Handlers for requests with a server's own token: port and vetting at its start, activity, extensions."""

import json
from collections.abc import Awaitable
from typing import Annotated, Any, TypeVar

from batchspawner.api import BatchSpawnerAPIHandler
from jupyterhub import orm
from jupyterhub.apihandlers import APIHandler
from pydantic import Field, StrictInt, ValidationError
from sqlalchemy.orm import object_session
from tornado import web

from gipfel_cluster.job import VettingProgress
from gipfel_cluster.model import Frozen, GipfelError, OneLine

from ..lifetime import ActivityReport, ExtendRequest
from ..spawner import EDFSpawner
from ..start.services import ServiceShare, ServiceShares, ShareRequest

_Body = TypeVar("_Body", bound=Frozen)


@web.stream_request_body
class OwnServerHandler(APIHandler):
    """Base of the handlers for a server's own token; the body's size is limited before it is read."""

    max_bytes = 1000
    _received = b""

    async def prepare(self) -> None:
        """Limit the body's size, then authenticate; tornado reads the body only afterwards."""
        self.request.connection.set_max_body_size(self.max_bytes)
        await super().prepare()

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        """Append a chunk of the body."""
        self._received += chunk
        return None

    def own_spawner(self) -> EDFSpawner:
        """Return the spawner of the requesting server, which is identified by its token alone.

        Raises
        ------
        HTTPError
            403: the token does not belong to a server, or belongs to an earlier start.
        """
        token = self.get_auth_token() or ""
        for spawner in getattr(self.current_user, "spawners", {}).values():
            if isinstance(spawner, EDFSpawner) and spawner.owns(token):
                return spawner
        raise web.HTTPError(403, "This token belongs to no server.")

    def body_as(self, model: type[_Body], advice: str) -> _Body:
        """Return the body as an instance of a model.

        Raises
        ------
        HTTPError
            400 with ``advice``: the body is not valid.
        """
        try:
            return model.model_validate_json(self._received)
        except ValidationError:
            raise web.HTTPError(400, advice) from None

    def answer(self, content: Frozen) -> None:
        """Answer with a model as JSON."""
        self.finish(json.dumps(content.model_dump(mode="json")))


class ServerReport(Frozen):
    """Report of a server that has started."""

    port: Annotated[StrictInt, Field(ge=1024, le=65535)]


class ServerRouteHandler(OwnServerHandler):
    """``POST /hub/api/gipfel/server`` with a `ServerReport`, sent once per start by the starting server."""

    @web.authenticated
    def post(self) -> None:
        """Record the port of a starting server; 400 for an invalid port, 403 if no server is starting."""
        spawner = self.own_spawner()
        report = self.body_as(ServerReport, 'Give {"port": number}, from 1024 to 65535, and nothing else.')
        if not spawner.allows_port(report.port):
            raise web.HTTPError(400, f"The port must be one of {spawner.server_ports}.")
        if not spawner.set_port(report.port):
            raise web.HTTPError(403, "This server is not starting, or has already reported its port.")
        self.answer(report)


class VettingRouteHandler(OwnServerHandler):
    """``POST /hub/api/gipfel/server/vetting``: progress of the vetting before a server's start."""

    max_bytes = 32_000

    @web.authenticated
    def post(self) -> None:
        """Show the progress on the waiting page; 403 if this server is not starting."""
        spawner = self.own_spawner()
        if not spawner.on_vetting(
            self.body_as(VettingProgress, "The body is not a progress report of a vetting.")
        ):
            raise web.HTTPError(403, "This server is not starting.")
        self.set_status(204)


class ActivityRouteHandler(OwnServerHandler):
    """``POST /hub/api/gipfel/server/activity``: an `ActivityReport`, answered with a `LifetimeStatus`."""

    @web.authenticated
    def post(self) -> None:
        """Record the report; answer 403 to an unknown token, so that such a server may shut down."""
        spawner = self.own_spawner()
        orm.Share.purge_expired(self.db)
        status = spawner.lifetime.on_activity(
            self.body_as(ActivityReport, "The body is not an activity report.")
        )
        spawner.successor.on_report(self.get_auth_token() or "")
        self.answer(status)


class ExtendRouteHandler(OwnServerHandler):
    """``POST /hub/api/gipfel/server/extend``: extend the job by the site's ``extend_by``."""

    @web.authenticated
    async def post(self) -> None:
        """Extend the job; 409 with a message if it can't be extended."""
        spawner = self.own_spawner()
        self.body_as(ExtendRequest, 'Give {"extend": true} and nothing else.')
        try:
            self.answer(await spawner.lifetime.extend())
        except GipfelError as error:
            raise web.HTTPError(409, "%s", str(error)) from error


class ServiceTokenRequest(Frozen):
    """Request for a token that gives access to one service; ``owner`` is empty for the user's own service."""

    service: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,30}$")]
    owner: Annotated[OneLine, Field(max_length=255)] = ""
    expires_s: Annotated[StrictInt, Field(ge=60, le=366 * 86400)] = 86400


class ServiceToken(Frozen):
    """A token for one service; ``scopes`` are all scopes of the token, ``url`` is the service's for nodes."""

    token: str
    url: str
    scopes: tuple[str, ...]


class ServiceTokenRouteHandler(OwnServerHandler):
    """``POST /hub/api/gipfel/server/service-token``: a token for one service that the user has access to.

    JupyterHub's route for tokens would need a scope that gives a server all rights of its user.
    """

    @web.authenticated
    def post(self) -> None:
        """Answer with a `ServiceToken`; 403 to a service, 404 if the user can't access such a service."""
        user = self.current_user
        if (self.own_spawner().user_options or {}).get("service"):
            raise web.HTTPError(403, "A service gets no tokens.")
        asked = self.body_as(ServiceTokenRequest, 'Give {"service": name, "expires_s": number}.')
        owner = self.find_user(asked.owner) if asked.owner else user
        stored = owner.orm_user.orm_spawners.get(asked.service) if owner else None
        if owner is not user and stored is not None and not _shared(user, stored):
            stored = None
        if owner is None or stored is None or not (stored.user_options or {}).get("service"):
            raise web.HTTPError(404, f"There is no service {asked.service}.")
        scopes = (f"access:servers!server={owner.name}/{asked.service}",)
        limit = self.settings["token_expires_in_max_seconds"] or asked.expires_s
        token = user.new_api_token(
            note=f"Service {asked.service}",
            scopes=list(scopes),
            expires_in=min(asked.expires_s, limit),
        )
        self.set_status(201)
        spawner = owner.spawners[asked.service]
        url = spawner.service_host.address if spawner.server else ""
        self.answer(ServiceToken(token=token, url=url, scopes=scopes))


def _shared(user: Any, stored: Any) -> bool:
    """Return whether a server is shared with a user, or with a group of the user."""
    orm.Share.purge_expired(object_session(stored))
    groups = set(user.orm_user.groups)
    return any(each.user is user.orm_user or each.group in groups for each in stored.shares)


class ServiceSharesAnswer(Frozen):
    """Users with access to a service; ``refusal`` is why it can't be shared."""

    shares: tuple[ServiceShare, ...] = ()
    refusal: str = ""


class ServiceShareRouteHandler(OwnServerHandler):
    """``POST /hub/api/gipfel/server/share``: a `ShareRequest` for one of the user's own services."""

    @web.authenticated
    def post(self) -> None:
        """Answer with `ServiceSharesAnswer`; 409 if there is no such service, or it can't be shared."""
        user = self.current_user
        if (self.own_spawner().user_options or {}).get("service"):
            raise web.HTTPError(403, "A service shares nothing.")
        asked = self.body_as(ShareRequest, "The body is not a request to share a service.")
        try:
            self.answer(answer_share(user, asked))
        except GipfelError as error:
            raise web.HTTPError(409, "%s", f"{error.problem} {error.fix}") from error


def answer_share(user: Any, asked: ShareRequest) -> ServiceSharesAnswer:
    """Change who has access to a user's service, if the request says so, and return who has.

    Raises
    ------
    GipfelError
        There is no such service, or it can't be shared.
    """
    spawner = user.spawners.get(asked.service) if asked.service in user.orm_user.orm_spawners else None
    if not isinstance(spawner, EDFSpawner):
        raise GipfelError(f"There is no service {asked.service}.", "See `gipfel service list --all`.")
    shares = ServiceShares(spawner)
    if asked.name:
        shares.change(asked)
    return ServiceSharesAnswer(shares=shares.list(), refusal=shares.refusal)


class BatchspawnerRouteHandler(BatchSpawnerAPIHandler):
    """batchspawner's route, for hubs with one of batchspawner's spawners; 404 with `EDFSpawner`."""

    async def prepare(self) -> None:
        """Answer 404 if the hub's spawner, or one of this user's, is an `EDFSpawner`."""
        await super().prepare()
        spawners = getattr(self.current_user, "spawners", {}).values()
        if issubclass(self.settings["spawner_class"], EDFSpawner) or any(
            isinstance(each, EDFSpawner) for each in spawners
        ):
            raise web.HTTPError(404)
