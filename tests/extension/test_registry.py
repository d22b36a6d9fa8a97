"""The registry on SQLite and on a real PostgreSQL: what comes in, what is proposed, what reaches nodes."""

import asyncio
import itertools
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, make_url, text

sys.path.insert(0, str(Path(__file__).parent))

from postgres import postgres_missing, running_postgres

from gipfel_cluster.model import GipfelError
from gipfel_extension.registry import queries
from gipfel_extension.registry.database import open_database
from gipfel_extension.registry.grid import grid
from gipfel_extension.registry.records import Refused, Sender
from gipfel_extension.registry.recovery.cases import StepView, steps
from gipfel_extension.registry.recovery.nodes import NodeState, SlurmNodes, read_states
from gipfel_extension.registry.rules.load import load_rules
from gipfel_extension.registry.schema import Base
from gipfel_extension.registry.service import Registry
from gipfel_extension.registry.settings import Settings
from gipfel_extension.vetting.history.share import SharedReport
from gipfel_extension.vetting.model import Verdict

HOUR = 3600 * 10**9
_NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    reason = postgres_missing()
    if reason:
        pytest.skip(reason)
    with running_postgres() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/made/registry.sqlite"
    server: str = request.getfixturevalue("postgres")
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
        await self.registry.settled()
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
        return list(await self.registry.ask(lambda session: steps(session, waiting=True)))

    async def try_to_approve(self, step: StepView) -> list[str]:
        try:
            await self.registry.recovery.decide(step.id, "approve", "olga")
        except GipfelError as error:
            return [str(error)]
        return []

    async def audit(self) -> list[tuple[str, str, str]]:
        done = await self.registry.ask(queries.last_done)
        return [(each.actor, each.event, each.words) for each in reversed(done)]


@pytest.fixture
def run_site(database: str) -> Callable[..., None]:
    def run(story: Callable[[Site], Coroutine[Any, Any, None]], **settings: Any) -> None:
        site = Site(database, **settings)
        try:
            asyncio.run(story(site))
        finally:
            site.engine.dispose()

    return run


DRAIN = {"cluster": "alps", "dry_run": False, "per_hour": 2, "most_share": 0.05}


class TestDatabase:
    def test_migrations_make_the_tables_that_the_code_has_and_can_run_twice(self, database: str) -> None:
        open_database(database).dispose()
        engine = open_database(database)
        with engine.connect() as connection:
            assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
        engine.dispose()

    def test_a_database_of_a_newer_version_is_refused(self, database: str) -> None:
        engine = open_database(database)
        with engine.begin() as connection:
            connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        engine.dispose()
        with pytest.raises(GipfelError, match="9999"):
            open_database(database)

    @pytest.mark.parametrize(
        "url",
        [
            "nonsense",
            "mysql+nothing://x",
            "sqlite:////proc/x.sqlite",
            "postgresql+psycopg://u:hush@127.0.0.1:1/x",
        ],
    )
    def test_one_that_cannot_be_opened_is_one_line_without_the_password(self, url: str) -> None:
        with pytest.raises(GipfelError, match="can't be opened") as error:
            open_database(url)
        assert "hush" not in str(error.value)

    def test_a_file_is_readable_by_its_owner_alone(self, tmp_path: Path) -> None:
        open_database(f"sqlite:///{tmp_path}/made/registry.sqlite").dispose()
        modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "made").iterdir()}
        assert modes == {0o600}


def test_from_two_users_words_to_a_drained_node_and_back(run_site: Any) -> None:
    async def story(site: Site) -> None:
        assert await site.send("ada", "n001")
        assert await site.waiting() == []
        await site.send("bob", "n001", "n002")
        (drain,) = await site.waiting()
        assert (drain.action, drain.node, drain.rule, site.nodes.ran) == ("drain", "n001", "gpu-lost", [])
        await site.registry.recovery.decide(drain.id, "approve", "olga")
        reason = f"gipfel gpu-lost {drain.key}"
        assert site.nodes.reasons == {"n001": reason}
        with pytest.raises(GipfelError, match="decided already"):
            await site.registry.recovery.decide(drain.id, "approve", "olga")
        for action in ("reboot", "recheck"):
            (step,) = await site.waiting()
            assert step.action == action
            await site.registry.recovery.decide(step.id, "approve", "olga")
        # What users say of it does not bring it back; the operators' own run does.
        await site.send("cleo", "n001", verdict="pass", codes=[])
        assert await site.waiting() == []
        await site.send("service:ops", "n001", verdict="pass", codes=[], vouched=True)
        (resume,) = await site.waiting()
        site.nodes.reasons["n001"] = "fan broken"
        with pytest.raises(GipfelError, match="somebody else: fan broken"):
            await site.registry.recovery.decide(resume.id, "approve", "olga")
        site.nodes.reasons["n001"] = reason
        await site.registry.recovery.decide(resume.id, "approve", "olga")
        assert site.nodes.reasons == {}
        assert await site.waiting() == []
        events = [(actor, event) for actor, event, _ in await site.audit()]
        assert events.count(("olga", "drain")) == events.count(("olga", "resume")) == 1
        assert events[-1] == ("registry", "close")
        assert (await site.audit())[0][2].startswith("A GPU has fallen off the bus")

    run_site(story, drain=DRAIN)


