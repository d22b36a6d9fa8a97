"""``api/``: reports in, and what they add up to."""

import asyncio
import time
from typing import Any, Literal

from pydantic import ValidationError
from tornado.web import stream_request_body

from gipfel_cluster.model import Frozen, GipfelError

from ..vetting.history.site_registry import SharedReport
from . import queries, scopes
from .cases import steps
from .handlers import ApiHandler, Problem
from .records import Refused, Sender
from .settings import first_problem

_DAY_NS = 86400 * 10**9
_MOST_DAYS = 3650
_MOST_REPORT_BYTES = 24 << 20


class Decision(Frozen):
    """An operator's word on a step."""

    decision: Literal["approve", "dismiss"]


@stream_request_body
class ReportsHandler(ApiHandler):
    """Reports: sent, and taken back by who sent them."""

    scopes = {"POST": scopes.WRITE, "DELETE": scopes.WRITE}  # noqa: RUF012 - typed in the base class

    def initialize(self) -> None:
        """Start with nothing received."""
        self._pieces: list[bytes] = []

    async def prepare(self) -> None:
        """Let only those send much who may send at all."""
        await super().prepare()
        connection: Any = self.request.connection
        connection.set_max_body_size(_MOST_REPORT_BYTES)

    def data_received(self, chunk: bytes) -> None:
        """Keep a piece of the body."""
        self._pieces.append(chunk)

    async def post(self) -> None:
        """Take one report; 201, or 200 where the same was sent before."""
        try:
            body = b"".join(self._pieces)
            report = await asyncio.to_thread(SharedReport.model_validate_json, body)
        except ValidationError as error:
            raise Problem(400, f"This is no report: {first_problem(error)}") from None
        sender = Sender(name=self.who, vouched=self.has_scope(scopes.VOUCH))
        try:
            new = await self.registry.receive(report, sender)
        except Refused as error:
            raise Problem(error.status, str(error)) from None
        self.set_status(201 if new else 200)
        self.reply({"stored": new})

    async def delete(self) -> None:
        """Delete all that this user ever sent."""
        try:
            self.reply({"deleted": await self.registry.withdraw(self.who)})
        except Refused as error:
            raise Problem(error.status, str(error)) from None


class NodeHandler(ApiHandler):
    """The newest results of one node."""

    scopes = {"GET": scopes.READ}  # noqa: RUF012

    async def get(self, cluster: str, node: str) -> None:
        """Newest first, 500 at most."""
        told = await self.registry.ask(lambda session: queries.node_history(session, cluster, node))
        self.reply({"results": [each.model_dump(mode="json") for each in told]})


class WorstHandler(ApiHandler):
    """The nodes that were bad most."""

    scopes = {"GET": scopes.READ}  # noqa: RUF012

    async def get(self, cluster: str) -> None:
        """Of the last ``?days=``, 7 by default."""
        since = time.time_ns() - self.days() * _DAY_NS
        worst = await self.registry.ask(lambda session: queries.worst_nodes(session, cluster, since_ns=since))
        self.reply({"nodes": [each.model_dump() for each in worst]})

    def days(self) -> int:
        """The query's days, within bounds."""
        given = self.get_query_argument("days", "7")
        if not (given.isascii() and given.isdecimal() and len(given) <= 6 and 0 < int(given) <= _MOST_DAYS):
            raise Problem(400, f"days is a number from 1 to {_MOST_DAYS}.")
        return int(given)


class BaselinesHandler(WorstHandler):
    """What checks usually measure on a GPU model: medians, for whoever sends what they are made of."""

    @property
    def hub_scopes(self) -> set[str]:
        """One of them is enough."""
        return {scopes.READ, scopes.WRITE} if self.request.method == "GET" else super().hub_scopes

    async def get(self, cluster: str) -> None:
        """Of ``?model=``, and the last ``?days=``."""
        since, model = time.time_ns() - self.days() * _DAY_NS, self.get_query_argument("model")
        found = await self.registry.ask(
            lambda session: queries.baselines(session, cluster, model, since_ns=since)
        )
        self.reply({"baselines": [each.model_dump() for each in found]})


class StepsHandler(ApiHandler):
    """Steps that wait for a person."""

    scopes = {"GET": scopes.OPERATE}  # noqa: RUF012

    async def get(self) -> None:
        """Newest first, 200 at most; with ``?before=`` those that are older than the step of this number."""
        before = self.before()
        waiting = await self.registry.ask(lambda session: steps(session, waiting=True, before=before))
        self.reply({"steps": [each.model_dump() for each in waiting]})


class StepHandler(ApiHandler):
    """One step's decision."""

    scopes = {"POST": scopes.OPERATE}  # noqa: RUF012

    async def post(self, step: str) -> None:
        """Approve it or dismiss its case; 409 where it may not be done."""
        try:
            decision = Decision.model_validate_json(self.request.body).decision
        except ValidationError:
            raise Problem(400, 'Give {"decision": "approve"} or {"decision": "dismiss"}.') from None
        try:
            done = await self.registry.recovery.decide(int(step), decision, self.who)
        except GipfelError as error:
            raise Problem(409, str(error)) from None
        self.reply(done.model_dump())


class AuditHandler(ApiHandler):
    """What was done, and by whom."""

    scopes = {"GET": scopes.OPERATE}  # noqa: RUF012

    async def get(self) -> None:
        """The last 200 lines, newest first."""
        lines = await self.registry.ask(queries.last_done)
        self.reply({"audit": [each.model_dump() for each in lines]})
