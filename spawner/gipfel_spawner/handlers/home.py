"""The hub's home page: a user's sessions, what is free on the clusters, and the buttons on session cards.

`home_content` makes its content; the handlers follow.
"""

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, ClassVar, Literal

from jupyterhub.handlers.pages import HomeHandler
from jupyterhub.scopes import needs_scope
from jupyterhub.utils import url_path_join
from pydantic import Field, ValidationError
from tornado import web
from tornado.httputil import url_concat

from gipfel_cluster.model import Frozen, GipfelError, OneLine

from ..failure import Failure
from ..form.options import describe_options
from ..form.page import PartitionRow, format_limit, partition_rows
from ..gpu_hours import GpuHours, month_gpu_hours
from ..history import Session
from ..spawner import EDFSpawner
from ..start.progress import describe_status, status_page
from ..start.services import ServiceShare, ServiceShares, SharedService, ShareRequest, services_shared_with
from .form import REPEAT_PARAMETER, FormHandler, RateLimiter, free_name
from .own_server import answer_share
from .servers import describe_server, format_span
from .usage import SharedSaturation, saturation_cache

_MAX_SESSIONS = 10
_SYMBOLS = {"running": "●", "waiting": "◐", "stopping": "◌", "stopped": "○", "failed": "✗"}
_ENDS = {"stopped": "stopped", "ended": "ended", "failed": "failed to start", "culled": "stopped while idle"}
# Seconds that a page waits for a scheduler's first answer; the next refresh shows a later one.
_PATIENCE_S = 1.0
#: Width and height of the polyline of SM activity, in units of its SVG.
_SPARK = (120.0, 28.0)


class SessionCard(Frozen):
    """Card of one server; times are ISO times in UTC.

    ``name`` is empty for the user's default server. ``detail_html`` is one sentence about a start in
    progress, or about the end of the last session, as escaped HTML. ``facts`` are short texts such as the
    nodes, the environment and the job. ``ends`` is the end of the job's time limit, ``remaining`` the time
    until then; both are empty if it is unknown. ``extend`` is by how much it can be extended, empty for not
    at all. ``service`` is the blueprint of a service, empty for a notebook server; ``shares`` lists who has
    access to it, and ``share_refusal`` says why it can't be shared. ``score`` is one sentence about GPU use,
    ``spark`` the points of an SVG polyline of the SM activity, 120 wide and 28 high, and ``spark_text`` its
    description; they are empty unless the user shares them.
    """

    name: str
    title: str
    state: Literal["running", "waiting", "stopping", "stopped", "failed"]
    detail_html: str = ""
    facts: tuple[str, ...] = ()
    ends: str = ""
    remaining: str = ""
    extend: str = ""
    score: str = ""
    spark: str = ""
    spark_text: str = ""
    has_log: bool = False
    service: str = ""
    shares: tuple[ServiceShare, ...] = ()
    share_refusal: str = ""

    @property
    def symbol(self) -> str:
        """Shape of the state, so that it is not shown by colour alone."""
        return _SYMBOLS[self.state]


class EarlierSession(Frozen):
    """Row of one earlier session: texts, empty if unknown; ``submitted`` is an ISO time in UTC.

    ``options`` is a summary of the session's options, ``end`` says how it ended.
    """

    id: int
    title: str
    options: str
    submitted: str
    duration: str
    gpu_hours: str
    end: str


class ClusterState(Frozen):
    """Partitions of one cluster, with the problem of the last query and the age of the answer shown."""

    name: str
    partitions: tuple[PartitionRow, ...]
    problem: str = ""
    age: str = ""


class HomeContent(Frozen):
    """Content of the home page."""

    user: str
    cards: tuple[SessionCard, ...]
    earlier: tuple[EarlierSession, ...]
    clusters: tuple[ClusterState, ...]
    gpu_hours: GpuHours
    shared: tuple[SharedService, ...] = ()


async def home_content(user: Any, settings: dict[str, Any], log: Any) -> HomeContent:
    """Return the content of a user's home page; a slow server or scheduler delays it by a second."""
    known: Sequence[Any] = tuple(user.all_spawners())
    spawners = [each for each in known if isinstance(each, EDFSpawner) and (each.active or each.pending)]
    jobs = tuple(each.job_id for each in spawners if each.job_id)
    saturation, clusters, gpu_hours = await asyncio.gather(
        saturation_cache(settings, log).read(spawners),
        _clusters(user.spawner),
        month_gpu_hours(user.spawner, running=jobs),
    )
    active = {each.name for each in spawners}
    # Read from the user's settings: the page's are a copy that may be older than the first failure.
    failures = user.settings.get("gipfel_ends", {})
    stopped = [
        (each, failures.get(f"{user.name}:{each.name}" if each.name else user.name))
        for each in known
        if each.name not in active
    ]
    lifetime = user.spawner.lifetime
    sessions = await lifetime.history().last(
        user.name, _MAX_SESSIONS, running=jobs, since=lifetime.user_created
    )
    return HomeContent(
        user=user.name,
        cards=(
            *(_card(each, saturation.get((user.name, each.name))) for each in spawners),
            *(_stopped_card(each, failure) for each, failure in stopped if each.name or failure),
        ),
        earlier=tuple(map(_earlier, sessions)),
        clusters=clusters,
        gpu_hours=gpu_hours,
        shared=services_shared_with(user),
    )


