"""The registry on SQLite and on a real PostgreSQL: proposed steps, and their effect on nodes."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from registry_site import DRAIN, HOUR, Site

from gipfel_cluster.model import GipfelError
from gipfel_extension.registry.cases import open_cases, steps, waiting_steps
from gipfel_extension.registry.queries import RefusedError, Sender
from gipfel_extension.registry.recovery import Backlog


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
        with pytest.raises(GipfelError, match="already approved or dismissed"):
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
        with pytest.raises(GipfelError, match="for another reason: fan broken"):
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
        with pytest.raises(GipfelError, match=r"drain\.cluster in its settings is empty"):
            await site.registry.recovery.decide(drain.id, "approve", "olga")
        assert [each.id for each in await site.waiting()] == [drain.id]
        requester, what, words = (await site.audit())[-1]
        assert (requester, what) == ("olga", "refuse")
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
        # Hour after hour, an operator requester approves everything stops at the share.
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
        with pytest.raises(RefusedError, match="More than 6 reports") as refused:
            await site.send("eve", "n001")
        assert refused.value.status == 429
        await site.send("bob", "n003")
        site.now += HOUR
        assert await site.send("eve", "n001", job="9")

    run_site(story, reports_per_hour=6, drain=DRAIN | {"automatic": True})


def test_a_notice_reaches_the_sites_command(run_site: Any, tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        await site.send("service:ops", "n001", vouched=True)
        assert '"node": "n001"' in (tmp_path / "notice").read_text()
        assert ("registry", "notify", "sent") in await site.audit()

    run_site(story, notify=["/bin/sh", "-c", 'cat >"$0"', str(tmp_path / "notice")])


def test_two_users_who_invent_nodes_stop_no_operator(run_site: Any) -> None:
    async def story(site: Site) -> None:
        ask = site.registry.query
        await site.send("service:ops", "n001", vouched=True)
        (drain,) = await site.waiting()
        for user in ("ada", "bob"):
            report = site.report(*(f"x{number}" for number in range(2000)), job=user)
            assert await site.registry.receive(report, Sender(name=user))
        wait_until_idle = asyncio.create_task(site.registry.wait_until_idle())
        await site.registry.recovery.decide(drain.id, "dismiss", "olga")
        assert not wait_until_idle.done(), "the decision waited for the whole list"
        await wait_until_idle
        assert await ask(open_cases) == 6
        assert (await site.audit())[-1] == (
            "registry", "limit", "7 cases were opened within an hour, and 7 are allowed.",
        )  # fmt: skip
        opened = [words for _, event, words in await site.audit() if event == "open"]
        assert opened[-1].endswith(", reported by ada, bob")
        # What is vouched for is observations all the same, and no step is out of reach.
        await site.send("service:ops", "n002", vouched=True)
        assert await ask(open_cases) == await ask(waiting_steps) == 7
        newest = await ask(lambda session: steps(session, waiting=True, limit=4))
        older = await ask(lambda session: steps(session, waiting=True, before=newest[-1].id))
        assert newest[0].node == "n002"
        assert len({each.id for each in (*newest, *older)}) == 7

    run_site(story, cases_per_hour=7)


def test_nodes_that_the_scheduler_does_not_have_open_no_case(run_site: Any) -> None:
    async def story(site: Site) -> None:
        for user in ("ada", "bob"):
            await site.send(user, "n007", "invented")
        assert [each.node for each in await site.waiting()] == ["n007"]

    run_site(story, drain=DRAIN)


def test_the_end_of_the_service_waits_for_no_long_list() -> None:
    async def run() -> None:
        begun: list[str] = []

        async def apply_rules(_cluster: str, nodes: Sequence[str]) -> None:
            begun.extend(nodes)
            await asyncio.Event().wait()

        backlog = Backlog(apply_rules)
        backlog.add("alps", [f"x{number}" for number in range(2000)])
        await asyncio.sleep(0)
        await asyncio.wait_for(backlog.close(0.01), 10)
        await asyncio.wait_for(backlog.wait_until_idle(), 10)
        assert 0 < len(begun) < 200

    asyncio.run(run())
