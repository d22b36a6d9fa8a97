"""Services that run in place of a notebook server: the list of them, preparation, restarts and sharing."""

import asyncio
import time
from datetime import UTC, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal

from jupyterhub import orm
from jupyterhub.utils import url_escape_path, url_path_join
from pydantic import Field, StrictInt
from sqlalchemy.orm import object_session
from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest

from gipfel_cluster.job.service_orders import PreparedService, ServiceOffer, ServiceOffers, ServiceOrder
from gipfel_cluster.model import Frozen, GipfelError, OneLine
from gipfel_cluster.scheduler.protocol import JobStatus

from ..form.options import OptionError, UserOptions
from .account import UserCommands
from .service_host import possible_host

__all__ = [
    "ServiceOffer",
    "ServiceRestarts",
    "ServiceShare",
    "ServiceShares",
    "ShareRequest",
    "SharedService",
    "prepare_service",
    "prepare_start",
    "service_offers",
    "services_shared_with",
    "with_resources",
]

if TYPE_CHECKING:
    from ..spawner import EDFSpawner

#: Characters of a service's name, and longest time for which access is given, in seconds.
_MAX_NAME = 30
_MAX_SHARE_S = 30 * 86400
#: Maximum number of restarts of a service, and the seconds within which they count: a service that always
#: fails must not fill the queue.
_MAX_RESTARTS, _RESTARTS_S = 3, 3600.0
#: Time limit of a restart's request, and pause while the hub does not accept connections, in seconds.
_START_S, _PAUSE_S = 60.0, 1.0


async def service_offers(commands: UserCommands) -> ServiceOffers:
    """Return the services that the user can start.

    Raises
    ------
    GipfelError
        The command that lists them failed.
    """
    return await commands.service("list", None, ServiceOffers)


async def prepare_service(
    options: UserOptions,
    *,
    server: str,
    prefix: str,
    host: tuple[str, str] = ("", ""),
    edf: str,
    engine: str,
    commands: UserCommands,
    is_successor: bool = False,
) -> PreparedService:
    """Write the directory of the service that the options name, and return what its job needs.

    Parameters
    ----------
    server
        Name of the server, which is also the service's name.
    prefix
        Path of the server's URL.
    host
        Origin that the service can have for itself, and the reason if there is none.
    is_successor
        Only return what the next job of the running service needs.

    Raises
    ------
    OptionError
        The server has no name, or the blueprint or a parameter can't be used.
    """
    if not server or len(server) > _MAX_NAME:
        raise OptionError(
            "A service needs a name of at most 30 characters of its own.",
            "Start it as a new session with a name.",
            field="service",
        )
    order = ServiceOrder(
        name=server,
        blueprint=options.service,
        parameters=options.parameters,
        prefix=prefix,
        host=host[0],
        no_host=host[1],
        edf=edf,
        engine=engine,
        is_successor=is_successor,
    )
    prepared = await commands.service("prepare", order, PreparedService)
    if prepared.problem:
        field = prepared.field if prepared.field in {"service", "parameters"} else ""
        raise OptionError(prepared.problem, prepared.fix, field=field)
    if not prepared.directory.startswith("/"):
        raise GipfelError("The service can't be prepared: the answer is not valid.")
    return prepared


async def prepare_start(
    spawner: "EDFSpawner", options: UserOptions, commands: UserCommands
) -> tuple[UserOptions, str, tuple[str, ...]]:
    """Prepare the service that a server starts; return the options with its resources, its EDF, directories.

    Raises
    ------
    OptionError
        As for `prepare_service`.
    """
    spawner.follower.progress.report(3, f"Preparing the service {options.service}.")
    prepared = await prepare_service(
        options,
        server=spawner.name,
        prefix=spawner.server.base_url,
        host=possible_host(spawner.user, spawner.name),
        edf=options.edf,
        engine=options.engine or spawner.placement.settings.engine,
        commands=commands,
    )
    spawner.follower.limit_s = max(spawner.server_timeout, prepared.limit_s)
    spawner.follower.keep_up, spawner.follower.has_pages = prepared.keep_up, prepared.has_pages
    spawner.successor.overlap_s = prepared.overlap_s
    spawner.service_host.set(prepared.host)
    options = with_resources(options, prepared)
    # Stored, so that pages show the service's resources rather than the hub's defaults.
    spawner.user_options = spawner.orm_spawner.user_options = options.model_dump(exclude_defaults=True)
    restrict_token(spawner.orm_spawner, spawner.api_token)
    directories = (prepared.directory, prepared.packages)
    return options, prepared.edf or spawner.default_edf, tuple(filter(None, directories))


