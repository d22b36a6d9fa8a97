"""What the handlers share: database, settings and recovery, and the work that is more than one query."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, sessionmaker

from gipfel_cluster.model import GipfelError

from ..vetting.history.site_registry import SharedReport
from .nodes import Nodes
from .records import Refused, Sender, audit, check_report, forget, nodes_of, store_report, withdraw
from .recovery import Backlog, Recovery
from .rules import Rule
from .settings import Settings

_T = TypeVar("_T")
# A step under way, such as a drain that has reached Slurm, is written down before the end.
_PATIENCE_S = 5.0

_log = logging.getLogger("gipfel-registry")


class Registry:
    """The registry without its web side.

    Parameters
    ----------
    nodes
        The cluster of ``settings.drain.cluster``, also asked about jobs.
    clock
        UTC nanoseconds.
    """

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        rules: Iterable[Rule],
        nodes: Nodes,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self.settings = settings
        self.rules = tuple(rules)
        self._sessions = sessionmaker(engine, expire_on_commit=False)
        self._nodes = nodes
        self._clock = clock
        self._sending: set[str] = set()
        self.recovery = Recovery(self._sessions, self.rules, settings, nodes, clock)
        self._backlog = Backlog(self._consider)

    async def ask(self, question: Callable[[Session], _T]) -> _T:
        """Answer a question from the database without holding up other requests."""

        def run() -> _T:
            with self._sessions.begin() as session:
                return question(session)

        return await asyncio.to_thread(run)

    async def receive(self, report: SharedReport, sender: Sender) -> bool:
        """Take a report in; False where it was here already. Rules look at it afterwards.

        Raises
        ------
        Refused
            It is not taken.
        """
        if sender.name in self._sending:
            raise Refused(429, "Another report of yours is being stored: send one after the other.")
        self._sending.add(sender.name)
        try:
            return await self._store(report, sender)
        finally:
            self._sending.discard(sender.name)

    async def _store(self, report: SharedReport, sender: Sender) -> bool:
        now = self._clock()
        check_report(report, self.settings, now_ns=now)
        confirmed = await self._confirmed(report, sender)

        def store(session: Session) -> bool:
            return store_report(session, report, sender, self.settings, confirmed=confirmed, now_ns=now)

        new = await self.ask(store)
        if new:
            self._backlog.add(report.record.cluster, nodes_of(report))
        return new

    async def settled(self) -> None:
        """Wait until rules have looked at everything that was received."""
        await self._backlog.settled()

    async def close(self) -> None:
        """Stop applying rules; nodes that still waited are looked at after their next report."""
        await self._backlog.close(_PATIENCE_S)

    async def withdraw(self, reporter: str) -> int:
        """Delete what somebody sent; returns how many reports.

        Raises
        ------
        Refused
            They did so too often.
        """

        def take_back(session: Session) -> int:
            now = self._clock()
            count = withdraw(session, reporter, now_ns=now)
            audit(session, "withdraw", f"{count} reports", actor=reporter, at_ns=now)
            return count

        return await self.ask(take_back)

    async def forget(self) -> None:
        """Delete what is too old."""
        await self.ask(lambda session: forget(session, self.settings, now_ns=self._clock()))

    async def _confirmed(self, report: SharedReport, sender: Sender) -> bool:
        """Whether the scheduler says that the job is the sender's, and has these nodes."""
        record = report.record
        if not self.settings.confirm_jobs or sender.vouched or record.cluster != self.settings.drain.cluster:
            return False
        try:
            known = await self._nodes.job(record.job)
        except GipfelError as error:
            _log.warning("Job %s can't be confirmed: %s", record.job, error)
            return False
        if known is None:
            return False
        user, nodes = known
        if user != sender.name or not nodes.issuperset(nodes_of(report)):
            raise Refused(403, f"Job {record.job} is not yours, or does not have these nodes.")
        return True

    async def _consider(self, cluster: str, nodes: Sequence[str]) -> None:
        try:
            await self.recovery.consider_reported(cluster, nodes)
        except (SQLAlchemyError, GipfelError, OSError):
            # The report is stored; what rules make of it is tried again with the next one.
            _log.exception("Rules could not be applied to nodes of %s.", cluster)
