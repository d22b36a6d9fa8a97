"""The operator's page: what waits, nodes by checks, one node's history, and what was done.

Nodes by checks, as the operator's page shows them: the latest verdict, and how often it was bad.
"""

import time
from collections.abc import Sequence
from typing import Literal
from urllib.parse import quote

from pydantic import Field, ValidationError
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from gipfel_cluster.model import Frozen, GipfelError

from ..vetting.model import Verdict
from . import queries, scopes
from .cases import MOST_STEPS, StepView, steps, waiting_steps
from .handlers import PageHandler, Problem
from .queries import WorstNode, iso, worst_nodes
from .schema import ResultRow

_MOST_NODES = 60
_BAD = {Verdict.FAIL, Verdict.DEGRADED}


class Cell(Frozen):
    """One check on one node: ``bad`` of ``of`` results, the newest verdict and its reason."""

    verdict: Verdict
    reason: str
    bad: int
    of: int
    when: str


class Grid(Frozen):
    """The nodes that were bad, worst first, and the checks that any of them was bad in."""

    nodes: tuple[WorstNode, ...]
    checks: tuple[str, ...]
    cells: dict[str, dict[str, Cell]]


def grid(session: Session, cluster: str, *, since_ns: int) -> Grid:
    """The grid of one cluster since then (UTC, ns)."""
    nodes = worst_nodes(session, cluster, since_ns=since_ns, limit=_MOST_NODES)
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
    # Of results that came in together, the worst is the one to show.
    newest = {key: max(said, key=lambda each: (each[2], each[0].rank)) for key, said in groups.items()}
    reasons = _reasons(session, [each[3] for each in newest.values()])
    cells: dict[str, dict[str, Cell]] = {}
    for (node, check), said in groups.items():
        verdict, _, last, identity = newest[node, check]
        bad = sum(count for found, count, *_ in said if found in _BAD)
        of = sum(count for _, count, *_ in said)
        cell = Cell(verdict=verdict, reason=reasons[identity], bad=bad, of=of, when=iso(last))
        cells.setdefault(node, {})[check] = cell
    checks = sorted({check for row in cells.values() for check, cell in row.items() if cell.bad})
    return Grid(nodes=nodes, checks=tuple(checks), cells=cells)


def _reasons(session: Session, identities: Sequence[int]) -> dict[int, str]:
    found: dict[int, str] = {}
    for start in range(0, len(identities), 500):
        piece = identities[start : start + 500]
        rows = session.execute(select(ResultRow.id, ResultRow.reason).where(ResultRow.id.in_(piece)))
        found |= {row[0]: row[1] for row in rows}
    return found


_DAY_NS = 86400 * 10**9
_GRID_DAYS = 14


class StepForm(Frozen):
    """The form of one step."""

    step: int = Field(ge=1, lt=2**63)
    decision: Literal["approve", "dismiss"]


class OverviewHandler(PageHandler):
    """The page that an operator opens."""

    scopes = {"GET": scopes.OPERATE, "POST": scopes.OPERATE}  # noqa: RUF012 - typed in the base class

    async def get(self) -> None:
        """Show what waits and the grid of one cluster."""
        await self._show()

    async def post(self) -> None:
        """Decide on a step, and show the page again; what was refused is said there."""
        fields = {name: self.get_body_argument(name, "") for name in ("step", "decision")}
        try:
            form = StepForm.model_validate(fields)
        except ValidationError:
            raise Problem(400, "The form names no step.") from None
        try:
            await self.registry.recovery.decide(form.step, form.decision, self.who)
        except GipfelError as error:
            self.set_status(409)
            await self._show(refused=str(error))
            return
        self.redirect(self.settings["prefix"], status=303)

    async def _show(self, *, refused: str = "") -> None:
        given, before = self.get_query_argument("cluster", ""), self.before()

        def ask(session: Session) -> tuple[list[str], str, Grid]:
            names = list(queries.clusters(session))
            chosen = given if given in names else (names[0] if names else "")
            since = time.time_ns() - _GRID_DAYS * _DAY_NS
            return names, chosen, grid(session, chosen, since_ns=since)

        def ask_steps(session: Session) -> tuple[list[StepView], int, str]:
            shown = list(steps(session, waiting=True, before=before))
            return shown, waiting_steps(session), self.registry.recovery.refusal_of_cases(session)

        names, chosen, table = await self.registry.ask(ask)
        waiting, all_waiting, full = await self.registry.ask(ask_steps)
        rules = {rule.name: rule for rule in self.registry.rules}
        self.show(
            "overview.html",
            who=self.who,
            waiting=waiting,
            all_waiting=all_waiting,
            before=before,
            full=full,
            clusters=names,
            cluster=chosen,
            grid=table,
            rules=rules,
            drain=self.registry.settings.drain,
            refused=refused,
            days=_GRID_DAYS,
            xsrf=self.xsrf_token.decode("ascii"),
            quote=lambda text: quote(text, safe=""),
        )


class NodePageHandler(PageHandler):
    """The history of one node."""

    scopes = {"GET": scopes.OPERATE}  # noqa: RUF012

    async def get(self, cluster: str, node: str) -> None:
        """Newest first."""
        told = await self.registry.ask(lambda session: queries.node_history(session, cluster, node))
        if not told:
            raise Problem(404, "There are no results of this node.")
        self.show("node.html", who=self.who, cluster=cluster, node=node, told=told)


class AuditPageHandler(PageHandler):
    """What was done, and by whom."""

    scopes = {"GET": scopes.OPERATE}  # noqa: RUF012

    async def get(self) -> None:
        """The last 200 lines, and 200 steps with what became of them."""
        before = self.before()

        def ask(session: Session) -> tuple[tuple[queries.Done, ...], list[StepView]]:
            return queries.last_done(session), list(steps(session, waiting=False, before=before))

        done, decided = await self.registry.ask(ask)
        self.show("audit.html", who=self.who, done=done, steps=decided, before=before, most=MOST_STEPS)
