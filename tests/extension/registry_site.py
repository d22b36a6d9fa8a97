"""A registry with a fake clock, on a fake cluster that records changes of its nodes."""

import asyncio
import itertools
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from sqlalchemy import create_engine, make_url, text

from gipfel_cluster.model import GipfelError
from gipfel_extension.registry import queries
from gipfel_extension.registry.cases import StepView, steps
from gipfel_extension.registry.nodes import NodeState, SlurmNodes, read_states
from gipfel_extension.registry.queries import Sender
from gipfel_extension.registry.rules import load_rules
from gipfel_extension.registry.schema import open_database
from gipfel_extension.registry.service import Registry
from gipfel_extension.registry.settings import Settings
from gipfel_extension.vetting.history.site_registry import SharedReport

HOUR = 3600 * 10**9
_NUMBERS = itertools.count(1)


def empty_database(server: str) -> str:
    """The URL of an empty database on a PostgreSQL."""
    name = f"registry_{next(_NUMBERS)}"
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return make_url(server).set(database=name).render_as_string(hide_password=False)


class FakeNodes(SlurmNodes):
    """A cluster of a hundred nodes that remembers what was done to it; its commands are Slurm's."""

    def __init__(self, count: int = 100) -> None:
        super().__init__({})
        self.count = count
        self.reasons: dict[str, str] = {}
        self.ran: list[tuple[str, ...]] = []
        self.jobs: dict[str, tuple[str, frozenset[str]]] = {}

    async def states(self) -> Mapping[str, NodeState]:
        names = [f"n{number:03}" for number in range(self.count)]
        words = [
            f"{n}|normal|{'drained' if n in self.reasons else 'idle'}|{self.reasons.get(n, 'none')}"
            for n in names
        ]
        return read_states("\n".join(words))

    async def job(self, job: str) -> tuple[str, frozenset[str]] | None:
        return self.jobs.get(job)

    async def run(self, argv: tuple[str, ...]) -> None:
        self.ran.append(argv)
        node = argv[2].removeprefix("NodeName=")
        if "State=DRAIN" in argv:
            self.reasons[node] = argv[4].removeprefix("Reason=")
        else:
            del self.reasons[node]


class Site:
    """A registry whose clock the test moves."""

    def __init__(self, database: str, **settings: Any) -> None:
        self.now = time.time_ns()
        self.nodes = FakeNodes()
        self.engine = open_database(database)
        self.registry = Registry(
            self.engine, Settings.model_validate(settings), load_rules(), self.nodes, clock=lambda: self.now
        )

    async def send(self, user: str, *nodes: str, job: str = "", vouched: bool = False, **entry: Any) -> bool:
        self.now += 10**9
        sender = Sender(name=user, vouched=vouched)
        new = await self.registry.receive(self.report(*nodes, job=job or user, **entry), sender)
        await self.registry.wait_until_idle()
        return new

    def report(self, *nodes: str, job: str = "7", cluster: str = "alps", **entry: Any) -> SharedReport:
        words = {
            "check": "xid", "type": "xid", "scope": "node", "verdict": "fail", "reason": "XID 79",
            "codes": [79], "gpu_model": "GH200", "started_ns": self.now,
        }  # fmt: skip
        return SharedReport.model_validate(
            {
                "record": {
                    "cluster": cluster, "job": job, "protocol": "quick", "started_ns": self.now - 10**9,
                    "ended_ns": self.now, "complete": True,
                    "entries": [{"node": node, **words, **entry} for node in nodes],
                }
            }
        )  # fmt: skip

    async def waiting(self) -> list[StepView]:
        return list(await self.registry.query(lambda session: steps(session, waiting=True)))

    async def try_to_approve(self, step: StepView) -> list[str]:
        try:
            await self.registry.recovery.decide(step.id, "approve", "olga")
        except GipfelError as error:
            return [str(error)]
        return []

    async def audit(self) -> list[tuple[str, str, str]]:
        done = await self.registry.query(queries.recent_audit_lines)
        return [(each.actor, each.event, each.detail) for each in reversed(done)]


def run_story(database: str, story: Callable[[Site], Coroutine[Any, Any, None]], **settings: Any) -> None:
    """Let a story happen at a site, and end it."""
    site = Site(database, **settings)
    try:
        asyncio.run(story(site))
    finally:
        site.engine.dispose()


DRAIN = {"cluster": "alps", "dry_run": False, "per_hour": 2, "max_share": 0.05}