def _card(spawner: EDFSpawner, shared: SharedSaturation | None) -> SessionCard:
    server, lifetime = describe_server(spawner), spawner.lifetime
    options = spawner.options.with_defaults()
    state: Literal["running", "waiting", "stopping"] = "running" if spawner.ready else "waiting"
    if server.state == "stopping":
        state = "stopping"
    ends = lifetime.ends if state == "running" else None
    partition = f"on {server.partition}" if server.partition else ""
    extension = lifetime.status().extend_s if ends is not None else 0
    running_facts = () if state != "running" else (", ".join(server.nodes),)
    return SessionCard(
        name=spawner.name,
        title=spawner.orm_spawner.display_name or spawner.name or "default",
        state=state,
        detail_html=_start_detail(spawner) if state == "waiting" and spawner.job_id else "",
        facts=tuple(
            filter(
                None,
                (
                    *running_facts,
                    f"service {options.service}" if options.service else "",
                    server.edf or "no container",
                    " ".join(filter(None, (_gpus(server.gpus), partition))),
                    server.cluster if spawner.clusters else "",
                    f"job {server.job_id}" if server.job_id else "",
                    "starts again by itself" if spawner.follower.keep_up else "",
                    *(_requests(spawner) if options.service and state == "running" else ()),
                ),
            )
        ),
        ends=_iso(ends) if ends else "",
        remaining=format_span(ends - time.time()) if ends else "",
        extend=format_limit(extension) if extension else "",
        score=_score(shared),
        spark=spark_points(shared.activity) if shared and shared.shared else "",
        spark_text=_spark_text(shared),
        has_log=bool(server.job_id and server.nodes),
        service=options.service,
        shares=ServiceShares(spawner).list() if options.service else (),
        share_refusal=ServiceShares(spawner).refusal if options.service else "",
    )


def _requests(spawner: EDFSpawner) -> tuple[str, ...]:
    """Return what a service has reported about its requests, as texts for the card."""
    report = spawner.lifetime.activity.fresh
    return report.busy_with if report else ()


def _start_detail(spawner: EDFSpawner) -> str:
    status = spawner.lifetime.last_status()
    text = describe_status(spawner.job_id, status, has_setup=spawner.in_container)[1]
    return status_page(text, status)


def _stopped_card(known: Any, failure: Failure | None) -> SessionCard:
    return SessionCard(
        name=known.name,
        title=known.display_name or known.name or "default",
        state="failed" if failure and failure.at_start else "stopped",
        detail_html=escape(f"{failure.event} {failure.cause}".strip()) if failure else "",
        service=(getattr(known, "orm_spawner", known).user_options or {}).get("service", ""),
    )


def _gpus(number: int) -> str:
    return f"{number or 'no'} GPU{'' if number == 1 else 's'}"


def _score(shared: SharedSaturation | None) -> str:
    if shared is None or not shared.shared or shared.score is None:
        return ""
    bottleneck = (shared.bottleneck or "bottleneck unclear").replace("_", "-")
    return f"{shared.score:.0f} of 100 · {bottleneck}{' · simulated' if shared.simulated else ''}"


def spark_points(values: Sequence[float | None]) -> str:
    """Return the points of an SVG polyline of values from 0 to 1, such as ``0.0,14.0 4.1,2.0``.

    A missing value is left out; the result is empty for fewer than two values.
    """
    width, height = _SPARK
    step = width / max(len(values) - 1, 1)
    points = [
        f"{at * step:.1f},{height - 1 - value * (height - 2):.1f}"
        for at, value in enumerate(values)
        if value is not None
    ]
    return " ".join(points) if len(points) > 1 else ""


def _spark_text(shared: SharedSaturation | None) -> str:
    known = [each for each in shared.activity if each is not None] if shared else []
    if shared is None or not known:
        return ""
    minutes = f"{shared.seconds / 60:.0f} min"
    return f"SM activity of the last {minutes}: {min(known):.0%} to {max(known):.0%}, now {known[-1]:.0%}"


def _earlier(session: Session) -> EarlierSession:
    seconds = session.seconds
    hours = "" if seconds is None or not session.gpus else f"{session.gpus * seconds / 3600:.1f}"
    environment = "" if session.options.edf else "no container · "
    return EarlierSession(
        id=session.id,
        title=session.server or "default",
        options=environment + describe_options(session.options),
        submitted=_iso(session.submitted),
        duration=format_span(seconds) if seconds is not None else "",
        gpu_hours=hours,
        end=_ENDS[session.how] if session.how else "end unknown",
    )


