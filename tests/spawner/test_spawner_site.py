"""The hub's cached view of its cluster: Slurm's output parsed, kept for a time, requested for all users."""

import asyncio
import threading
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from gipfel_cluster.model import GipfelError
from gipfel_cluster.scheduler.machine import CommandResult, short_gpu_name
from gipfel_cluster.scheduler.notation import GpuCount
from gipfel_cluster.scheduler.protocol import (
    Association,
    Choices,
    JobRequest,
    JobStatus,
    Partition,
    Scheduler,
)
from gipfel_cluster.scheduler.slurm import submit_arguments
from gipfel_cluster.scheduler.slurm_site import (
    SlurmSite,
    may_use,
    parse_associations,
    parse_partitions,
    parse_reservations,
)
from gipfel_spawner.cluster.cache import AsyncCache, ClusterCache
from gipfel_spawner.handlers import home
from gipfel_spawner.handlers.form import RateLimiter
from gipfel_spawner.handlers.home import ClusterState
from gipfel_spawner.spawner import EDFSpawner

# Printed by sinfo 22.05 of a cluster where one job holds three GPUs; the last lines by hand after the manual.
SINFO = (
    "normal|normal*|up|1-00:00:00|1|mixed|gpu:gh200:4|gpu:gh200:3(IDX:0-2)|1:00:00|16|65536|\n"
    "normal|normal*|up|1-00:00:00|1|idle|gpu:gh200:4|gpu:gh200:0(IDX:N/A)|1:00:00|16|65536|\n"
    "normal|normal*|up|1-00:00:00|3|drained|gpu:gh200:4|gpu:gh200:0(IDX:N/A)|1:00:00|16|65536|\n"
    "normal|normal*|up|1-00:00:00|2|idle*|gpu:gh200:4|gpu:gh200:0|1:00:00|16|65536|\n"
    "normal|normal*|up|1-00:00:00|1|idle~|gpu:a100:8(S:0,1)|gpu:a100:0|1:00:00|128|500000|\n"
    "untyped|untyped|up|infinite|2|mixed|gpu:4|gpu:1(IDX:0)|n/a|16|65536|\n"
    "reserved|reserved|up|infinite|2|reserved|gpu:4|gpu:(null):0|n/a|16|65536|\n"
    "off|off|down|infinite|2|idle|gpu:4|gpu:0|n/a|16|65536|\n"
)
RESERVATION = (
    "ReservationName=course StartTime=2026-11-21T16:11:36 EndTime=2026-11-21T17:11:36 Duration=01:00:00 "
    "Nodes=node02 NodeCnt=1 CoreCnt=16 Features=(null) PartitionName=(null) Flags=SPEC_NODES TRES=cpu=16 "
    "Users=root,nobody Groups=(null) Accounts=(null) Licenses=(null) State=ACTIVE BurstBuffer=(null) "
    "Watts=n/a MaxStartDelay=(null)\n"
)


def test_idle_gpus_are_those_that_a_job_could_get() -> None:
    normal, untyped, reserved = parse_partitions(SINFO)
    assert normal.total_gpus == (GpuCount(type="gh200", count=28), GpuCount(type="a100", count=8))
    assert normal.idle_gpus == (GpuCount(type="gh200", count=5), GpuCount(type="a100", count=8))
    assert normal.gpus == (GpuCount(type="gh200", count=4), GpuCount(type="a100", count=8))
    assert (normal.nodes, normal.idle_nodes, normal.cpus, normal.memory) == (8, 2, 128, 500000)
    assert (normal.time_limit_s, normal.default_time_limit_s) == (86400, 3600)
    assert (untyped.idle_gpus, untyped.default_time_limit_s) == ((GpuCount(count=6),), None)
    assert reserved.idle_gpus == ()


