"""The registry on SQLite and on a real PostgreSQL: submission and queries of results."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from registry_site import DRAIN, HOUR, Site
from sqlalchemy import text

from gipfel_cluster.model import GipfelError
from gipfel_extension.registry import queries
from gipfel_extension.registry.pages import build_grid
from gipfel_extension.registry.queries import RefusedError, Sender
from gipfel_extension.registry.schema import Base, open_database
from gipfel_extension.vetting.history.site_registry import SharedReport
from gipfel_extension.vetting.model import Verdict


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
            with pytest.raises(RefusedError) as refused:
                await site.registry.receive(report, Sender(name="eve"))
            assert refused.value.status == status, change

    run_site(story, clusters=["alps"])


def test_the_scheduler_is_asked_whose_job_it_was(run_site: Any) -> None:
    async def story(site: Site) -> None:
        site.nodes.jobs = {"1": ("ada", frozenset({"n001"})), "2": ("bob", frozenset({"n001", "n002"}))}
        with pytest.raises(RefusedError, match="Job 2 is not yours"):
            await site.send("eve", "n001", job="2")
        with pytest.raises(RefusedError, match="does not have these nodes"):
            await site.send("ada", "n001", "n050", job="1")
        # Jobs that the scheduler has forgotten are kept, and no rule goes by them.
        await site.send("eve", "n001", job="77")
        await site.send("mallory", "n001", job="78")
        assert await site.waiting() == []
        await site.send("ada", "n001", job="1")
        await site.send("bob", "n001", job="2")
        assert [each.node for each in await site.waiting()] == ["n001"]
        results = await site.registry.query(lambda session: queries.node_history(session, "alps", "n001"))
        assert [(each.reporter, each.confirmed) for each in results] == [
            ("bob", True), ("ada", True), ("mallory", False), ("eve", False),
        ]  # fmt: skip

    run_site(story, confirm_jobs=True, drain=DRAIN)


def test_questions(run_site: Any) -> None:
    async def story(site: Site) -> None:
        fields = {"check": "matmul", "type": "matmul", "verdict": "pass", "codes": [], "unit": "TFLOP/s"}
        for number in range(40):
            await site.send("eve", "n001", job=str(number), measurement=1.0, **fields)
        since = site.now - HOUR

        def baselines() -> Any:
            return site.registry.query(lambda s: queries.baselines(s, "alps", "GH200", since_ns=since))

        assert await baselines() == ()
        for user, node, value in (("ada", "n002", 800.0), ("bob", "n003", 810.0), ("ada", "n004", 790.0)):
            await site.send(user, node, measurement=value, **fields)
        (found,) = await baselines()
        # One node with forty measurements is still one node.
        assert (found.median, found.nodes) == (795.0, 4)
        for user in ("ada", "bob"):
            await site.send(user, "n009", check="nvlink", type="nvlink", reason=f"by {user}")
        await site.send("ada", "n008", verdict="degraded")
        worst = await site.registry.query(lambda s: queries.worst_nodes(s, "alps", since_ns=since))
        assert [(each.node, each.bad, each.users) for each in worst] == [("n009", 2, 2), ("n008", 1, 1)]
        table = await site.registry.query(lambda s: build_grid(s, "alps", since_ns=since))
        assert table.checks == ("nvlink", "xid")
        cell = table.cells["n009"]["nvlink"]
        assert (cell.verdict, cell.bad, cell.total, cell.reason) == (Verdict.FAIL, 2, 2, "by bob")
        other = await site.registry.query(lambda s: build_grid(s, "bristen", since_ns=since))
        assert (other.nodes, other.checks) == ((), ())

    run_site(story, reports_per_hour=100)


def test_a_user_takes_back_all_they_sent_and_time_takes_the_rest(run_site: Any) -> None:
    async def story(site: Site) -> None:
        await site.send("ada", "n001")
        await site.send("ada", "n002", job="2")
        await site.send("bob", "n001")
        assert await site.registry.withdraw("ada") == 2
        for node, left in (("n001", 1), ("n002", 0)):
            results = await site.registry.query(lambda s, n=node: queries.node_history(s, "alps", n))
            assert len(results) == left
        site.now += 11 * 24 * HOUR
        await site.registry.delete_old()
        assert await site.registry.query(lambda s: queries.node_history(s, "alps", "n001")) == ()
        assert await site.audit() == []

    run_site(story, keep_days=10)


def test_whoever_takes_back_what_they_sent_cannot_send_without_end(run_site: Any) -> None:
    async def story(site: Site) -> None:
        for turn in range(3):
            for number in range(2):
                await site.send("eve", "n001", job=f"{turn}{number}")
            with pytest.raises(RefusedError, match="More than 2 reports"):
                await site.send("eve", "n001", job=f"{turn}9")
            assert await site.registry.withdraw("eve") == 2
        with pytest.raises(RefusedError, match="withdrawals") as refused:
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
        await site.registry.wait_until_idle()
        assert all(new)
        worst = await site.registry.query(lambda s: queries.worst_nodes(s, "alps", since_ns=0))
        assert {(each.bad, each.users) for each in worst} == {(6, 6)}
        # One case for each node, however many reports came at once.
        waiting = await site.waiting()
        assert len(waiting) == len({each.node for each in waiting}) == 4

    run_site(story)