def with_resources(options: UserOptions, prepared: PreparedService) -> UserOptions:
    """Return the options with the service's resources for those that the user did not choose."""
    wanted = prepared.resources
    return options.model_copy(
        update={
            "nodes": wanted.nodes if options.nodes == 1 else options.nodes,
            "gpus": wanted.gpus if options.gpus is None else options.gpus,
            "cpus": options.cpus or wanted.cpus or None,
            "memory": options.memory or wanted.memory,
            "time": options.time or wanted.time,
            "partition": options.partition or wanted.partition,
        }
    )


def restrict_token(orm_spawner: Any, token: str) -> None:
    """Limit the scopes of a service's token to what its front door needs, and commit the hub's database.

    The front door is the process that checks who may use the service. A service is not trusted with the
    rights of a notebook server, such as starting other servers.
    """
    session = object_session(orm_spawner)
    stored = None if session is None else orm.APIToken.find(session, token)
    if session is None or stored is None:
        raise GipfelError("The service's token is not in the hub's database.", "Start the service again.")
    user, server = orm_spawner.user.name, orm_spawner.name
    stored.update_scopes([f"users:activity!user={user}", f"access:servers!server={user}/{server}"])
    session.commit()


class ServiceRestarts:
    """Restarts of a user's services whose job has ended although nobody stopped it.

    Example
    -------
    ``restarts = ServiceRestarts(user)``, and when the hub has forgotten a server whose job has ended:
    ``if restarts.is_due(name, status): await restarts.start(name, hub.api_url)``.
    """

    def __init__(self, user: Any) -> None:
        self._user = user
        # Stored in the hub's settings, because JupyterHub creates a new spawner for each start.
        self._times: dict[str, list[float]] = user.settings.setdefault("gipfel_service_restarts", {})

    def is_due(self, name: str, status: JobStatus) -> bool:
        """Return whether to start a service again, and count it; false after exit status 0 or too often."""
        if status.exit_code == 0 and status.state in {"COMPLETED", "COMPLETING"}:
            return False
        now = time.monotonic()
        key = f"{self._user.name}/{name}"
        recent = [each for each in self._times.get(key, []) if now - each < _RESTARTS_S]
        self._times[key] = [*recent, now] if len(recent) < _MAX_RESTARTS else recent
        return len(recent) < _MAX_RESTARTS

    async def start(self, name: str, api_url: str) -> None:
        """Start the service with its stored options, as its user would.

        Raises
        ------
        GipfelError
            The hub refuses.
        """
        # The hub's own route also adds the proxy's route, applies limits and shows the page of the start.
        token = self._user.new_api_token(
            note=f"Restart of the service {name}",
            scopes=[f"servers!server={self._user.name}/{name}"],
            expires_in=int(_START_S),
        )
        url = f"{api_url.rstrip('/')}/users/{url_escape_path(self._user.name)}/servers/{name}"
        request = HTTPRequest(
            url,
            method="POST",
            body="{}",
            headers={"Authorization": f"token {token}"},
            request_timeout=_START_S,
        )
        deadline = time.monotonic() + _START_S
        while True:
            try:
                await AsyncHTTPClient().fetch(request)
            except (HTTPClientError, OSError) as error:
                # A hub that is starting checks its servers before it accepts connections.
                if not isinstance(error, ConnectionRefusedError) or time.monotonic() > deadline:
                    raise GipfelError(f"The service {name} can't be started again: {error}.") from error
                await asyncio.sleep(_PAUSE_S)
            else:
                return


class ServiceShare(Frozen):
    """Access to a service that its owner has given to a user or a group, until an ISO time in UTC."""

    kind: Literal["user", "group"]
    name: str
    expires: str = ""


class ShareRequest(Frozen):
    """Request to give access to a service for some ``seconds``, or to end it (0).

    Without a ``name`` (of a user or a group), it only asks who has access.
    """

    service: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,30}$")]
    kind: Literal["user", "group"] = "user"
    name: OneLine = Field("", max_length=255)
    seconds: Annotated[StrictInt, Field(ge=0, le=_MAX_SHARE_S)] = 0


