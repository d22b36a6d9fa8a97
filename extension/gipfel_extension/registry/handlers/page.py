"""The operator's page: what waits, nodes by checks, one node's history, and what was done."""

import time
from typing import Literal
from urllib.parse import quote

from pydantic import Field, ValidationError
from sqlalchemy.orm import Session

from gipfel_cluster.model import Frozen, GipfelError

from .. import queries, scopes
from ..grid import Grid, grid
from ..recovery.cases import MOST_STEPS, StepView, steps, waiting_steps
from .base import PageHandler, Problem

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
