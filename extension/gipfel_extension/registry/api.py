"""REST API: reports in; node results, baselines, recovery steps and the audit log out."""

import asyncio
import time
from typing import Any, Literal

from pydantic import ValidationError
from tornado.web import stream_request_body

from gipfel_cluster.model import Frozen, GipfelError

from ..vetting.history.site_registry import SharedReport
from . import queries
from .cases import steps
from .handlers import ApiHandler, RequestError
from .records import RefusedError, Sender
from .settings import OPERATE_SCOPE, READ_SCOPE, VOUCH_SCOPE, WRITE_SCOPE, first_error

_DAY_NS = 86400 * 10**9
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
        since = time.time_ns() - self.days() * _DAY_NS
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
        since, model = time.time_ns() - self.days() * _DAY_NS, self.get_query_argument("model")
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