async def _clusters(spawner: EDFSpawner) -> tuple[ClusterState, ...]:
    placement = spawner.placement
    settings = tuple(placement.settings_by_name.values())
    caches = [placement.shared(each).cache for each in settings]
    answers = await asyncio.gather(*(each.partitions(limit=_PATIENCE_S) for each in caches))
    return tuple(
        ClusterState(
            name=each.name,
            partitions=partition_rows(answer.value or ()),
            problem=answer.problem or ("No answer from the scheduler yet." if answer.value is None else ""),
            age=format_span(answer.age) if answer.problem and answer.value else "",
        )
        for each, answer in zip(settings, answers, strict=True)
    )


def _iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds")


class HomePageHandler(HomeHandler):
    """JupyterHub's home page; with `EDFSpawner` its template finds `HomeContent` as ``gipfel_home``."""

    _content: HomeContent | None = None

    @web.authenticated
    async def get(self) -> None:
        """Show the page."""
        if isinstance(self.current_user.spawner, EDFSpawner):
            self._content = await home_content(self.current_user, self.settings, self.log)
        await super().get()

    @property
    def template_namespace(self) -> dict[str, Any]:
        """JupyterHub's namespace with the page's content."""
        return {**super().template_namespace, "gipfel_home": self._content}


class RepeatHandler(HomeHandler):
    """``GET …/repeat/ID``: the form with the options of one of the user's own earlier sessions."""

    @web.authenticated
    async def get(self, number: str) -> None:
        """Redirect to the form; nothing is changed, because another site's page may cause this request."""
        user = self.current_user
        if not isinstance(user.spawner, EDFSpawner):
            raise web.HTTPError(404)
        lifetime = user.spawner.lifetime
        session = await lifetime.history().get(user.name, int(number), since=lifetime.user_created)
        if session is None:
            raise web.HTTPError(404, "This session is not in the history any more.")
        name = free_name(session.server, {each.name for each in user.spawners.values() if each.active})
        if name and not self.allow_named_servers:
            raise web.HTTPError(409, "Your server is running. Stop it first, then start it again.")
        form = url_path_join(self.hub.base_url, "spawn", user.escaped_name, name)
        self.redirect(url_concat(form, {REPEAT_PARAMETER: number}))


class NamedServer(Frozen):
    """Request about one of the user's servers; ``server`` is empty for the default one."""

    server: OneLine = Field("", max_length=255)


class ServerActionHandler(FormHandler):
    """Base of the handlers for the buttons of a card, with the server's name in the body."""

    def own_server(self, spawner: EDFSpawner, content: dict[str, Any]) -> EDFSpawner:
        """Return the running server that the request names.

        Raises
        ------
        GipfelError
            There is no such server, or it does not run.
        """
        try:
            name = NamedServer.model_validate(content).server
        except ValidationError:
            raise web.HTTPError(400, 'Give {"server": name} and nothing else.') from None
        spawners = spawner.user.spawners
        found = spawners.get(name)
        if not isinstance(found, EDFSpawner) or not found.active or not found.job_id:
            raise GipfelError("This server is not running.", "Reload the page.")
        return found


class ExtendServerHandler(ServerActionHandler):
    """``POST …/extend`` with ``server``: extend its job by the site's ``extend_by``."""

    rate = RateLimiter(20, 60.0)

    async def answer(self, spawner: EDFSpawner, content: dict[str, Any]) -> dict[str, Any]:
        """Return ``ends``, the new end in seconds since 1970, or the problem."""
        status = await self.own_server(spawner, content).lifetime.extend()
        return {"ends": status.ends}


class _OwnServerHandler(ServerActionHandler):
    """Only for the user: administrators get 403."""

    #: What only users themselves can do.
    action: ClassVar[str]

    @needs_scope("servers")
    async def post(self, user_name: str) -> None:
        """Answer the user's own request."""
        if self.current_user.kind != "user" or self.current_user.name != user_name:
            raise web.HTTPError(403, f"Only users themselves can {self.action}.")
        await super().post(user_name)


class ServerLogHandler(_OwnServerHandler):
    """``POST …/log`` with ``server``: the end of its job's log."""

    rate = RateLimiter(20, 60.0)
    action = "read their logs"

    async def answer(self, spawner: EDFSpawner, content: dict[str, Any]) -> dict[str, Any]:
        """Return ``text``, the last lines of the log."""
        log = await self.own_server(spawner, content).follower.read_log()
        return {"text": log.text}


class ShareServerHandler(_OwnServerHandler):
    """``POST …/share`` with a `ShareRequest`: list or change who has access to a service."""

    rate = RateLimiter(30, 60.0)
    action = "share their services"

    async def answer(self, spawner: EDFSpawner, content: dict[str, Any]) -> dict[str, Any]:
        """Return ``shares`` and ``refusal``."""
        try:
            asked = ShareRequest.model_validate(content)
        except ValidationError:
            raise web.HTTPError(400, "The body is not a request to share a service.") from None
        return answer_share(spawner.user, asked).model_dump(mode="json")
