"""Operators' pages: waiting steps with a grid of nodes and checks, a node's history, and the audit log."""

import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from pydantic import Field, ValidationError
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from gipfel_cluster.model import Frozen, GipfelError

from ..vetting.model import Verdict
from . import queries
from .cases import MAX_STEPS, StepView, steps, waiting_steps
from .handlers import Decision, PageHandler, RequestError
from .queries import WorstNode, iso, worst_nodes
from .rules import DAY_NS
from .schema import ResultRow
from .settings import OPERATE_SCOPE

_MAX_NODES = 60
_BAD = {Verdict.FAIL, Verdict.DEGRADED}


class GridCell(Frozen):
    """One check on one node: the newest verdict with its reason and time, and the counts of results."""

    verdict: Verdict
    reason: str
    bad: int
    total: int
    time: str


class Grid(Frozen):
    """Nodes with bad results, worst first, by the checks with bad results on any of them."""

    nodes: tuple[WorstNode, ...]
    checks: tuple[str, ...]
    cells: dict[str, dict[str, GridCell]]


def build_grid(session: Session, cluster: str, *, since_ns: int) -> Grid:
    """Return the grid of one cluster since a time (UTC, ns)."""
    nodes = worst_nodes(session, cluster, since_ns=since_ns, limit=_MAX_NODES)
    names = [each.node for each in nodes]
    rows = session.execute(
        select(
            ResultRow.node,
            ResultRow.check,
            ResultRow.verdict,
            func.count(),
            func.max(ResultRow.received_ns),
            func.max(ResultRow.id),
        )
        .where(ResultRow.cluster == cluster, ResultRow.node.in_(names), ResultRow.received_ns > since_ns)
        .group_by(ResultRow.node, ResultRow.check, ResultRow.verdict)
    ).all()
    groups: dict[tuple[str, str], list[tuple[Verdict, int, int, int]]] = {}
    for node, check, verdict, count, last, identity in rows:
        groups.setdefault((node, check), []).append((Verdict(verdict), count, last, identity))
    # Of results that were received together, the worst is shown.
    newest = {key: max(group, key=lambda each: (each[2], each[0].rank)) for key, group in groups.items()}
    reasons = _reasons(session, [each[3] for each in newest.values()])
    cells: dict[str, dict[str, GridCell]] = {}
    for (node, check), group in groups.items():
        verdict, _, last, identity = newest[node, check]
        bad = sum(count for found, count, *_ in group if found in _BAD)
        total = sum(count for _, count, *_ in group)
        cell = GridCell(verdict=verdict, reason=reasons[identity], bad=bad, total=total, time=iso(last))
        cells.setdefault(node, {})[check] = cell
    checks = sorted({check for row in cells.values() for check, cell in row.items() if cell.bad})
    return Grid(nodes=nodes, checks=tuple(checks), cells=cells)


def _reasons(session: Session, identities: Sequence[int]) -> dict[int, str]:
    found: dict[int, str] = {}
    for start in range(0, len(identities), 500):
        batch = identities[start : start + 500]
        rows = session.execute(select(ResultRow.id, ResultRow.reason).where(ResultRow.id.in_(batch)))
        found |= {row[0]: row[1] for row in rows}
    return found


_GRID_DAYS = 14


class StepForm(Decision):
    """Form with an operator's decision on a step."""

    step: int = Field(ge=1, lt=2**63)


class OverviewHandler(PageHandler):
    """Overview page: waiting steps, and the grid of one cluster."""

    scopes = {"GET": OPERATE_SCOPE, "POST": OPERATE_SCOPE}  # noqa: RUF012 - typed in the base class

    async def get(self) -> None:
        """Show the page."""
        await self._show()

    async def post(self) -> None:
        """Decide on a step, and show the page again, with the message of a refusal."""
        fields = {name: self.get_body_argument(name, "") for name in ("step", "decision")}
        try:
            form = StepForm.model_validate(fields)
        except ValidationError:
            raise RequestError(400, "The form has no valid step and decision.") from None
        try:
            await self.registry.recovery.decide(form.step, form.decision, self.requester)
        except GipfelError as error:
            self.set_status(409)
            await self._show(refused=str(error))
            return
        self.redirect(self.settings["prefix"], status=303)

    async def _show(self, *, refused: str = "") -> None:
        requested, before = self.get_query_argument("cluster", ""), self.before()

        def query(session: Session) -> dict[str, Any]:
            names = queries.clusters(session)
            cluster = requested if requested in names else next(iter(names), "")
            since = time.time_ns() - _GRID_DAYS * DAY_NS
            return {
                "clusters": names,
                "cluster": cluster,
                "grid": build_grid(session, cluster, since_ns=since),
                "waiting": steps(session, waiting=True, before=before),
                "waiting_count": waiting_steps(session),
                "case_refusal": self.registry.recovery.case_refusal_now(session),
            }

        shown = await self.registry.query(query)
        rules = {rule.name: rule for rule in self.registry.rules}
        self.show(
            "overview.html",
            requester=self.requester,
            **shown,
            before=before,
            rules=rules,
            drain=self.registry.settings.drain,
            refused=refused,
            days=_GRID_DAYS,
            xsrf=self.xsrf_token.decode("ascii"),
            quote=lambda text: quote(text, safe=""),
        )


class NodePageHandler(PageHandler):
    """Page of one node's results."""

    scopes = {"GET": OPERATE_SCOPE}  # noqa: RUF012

    async def get(self, cluster: str, node: str) -> None:
        """Show the results, newest first."""
        results = await self.registry.query(lambda session: queries.node_history(session, cluster, node))
        if not results:
            raise RequestError(404, "There are no results for this node.")
        self.show("node.html", requester=self.requester, cluster=cluster, node=node, results=results)


class AuditPageHandler(PageHandler):
    """Page of the audit log and of all steps."""

    scopes = {"GET": OPERATE_SCOPE}  # noqa: RUF012

    async def get(self) -> None:
        """Show the last 200 lines of the audit log, and 200 steps with their outcomes."""
        before = self.before()

        def query(session: Session) -> tuple[tuple[queries.AuditLine, ...], list[StepView]]:
            return queries.recent_audit_lines(session), list(steps(session, waiting=False, before=before))

        lines, all_steps = await self.registry.query(query)
        self.show(
            "audit.html",
            requester=self.requester,
            lines=lines,
            steps=all_steps,
            before=before,
            max_steps=MAX_STEPS,
        )