def test_associations_of_sacctmgr() -> None:
    output = "physics|physics||normal,long|normal\ncourse|physics|debug|short|\n|physics|||\nnoise\n"
    associations, default = parse_associations(output)
    assert associations == (
        Association(account="physics", qos=("normal", "long"), default_qos="normal"),
        Association(account="course", partition="debug", qos=("short",)),
    )
    assert default == "physics"
    choices = Choices(associations=associations, default_account=default)
    assert choices.accounts == ("physics", "course")
    assert choices.qos() == ("long", "normal", "short")
    assert choices.qos("course", "normal") == ()


@pytest.mark.parametrize(
    ("changes", "user", "may"),
    [
        ({}, "root", True),
        ({}, "ada", False),
        ({"Users=root,nobody": "Users=-ada"}, "ada", False),
        ({"Users=root,nobody": "Users=-ada"}, "bea", True),
        ({"Users=root,nobody": "Users=(null)", "Accounts=(null)": "Accounts=physics"}, "ada", True),
        ({"Users=root,nobody": "Users=(null)", "Accounts=(null)": "Accounts=other"}, "ada", False),
        ({"Users=root,nobody": "Users=(null)", "Groups=(null)": "Groups=staff"}, "ada", True),
        ({"Users=root,nobody": "Users=(null)"}, "ada", False),
    ],
)
def test_a_reservation_is_offered_to_those_it_lets_in(changes: dict[str, str], user: str, may: bool) -> None:
    text = RESERVATION
    for old, new in changes.items():
        text = text.replace(old, new)
    (reservation,) = parse_reservations(text + "No reservations in the system\n")
    assert (reservation.name, reservation.active, reservation.partition) == ("course", True, "")
    assert may_use(reservation, user, {"physics"}, {"staff"}) is may


class Answers:
    """Stands where Slurm's commands are run; keeps what was asked."""

    def __init__(self, **answers: str | GipfelError) -> None:
        self.answers = answers
        self.asked: list[tuple[str, ...]] = []

    async def __call__(
        self,
        argv: Sequence[str],
        *,
        user: str = "",
        environment: Mapping[str, str] | None = None,
        stdin: str = "",
    ) -> CommandResult:
        self.asked.append(tuple(argv))
        answer = self.answers.get(argv[0], "")
        if isinstance(answer, GipfelError):
            raise answer
        return CommandResult(code=0, output=answer, errors=answer)


REQUEST = JobRequest(name="x", script="#!/bin/sh\n", directory="/", partition="normal", gpus_per_node=2)


def test_an_expected_start_makes_no_job() -> None:
    run = Answers(
        sbatch="sbatch: Job 2 to start at 2099-11-21T17:11:33 using 2 processors on nodes node[01-02]"
    )
    start = asyncio.run(SlurmSite(run).expected_start(REQUEST, submit_arguments(REQUEST)))
    assert start.startswith("2099-11-21T17:11:33")
    assert run.asked[0][:2] == ("sbatch", "--test-only")
    run = Answers(sbatch="sbatch: Job 2 to start at 2001-11-21T17:11:33 using 2 processors on nodes node01")
    assert asyncio.run(SlurmSite(run).expected_start(REQUEST, submit_arguments(REQUEST))) == ""
    with pytest.raises(GipfelError, match="no expected start"):
        asyncio.run(SlurmSite(Answers()).expected_start(REQUEST, submit_arguments(REQUEST)))


def test_a_cluster_without_accounting_leaves_no_choice_and_a_silent_one_is_an_error() -> None:
    none = GipfelError("Slurm refused (sacctmgr): Only 'accounting_storage/slurmdbd' is supported.")
    assert asyncio.run(SlurmSite(Answers(sacctmgr=none)).choices("ada")) == Choices(reservations=())
    with pytest.raises(GipfelError, match="did not answer"):
        asyncio.run(SlurmSite(Answers(sacctmgr=GipfelError("Slurm did not answer."))).choices("ada"))


_RESERVATION = "ReservationName=course State=ACTIVE Users=(null) Groups={groups} Accounts=(null)\n"