def test_a_dry_run_says_what_it_would_do(run_site: Any) -> None:
    async def story(site: Site) -> None:
        await site.send("service:ops", "n001", vouched=True)
        (drain,) = await site.waiting()
        done = await site.registry.recovery.decide(drain.id, "approve", "olga")
        assert done.state == "dry_run"
        assert done.outcome.startswith(
            "would run: scontrol update NodeName=n001 State=DRAIN 'Reason=gipfel gpu-lost "
        )
        assert site.nodes.ran == []

    run_site(story, drain=DRAIN | {"dry_run": True})


def test_without_a_configured_cluster_nothing_can_be_drained(run_site: Any) -> None:
    async def story(site: Site) -> None:
        await site.send("service:ops", "n001", vouched=True)
        (drain,) = await site.waiting()
        with pytest.raises(GipfelError, match="settings name none"):
            await site.registry.recovery.decide(drain.id, "approve", "olga")
        assert [each.id for each in await site.waiting()] == [drain.id]
        who, what, words = (await site.audit())[-1]
        assert (who, what) == ("olga", "refuse")
        assert words.startswith("drain refused: ")
        await site.registry.recovery.decide(drain.id, "dismiss", "olga")
        assert await site.waiting() == []
        # What was said before it was dismissed opens no case again.
        await site.send("service:ops", "n002", vouched=True)
        assert [each.node for each in await site.waiting()] == ["n002"]

    run_site(story)


def test_a_bad_rule_cannot_empty_the_cluster(run_site: Any) -> None:
    async def story(site: Site) -> None:
        every = [f"n{number:03}" for number in range(9)]
        await site.send("service:ops", *every, vouched=True)
        assert len(site.nodes.reasons) == 2
        refused = [each for each in await site.waiting() if each.action == "drain"]
        assert len(refused) == 7
        assert all("2 nodes were drained within an hour" in each.outcome for each in refused)
        # Hour after hour, an operator who approves everything stops at the share.
        refusals: list[str] = []
        for _ in range(3):
            site.now += 2 * HOUR
            for step in refused:
                if step.node not in site.nodes.reasons:
                    refusals += await site.try_to_approve(step)
        assert len(site.nodes.reasons) == 5
        assert {words.partition(" of ")[2] for words in refusals if "100" in words} == {
            "100 nodes of normal would be out of service, and 5% are allowed."
        }

    run_site(story, drain=DRAIN | {"automatic": True})


def test_one_user_alone_gets_nowhere(run_site: Any) -> None:
    async def story(site: Site) -> None:
        for job in range(5):
            await site.send("eve", "n001", job=str(job))
        # Not even when all that others say is that it is fine.
        await site.send("ada", "n001", verdict="pass", codes=[])
        assert await site.waiting() == []
        assert site.nodes.ran == []
        report = site.report("n001")
        assert await site.registry.receive(report, Sender(name="eve"))
        assert not await site.registry.receive(report, Sender(name="eve"))
        with pytest.raises(Refused, match="More than 6 reports") as refused:
            await site.send("eve", "n001")
        assert refused.value.status == 429
        await site.send("bob", "n003")
        site.now += HOUR
        assert await site.send("eve", "n001", job="9")

    run_site(story, reports_per_hour=6, drain=DRAIN | {"automatic": True})


def test_what_cannot_be_true_is_refused(run_site: Any) -> None:
    async def story(site: Site) -> None:
        old = 8 * 24 * HOUR
        base = site.report("n001").model_dump()
        for change, status in (
            ({"cluster": "elsewhere"}, 403),
            ({"job": ""}, 400),
            ({"entries": ()}, 400),
            ({"started_ns": site.now - old, "ended_ns": site.now - old}, 400),
            ({"ended_ns": site.now + 2 * HOUR}, 400),
            ({"started_ns": site.now, "ended_ns": site.now - 1}, 400),
            ({"entries": base["record"]["entries"] * 50_001}, 413),
        ):
            report = SharedReport.model_validate(base | {"record": base["record"] | change})
            with pytest.raises(Refused) as refused:
                await site.registry.receive(report, Sender(name="eve"))
            assert refused.value.status == status, change

    run_site(story, clusters=["alps"])


