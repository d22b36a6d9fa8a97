"""``gipfel/workloads``, ``services``, ``quota``: workloads without own routes, services, limits of jobs."""

import asyncio
import os
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from gipfel_cluster.model import Frozen, GipfelError, OneLine
from gipfel_cluster.workloads.kinds import Workload, Workloads
from gipfel_cluster.workloads.logs import last_lines
from gipfel_cluster.workloads.quota import own_quota, own_sections

from ..job.checkpoints import storage_quota
from ..services.blueprint import NAME, find_blueprint
from ..services.directory import HUB, ServiceSpec, read_service_state
from ..services.hub_commands import service_offers
from ..services.hub_services import hub_services
from ..services.plan import parameter_values
from ..services.start import ServiceKind, start_service
from .base import GipfelRouteHandler, route

#: Largest number of workloads in a response, and of lines of a log.
MAX_WORKLOADS, MAX_LINES = 200, 200
#: ``ID`` or ``RUN/ID``.
_ID = "^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?$"
_WITH_OWN_ROUTES = frozenset(("launch", "batch", "service"))
_MAX_SERVICES = 100
_MAX_SHARE_S = 30 * 86400


class WorkloadRequest(Frozen):
    """Kind and ID of a workload, as `gipfel ps` lists them."""

    kind: str = Field(min_length=1, max_length=64, pattern="^[A-Za-z][A-Za-z0-9_-]*$")
    id: str = Field(min_length=1, max_length=300, pattern=_ID)


class WorkloadsRouteHandler(GipfelRouteHandler):
    """``GET``: the user's workloads of the kinds without own routes."""

    @route
    async def get(self) -> None:
        """Send the newest workloads, the newest first."""
        self.finish({"workloads": await asyncio.to_thread(other_workloads)})


class WorkloadActionRouteHandler(GipfelRouteHandler):
    """``POST``: stop or rerun one workload."""

    @route
    async def post(self, action: Literal["stop", "rerun"]) -> None:
        """Request the end of a workload, or start it again; send the workload's ID."""
        request = self.body_as(WorkloadRequest)
        started = await asyncio.to_thread(_stop if action == "stop" else _rerun, request)
        self.finish({"id": started.id, "kind": started.kind})


class WorkloadLogRouteHandler(GipfelRouteHandler):
    """``GET``: the end of a workload's log."""

    @route
    async def get(self) -> None:
        """Send the last lines of all ranks or tasks, ordered by time."""
        request = self.query_as(WorkloadRequest)
        self.finish({"lines": await asyncio.to_thread(_log, request)})


class QuotaRouteHandler(GipfelRouteHandler):
    """``GET``: what limits the user's jobs, and what is left."""

    @route
    async def get(self) -> None:
        """Send the sections that `gipfel quota` prints; none for a scheduler without limits."""
        quota = await own_quota(os.environ)
        storage, problem = await asyncio.to_thread(storage_quota, os.environ)
        now = datetime.now().astimezone()
        sections = await asyncio.to_thread(own_sections, quota, os.environ, now)
        self.finish(
            {"sections": [each.model_dump(mode="json") for each in sections], "storage": storage or problem}
        )


def _workloads() -> Workloads:
    return Workloads(os.environ, {})


def other_workloads() -> list[dict[str, Any]]:
    """Return the workloads of kinds without own routes, the newest first.

    The scheduler is not queried about workloads of other kinds.
    """
    found = _workloads()
    kinds = (kind for kind in found.kinds if kind not in _WITH_OWN_ROUTES)
    listed = (each for kind in kinds for each in found.list(ended=True, kind=kind))
    newest = sorted(listed, key=lambda each: each.created_ns, reverse=True)[:MAX_WORKLOADS]
    return [each.model_dump(mode="json") for each in newest]


def _find(found: Workloads, request: WorkloadRequest) -> Workload:
    return found.find(f"{request.kind}:{request.id}")


def _stop(request: WorkloadRequest) -> Workload:
    found = _workloads()
    workload = _find(found, request)
    if not workload.ended:
        found.stop(workload)
    return workload


def _rerun(request: WorkloadRequest) -> Workload:
    found = _workloads()
    return found.rerun(_find(found, request), directory=Path.home(), report=lambda _: None)


def _log(request: WorkloadRequest) -> list[dict[str, Any]]:
    found = _workloads()
    lines, _ = last_lines(found.logs(_find(found, request)), MAX_LINES)
    return [{"rank": line.rank, "text": line.text} for line in lines]


