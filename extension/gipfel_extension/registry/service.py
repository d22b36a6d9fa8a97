"""`Registry`, shared by the handlers: database, settings, recovery, and operations of several queries.

Recovery drains nodes and returns them to service by rules, which say what is done after which reports.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, sessionmaker

from gipfel_cluster.model import GipfelError, pluralize

from ..vetting.history.site_registry import SharedReport
from .nodes import NodeControl
from .queries import (
    RefusedError,
    Sender,
    audit,
    check_report,
    delete_old,
    reported_nodes,
    store_report,
    withdraw,
)
from .recovery import Backlog, Recovery
from .rules import Rule
from .settings import Settings

# Seconds that shutdown waits for an action on a node to be recorded, such as a drain that Slurm has done.
_PATIENCE_S = 5.0

_log = logging.getLogger("gipfel-registry")


class Registry:
    """Registry without its HTTP handlers.

    Parameters
    ----------
    nodes
        Nodes of the cluster ``settings.drain.cluster``, and its jobs.
    clock
        Returns the time in UTC nanoseconds.
    """

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        rules: Iterable[Rule],
        nodes: NodeControl,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self.settings = settings
        self.rules = tuple(rules)
        self._nodes = nodes
        self._clock = clock
        self._sending: set[str] = set()
        self.recovery = Recovery(
            sessionmaker(engine, expire_on_commit=False), self.rules, settings, nodes, clock
        )
        #: Return the result of a function, called in a thread with a database session in a transaction.
        self.query = self.recovery.query
        self._backlog = Backlog(self._apply_rules)

    async def receive(self, report: SharedReport, sender: Sender) -> bool:
        """Store a report, and queue its nodes for the recovery rules; return False if it is already stored.

        Raises
        ------
        RefusedError
            The report is not accepted.
        """
        if sender.name in self._sending:
            raise RefusedError(429, "Another report of yours is being stored. Send one report at a time.")
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

        new = await self.query(store)
        if new:
            self._backlog.add(report.record.cluster, reported_nodes(report))
        return new

    async def wait_until_idle(self) -> None:
        """Wait until the recovery rules have been applied to the nodes of all received reports."""
        await self._backlog.wait_until_idle()

    async def close(self) -> None:
        """Stop applying the recovery rules; they are applied to the queued nodes after their next report."""
        await self._backlog.close(_PATIENCE_S)

    async def withdraw(self, reporter: str) -> int:
        """Delete all reports of a user, and return their number.

        Raises
        ------
        RefusedError
            The user has reached the limit of withdrawals.
        """

        def delete_reports(session: Session) -> int:
            now = self._clock()
            count = withdraw(session, reporter, now_ns=now)
            audit(session, "withdraw", pluralize(count, "report"), actor=reporter, at_ns=now)
            return count

        return await self.query(delete_reports)

    async def delete_old(self) -> None:
        """Delete data older than ``keep_days``."""
        await self.query(lambda session: delete_old(session, self.settings, now_ns=self._clock()))

    async def _confirmed(self, report: SharedReport, sender: Sender) -> bool:
        """Return whether the scheduler confirms that the job is the sender's and has these nodes."""
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
        if user != sender.name or not nodes.issuperset(reported_nodes(report)):
            raise RefusedError(403, f"Job {record.job} is not yours, or does not have these nodes.")
        return True

    async def _apply_rules(self, cluster: str, nodes: Sequence[str]) -> None:
        try:
            await self.recovery.apply_rules_to_reported(cluster, nodes)
        except (SQLAlchemyError, GipfelError, OSError):
            # The report is stored; the rules are applied again after the next report.
            _log.exception("The rules can't be applied to nodes of %s.", cluster)