def test_the_scheduler_is_asked_whose_job_it_was(run_site: Any) -> None:
    async def story(site: Site) -> None:
        site.nodes.jobs = {"1": ("ada", frozenset({"n001"})), "2": ("bob", frozenset({"n001", "n002"}))}
        with pytest.raises(Refused, match="Job 2 is not yours"):
            await site.send("eve", "n001", job="2")
        with pytest.raises(Refused, match="does not have these nodes"):
            await site.send("ada", "n001", "n050", job="1")
        # Jobs that the scheduler has forgotten are kept, and no rule goes by them.
        await site.send("eve", "n001", job="77")
        await site.send("mallory", "n001", job="78")
        assert await site.waiting() == []
        await site.send("ada", "n001", job="1")
        await site.send("bob", "n001", job="2")
        assert [each.node for each in await site.waiting()] == ["n001"]
        told = await site.registry.ask(lambda session: queries.node_history(session, "alps", "n001"))
        assert [(each.reporter, each.confirmed) for each in told] == [
            ("bob", True), ("ada", True), ("mallory", False), ("eve", False),
        ]  # fmt: skip

    run_site(story, confirm_jobs=True, drain=DRAIN)


def test_questions(run_site: Any) -> None:
    async def story(site: Site) -> None:
        figure = {"check": "matmul", "type": "matmul", "verdict": "pass", "codes": [], "unit": "TFLOP/s"}
        for number in range(40):
            await site.send("eve", "n001", job=str(number), figure=1.0, **figure)
        since = site.now - HOUR

        def baselines() -> Any:
            return site.registry.ask(lambda s: queries.baselines(s, "alps", "GH200", since_ns=since))

        assert await baselines() == ()
        for user, node, value in (("ada", "n002", 800.0), ("bob", "n003", 810.0), ("ada", "n004", 790.0)):
            await site.send(user, node, figure=value, **figure)
        (found,) = await baselines()
        # One node with forty figures is still one node.
        assert (found.median, found.nodes) == (795.0, 4)
        for user in ("ada", "bob"):
            await site.send(user, "n009", check="nvlink", type="nvlink", reason=f"by {user}")
        await site.send("ada", "n008", verdict="degraded")
        worst = await site.registry.ask(lambda s: queries.worst_nodes(s, "alps", since_ns=since))
        assert [(each.node, each.bad, each.users) for each in worst] == [("n009", 2, 2), ("n008", 1, 1)]
        table = await site.registry.ask(lambda s: grid(s, "alps", since_ns=since))
        assert table.checks == ("nvlink", "xid")
        cell = table.cells["n009"]["nvlink"]
        assert (cell.verdict, cell.bad, cell.of, cell.reason) == (Verdict.FAIL, 2, 2, "by bob")
        other = await site.registry.ask(lambda s: grid(s, "bristen", since_ns=since))
        assert (other.nodes, other.checks) == ((), ())

    run_site(story, reports_per_hour=100)


def test_a_user_takes_back_all_they_sent_and_time_takes_the_rest(run_site: Any) -> None:
    async def story(site: Site) -> None:
        await site.send("ada", "n001")
        await site.send("ada", "n002", job="2")
        await site.send("bob", "n001")
        assert await site.registry.withdraw("ada") == 2
        for node, left in (("n001", 1), ("n002", 0)):
            told = await site.registry.ask(lambda s, n=node: queries.node_history(s, "alps", n))
            assert len(told) == left
        site.now += 11 * 24 * HOUR
        await site.registry.forget()
        assert await site.registry.ask(lambda s: queries.node_history(s, "alps", "n001")) == ()
        assert await site.audit() == []

    run_site(story, keep_days=10)


def test_whoever_takes_back_what_they_sent_cannot_send_without_end(run_site: Any) -> None:
    async def story(site: Site) -> None:
        for turn in range(3):
            for number in range(2):
                await site.send("eve", "n001", job=f"{turn}{number}")
            with pytest.raises(Refused, match="More than 2 reports"):
                await site.send("eve", "n001", job=f"{turn}9")
            assert await site.registry.withdraw("eve") == 2
        with pytest.raises(Refused, match="withdrawals") as refused:
            await site.registry.withdraw("eve")
        assert refused.value.status == 429
        assert await site.registry.withdraw("ada") == 0
        site.now += 2 * HOUR
        assert await site.registry.withdraw("eve") == 0

    run_site(story, reports_per_hour=2)


def test_many_users_at_once_lose_nothing(run_site: Any) -> None:
    async def story(site: Site) -> None:
        senders = [Sender(name=f"user{number}") for number in range(6)]
        reports = [site.report(*(f"n{n:03}" for n in range(4)), job=each.name) for each in senders]
        new = await asyncio.gather(
            *(site.registry.receive(r, s) for r, s in zip(reports, senders, strict=True))
        )
        await site.registry.settled()
        assert all(new)
        worst = await site.registry.ask(lambda s: queries.worst_nodes(s, "alps", since_ns=0))
        assert {(each.bad, each.users) for each in worst} == {(6, 6)}
        # One case for each node, however many reports came at once.
        waiting = await site.waiting()
        assert len(waiting) == len({each.node for each in waiting}) == 4

    run_site(story)


def test_a_notice_reaches_the_sites_command(run_site: Any, tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        await site.send("service:ops", "n001", vouched=True)
        assert '"node": "n001"' in (tmp_path / "notice").read_text()
        assert ("registry", "notify", "sent") in await site.audit()

    run_site(story, notify=["/bin/sh", "-c", 'cat >"$0"', str(tmp_path / "notice")])