def test_a_slow_directory_service_blocks_neither_the_event_loop_nor_users_of_other_reservations() -> None:
    answer = threading.Event()

    def groups(user: str) -> tuple[str, ...]:
        assert answer.wait(60)
        return ("students",)

    async def look(text: str, limit_s: float) -> Choices:
        # Only a running event loop sets the event.
        asyncio.get_running_loop().call_later(0.2, answer.set)
        return await SlurmSite(Answers(scontrol=text), groups, limit_s).choices("ada")

    found = asyncio.run(look(_RESERVATION.format(groups="students"), 60))
    assert [each.name for each in found.reservations] == ["course"]
    answer.clear()
    with pytest.raises(GipfelError, match=r"groups of ada could not be read within 0\.01 s"):
        asyncio.run(look(_RESERVATION.format(groups="students"), 0.01))
    answer.set()

    def never(user: str) -> tuple[str, ...]:
        raise AssertionError(user)

    site = SlurmSite(Answers(scontrol=_RESERVATION.format(groups="(null)")), never)
    assert asyncio.run(site.choices("ada")).reservations == ()


@pytest.mark.parametrize("name", ["ada,root", "-x", "a b", "", "ada\n", "name=x"])
def test_a_name_that_is_none_never_reaches_a_command(name: str) -> None:
    run = Answers()
    with pytest.raises(GipfelError, match="is not a valid Unix user name"):
        asyncio.run(SlurmSite(run).choices(name))
    assert not run.asked


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Question:
    """A question that is counted, and fails or hangs when told to."""

    def __init__(self) -> None:
        self.count = 0
        self.problem = ""
        self.gate: asyncio.Event | None = None

    async def __call__(self) -> int:
        self.count += 1
        if self.gate:
            await self.gate.wait()
        await asyncio.sleep(0)
        if self.problem:
            raise GipfelError(self.problem)
        return self.count


def test_one_question_serves_a_hundred_pages_and_its_answer_ages() -> None:
    async def run() -> None:
        clock, question = Clock(), Question()
        kept = AsyncCache(question, ttl=30, clock=clock)
        seen = await asyncio.gather(*(kept.cached() for _ in range(100)))
        assert question.count == 1
        assert {each.value for each in seen} == {1}
        clock.now += 29
        assert (await kept.cached()).age == 29
        assert question.count == 1
        clock.now += 1
        assert (await kept.cached()).value == 2

    asyncio.run(run())


def test_old_news_are_kept_with_their_age_while_nobody_answers() -> None:
    async def run() -> None:
        clock, question = Clock(), Question()
        kept = AsyncCache(question, ttl=30, clock=clock)
        await kept.cached()
        question.problem = "Slurm did not answer."
        clock.now += 100
        for _ in range(50):
            seen = await kept.cached()
        assert (seen.value, seen.age, seen.problem) == (1, 100, "Slurm did not answer.")
        # A failure, too, is an answer for everybody.
        assert question.count == 2
        with pytest.raises(GipfelError, match="did not answer"):
            await kept.get()
        question.problem = ""
        clock.now += 30
        seen = await kept.cached()
        assert (seen.value, seen.age, seen.problem) == (4, 0, "")
        assert await kept.get() == 4

    asyncio.run(run())


def test_a_page_may_limit_its_wait_for_the_first_answer() -> None:
    async def run() -> None:
        question = Question()
        question.gate = asyncio.Event()
        kept = AsyncCache(question, clock=Clock())
        seen = await asyncio.wait_for(kept.cached(limit=0.05), 5)
        assert (seen.value, seen.problem) == (None, "")
        question.gate.set()
        # The query went on, and its answer is for the next page.
        assert (await kept.cached()).value == 1
        assert question.count == 1

    asyncio.run(run())