class ServiceStart(Frozen):
    """Service to start: a blueprint with its parameters as typed; empty values keep the defaults."""

    blueprint: str = Field(pattern=rf"^{NAME}$")
    name: str = Field("", pattern=rf"^(?:{NAME})?$")
    parameters: dict[str, str] = Field(default={}, max_length=64)
    edf: OneLine = Field("", max_length=4096)
    time: OneLine = Field("", max_length=32)


class ServiceShareChange(Frozen):
    """Access to a service to grant for some seconds, or to end (0); without a name, access is only listed."""

    service: str = Field(pattern=rf"^{NAME}$")
    kind: str = Field("user", pattern="^(?:user|group)$")
    name: OneLine = Field("", max_length=255)
    seconds: int = Field(0, ge=0, le=_MAX_SHARE_S, strict=True)


class ServicesRouteHandler(GipfelRouteHandler):
    """``GET``: the user's services. ``POST``: start one."""

    @route
    async def get(self) -> None:
        """Send the services, the newest first, with their addresses and with whom they are shared."""
        self.finish({"services": await asyncio.to_thread(_services)})

    @route
    async def post(self) -> None:
        """Start a service without waiting until it is ready, and send its name."""
        request = self.body_as(ServiceStart)
        self.set_status(201)
        self.finish({"id": await asyncio.to_thread(_start, request)})


class ServiceOffersRouteHandler(GipfelRouteHandler):
    """``GET``: the blueprints that can be started."""

    @route
    async def get(self) -> None:
        """Send the form's fields for each blueprint, and a line for each blueprint that can't be used."""
        found = await asyncio.to_thread(service_offers, os.environ)
        offers = [{**each.model_dump(mode="json"), "cost": each.hourly_cost} for each in found.services]
        self.finish({"offers": offers, "problems": found.problems})


class ServiceShareRouteHandler(GipfelRouteHandler):
    """``POST``: list who has access to a service, and change it."""

    @route
    async def post(self) -> None:
        """Apply the requested change; send ``shares``, and in ``refusal`` why it was refused, if it was."""
        request = self.body_as(ServiceShareChange)
        hub = hub_services(os.environ)
        if hub is None:
            raise GipfelError("Only services of a hub can be shared.", "Start it from a server of the hub.")
        answer = await asyncio.to_thread(
            hub.share, request.service, kind=request.kind, who=request.name, seconds=request.seconds
        )
        self.finish(answer)


def list_services() -> list[dict[str, Any]]:
    """Return the fields of the user's services that may change, without querying the hub."""
    return [each.model_dump(mode="json") for each in ServiceKind().list(os.environ)]


def _services() -> list[dict[str, Any]]:
    found = sorted(ServiceKind().list(os.environ), key=lambda each: each.created_ns, reverse=True)
    return [_service(each) for each in found[:_MAX_SERVICES]]


def _service(workload: Workload) -> dict[str, Any]:
    """Return the panel's fields of a service; the address of a service of the hub is a path."""
    state = read_service_state(Path(workload.folder))
    is_open = workload.state == "running" and state.port
    url = ""
    if is_open:
        origin = state.host if state.scheduler == HUB else f"http://127.0.0.1:{state.port}"
        url = f"{origin}{state.prefix}"
    sharing = _sharing(workload.id) if is_open and state.scheduler == HUB else {}
    return {
        **workload.model_dump(mode="json"),
        "url": url,
        "in_hub": state.scheduler == HUB,
        "shares": sharing.get("shares", []),
        "refusal": sharing.get("refusal", ""),
    }


def _sharing(name: str) -> dict[str, Any]:
    hub = hub_services(os.environ)
    try:
        return hub.share(name) if hub else {}
    except GipfelError as error:
        return {"refusal": error.problem}


def _start(request: ServiceStart) -> str:
    blueprint = find_blueprint(request.blueprint, directory=Path.home(), environment=os.environ)
    typed = {name: value for name, value in request.parameters.items() if value}
    values = parameter_values(blueprint, typed)
    name = request.name or blueprint.name
    hub = hub_services(os.environ)
    if hub is not None:
        chosen = {key: value for key, value in (("edf", request.edf), ("time", request.time)) if value}
        options = {**chosen, "service": blueprint.name, "parameters": typed}
        hub.start(name, options, lambda _: None, wait=False)
        return name
    resources = blueprint.resources.model_copy(update={"time": request.time} if request.time else {})
    spec = ServiceSpec(
        name=name,
        blueprint=blueprint.model_copy(update={"resources": resources}),
        parameters=values,
        edf=request.edf or blueprint.edf,
        directory=str(Path.home()),
        source=blueprint.name,
    )
    return start_service(spec, os.environ).id