class ServiceShares:
    """Users with access to one service besides its owner: JupyterHub's shares, with an end.

    Shares that JupyterHub itself creates never expire; shares of this class always do. The hub's access
    checks accept both. An expired share is removed at the service's next activity report, which it sends
    every 30 s.
    """

    def __init__(self, spawner: "EDFSpawner") -> None:
        self._spawner = spawner
        self._stored = spawner.orm_spawner
        self._db: Any = object_session(self._stored)

    @property
    def refusal(self) -> str:
        """Return why this service can't be shared; empty if it can."""
        is_separate = bool(self._spawner.user.settings.get("subdomain_host"))
        if self._spawner.follower.has_pages and not is_separate:
            # For the browser, the hub and all users' servers are one origin.
            return (
                "Pages of this service would act with the rights of whoever opens them, because all servers "
                "of this hub share one host name."
            )
        return ""

    def list(self) -> tuple[ServiceShare, ...]:
        """Return who has access, users first."""
        orm.Share.purge_expired(self._db)
        return tuple(
            ServiceShare(
                kind="user" if each.user else "group",
                name=(each.user or each.group).name,
                expires=_iso(each),
            )
            for each in sorted(self._stored.shares, key=lambda share: share.user is None)
        )

    def change(self, request: ShareRequest) -> None:
        """Give or end access as requested, and write it to the audit log.

        Raises
        ------
        GipfelError
            The service can't be shared, or there is no such user or group.
        """
        spawner, who = self._spawner, f"{request.kind} {request.name}"
        found = self._find(request)
        owner = spawner.user.orm_user
        # A user's tokens have no access to what is shared with a group of the user: each member gets a share.
        given = (
            [each for each in found.users if each is not owner] if isinstance(found, orm.Group) else [found]
        )
        if not request.seconds:
            if found is not None:
                for each in {*given, found}:
                    orm.Share.revoke(self._db, self._stored, each)
                spawner.lifetime.audit("unshare", reason=who)
            return
        if not (spawner.user_options or {}).get("service") or not spawner.active:
            raise GipfelError(f"{spawner.name} is not a running service.", "Start it first.")
        if self.refusal:
            fix = "Ask the hub's administrators for subdomains (JupyterHub.subdomain_host)."
            raise GipfelError(self.refusal, fix)
        if found is None or not given:
            known = (
                "has logged in to this hub" if request.kind == "user" else "of yours has other members here"
            )
            raise GipfelError(f"No {request.kind} {request.name[:80]!r} {known}.", "Check the name.")
        if found is owner:
            raise GipfelError("This service is yours already.", "Name a colleague.")
        for each in given:
            share = orm.Share.grant(self._db, self._stored, each)
            share.expires_at = orm.Share.now() + timedelta(seconds=request.seconds)
        self._db.commit()
        spawner.lifetime.audit("share", reason=f"{who}, {request.seconds} s")

    def end_refused(self, *, is_service: bool) -> None:
        """End the shares of this server's name, unless the service that starts now may be shared."""
        if is_service and not self.refusal:
            return
        for share in [each for each in self._stored.shares if each.expires_at]:
            self._db.delete(share)
        self._db.commit()

    def _find(self, request: ShareRequest) -> Any:
        if request.kind == "user":
            return orm.User.find(self._db, request.name)
        groups = self._spawner.user.orm_user.groups
        return next((each for each in groups if each.name == request.name), None)


class SharedService(Frozen):
    """Service of another user, to which this one has access until an ISO time in UTC."""

    owner: str
    name: str
    url: str
    expires: str = ""
    is_running: bool = False


def services_shared_with(user: Any) -> tuple[SharedService, ...]:
    """Return the services that others share with a user or with a group of the user."""
    orm_user = user.orm_user
    given = [*orm_user.shared_with_me, *(each for group in orm_user.groups for each in group.shared_with_me)]
    found = {}
    for share in given:
        if share.expired or share.spawner is None or share.owner is orm_user:
            continue
        owner, name = share.owner, share.spawner.name
        # With subdomains, each owner has a host name of their own.
        host = user.settings.get("subdomain_host", "") and type(user)(owner, user.settings).host
        path = url_path_join(user.settings["base_url"], "user", url_escape_path(owner.name), name)
        found[owner.name, name] = SharedService(
            owner=owner.name,
            name=name,
            url=f"{host}{path}/",
            expires=_iso(share),
            is_running=share.spawner.server is not None,
        )
    return tuple(found.values())


def _iso(share: Any) -> str:
    """Return the end of a share as an ISO time; JupyterHub stores UTC without a zone."""
    return share.expires_at.replace(tzinfo=UTC).isoformat(timespec="seconds") if share.expires_at else ""