def test_the_home_page_does_not_wait_for_a_scheduler_without_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Silent:
        async def partitions(self) -> tuple[Partition, ...]:
            await asyncio.sleep(60)
            return ()

    async def run() -> tuple[ClusterState, ...]:
        cluster = SimpleNamespace(cache=ClusterCache(cast("Scheduler", Silent())))
        settings = {"alps": SimpleNamespace(name="alps")}
        placement = SimpleNamespace(settings_by_name=settings, shared=lambda _settings: cluster)
        page = home._clusters(cast("EDFSpawner", SimpleNamespace(placement=placement)))
        return await asyncio.wait_for(page, 30)

    monkeypatch.setattr(home, "_PATIENCE_S", 0.05)
    (shown,) = asyncio.run(run())
    assert (shown.partitions, shown.problem) == ((), "No answer from the scheduler yet.")


def test_a_page_waits_for_a_slow_answer_only_where_it_has_none() -> None:
    async def run() -> None:
        clock, question = Clock(), Question()
        kept = AsyncCache(question, ttl=30, patience=0.05, clock=clock)
        await kept.cached()
        question.gate = asyncio.Event()
        clock.now += 31
        seen = await asyncio.wait_for(kept.cached(), 5)
        assert (seen.value, seen.age) == (1, 31)
        question.gate.set()
        await asyncio.sleep(0.05)
        assert (await kept.cached()).value == 2

    asyncio.run(run())


class PlainScheduler:
    """One that knows partitions only."""

    name = "plain"

    async def submit(self, request: JobRequest) -> str:
        raise NotImplementedError

    async def query(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        return {}

    async def cancel(self, job_id: str, *, user: str = "") -> None:
        raise NotImplementedError

    async def address(self, node: str) -> str:
        raise NotImplementedError

    async def partitions(self) -> tuple[Partition, ...]:
        return (Partition(name="p"),)


def test_a_scheduler_without_more_to_say_offers_no_choices() -> None:
    async def run() -> None:
        board = ClusterCache(PlainScheduler())
        assert (await board.choices("ada")).value == Choices()
        assert await board.expected_start(REQUEST) == ""
        assert (await board.partitions()).value == await board.current_partitions()

    asyncio.run(run())


class CountingScheduler(PlainScheduler):
    """Counts expected starts, and how many are requested at once."""

    def __init__(self) -> None:
        self.asked = self.now = self.most = 0

    async def choices(self, user: str) -> Choices:
        return Choices(default_account=user)

    async def expected_start(self, request: JobRequest) -> str:
        self.asked += 1
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.01)
        self.now -= 1
        return ""


def test_equal_questions_share_an_answer_and_few_run_at_once() -> None:
    async def run() -> None:
        scheduler = CountingScheduler()
        board = ClusterCache(scheduler)
        requests = [REQUEST.model_copy(update={"nodes": nodes}) for nodes in range(1, 21)]
        await asyncio.gather(*(board.expected_start(each) for each in requests * 10))
        assert scheduler.asked == 20
        assert scheduler.most <= 4
        # Another user's question is another one: it may be answered otherwise.
        await board.expected_start(REQUEST.model_copy(update={"user": "bea"}))
        assert scheduler.asked == 21
        assert (await board.choices("bea")).value == Choices(default_account="bea")

    asyncio.run(run())


def test_who_asks_too_often_waits_and_others_do_not() -> None:
    clock = Clock()
    rate = RateLimiter(3, 60, clock=clock)
    assert [rate.acquire("ada") for _ in range(3)] == [0, 0, 0]
    clock.now += 20
    assert rate.acquire("ada") == 40
    assert rate.acquire("bea") == 0
    clock.now += 40
    assert rate.acquire("ada") == 0


@pytest.mark.parametrize(
    ("product", "word"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("Tesla V100-SXM2-16GB", "v100-sxm2-16gb"),
        ("NVIDIA GeForce RTX 3090", "rtx"),
        ("", ""),
    ],
)
def test_the_word_for_a_gpu(product: str, word: str) -> None:
    assert short_gpu_name(product) == word
