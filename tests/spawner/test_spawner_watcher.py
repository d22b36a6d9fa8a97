import asyncio
import logging
from collections.abc import Callable, Sequence

import pytest

from gipfel_cluster.model import GipfelError
from gipfel_cluster.scheduler.protocol import JobRequest, JobStatus, LostJobError, Partition
from gipfel_spawner.cluster.watcher import JobWatcher

LOG = logging.getLogger("test")
RUNNING = JobStatus(answer="running", state="RUNNING", nodes=("n1",))
ENDED = JobStatus(answer="ended", state="COMPLETED", exit_code=0)
UNKNOWN = JobStatus(answer="unknown")


class FakeScheduler:
    """Answers what it was given, and remembers what it was asked."""

    name = "fake"

    def __init__(self) -> None:
        self.statuses: dict[str, JobStatus] = {}
        self.questions: list[tuple[str, ...]] = []
        self.cancelled: list[str] = []
        self.silent = False
        self.delay = 0.0
        self.marks: dict[str, str] = {}
        self.looked = 0

    async def submit(self, request: JobRequest) -> str:
        raise NotImplementedError

    async def query(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        self.questions.append(tuple(job_ids))
        await asyncio.sleep(self.delay)
        return {each: UNKNOWN if self.silent else self.statuses.get(each, ENDED) for each in job_ids}

    async def cancel(self, job_id: str, *, user: str = "") -> None:
        if self.silent:
            raise GipfelError("Silent.")
        self.cancelled.append(job_id)
        self.statuses[job_id] = ENDED

    async def find(self, mark: str, user: str) -> str | None:
        self.looked += 1
        if self.silent:
            raise GipfelError("Silent.")
        return self.marks.get(mark)

    async def address(self, node: str) -> str:
        return node

    async def partitions(self) -> tuple[Partition, ...]:
        return ()


def watcher(scheduler: FakeScheduler, interval: float = 0.02, calm: float = 0.2) -> JobWatcher:
    return JobWatcher(scheduler, interval=interval, calm_interval=calm, log=LOG)


def test_one_question_for_all_jobs() -> None:
    async def run() -> None:
        fake = FakeScheduler()
        fake.statuses = {str(job): RUNNING for job in range(100)}
        jobs = watcher(fake)
        for job in fake.statuses:
            jobs.watch(job, closely=True)
        await asyncio.sleep(0.1)
        assert all(len(question) == 100 for question in fake.questions)
        assert len(fake.questions) <= 8
        assert jobs.status("7") == RUNNING
        for job in fake.statuses:
            jobs.forget(job)
        asked = len(fake.questions)
        await asyncio.sleep(0.1)
        assert len(fake.questions) <= asked + 1

    asyncio.run(run())


def test_those_who_ask_at_once_share_the_answer() -> None:
    async def run() -> None:
        fake = FakeScheduler()
        fake.delay = 0.05
        fake.statuses = {"1": RUNNING, "2": RUNNING, "3": RUNNING}
        jobs = watcher(fake, calm=60)
        answers = await asyncio.gather(*(jobs.query(each) for each in ("1", "2", "3", "1", "2")))
        assert answers == [RUNNING] * 5
        assert len(fake.questions) <= 2

    asyncio.run(run())


def test_silence_is_unknown_and_is_asked_ever_less_often() -> None:
    async def run() -> None:
        fake = FakeScheduler()
        fake.silent = True
        jobs = watcher(fake)
        jobs.watch("1", closely=True)
        await asyncio.sleep(0.5)
        assert jobs.status("1").answer == "unknown"
        assert len(fake.questions) <= 6
        fake.silent = False
        fake.statuses["1"] = RUNNING
        assert (await jobs.query("1")) == RUNNING
        jobs.forget("1")

    asyncio.run(run())


def test_an_ended_job_is_not_asked_about_again() -> None:
    async def run() -> None:
        fake = FakeScheduler()
        jobs = watcher(fake)
        assert (await jobs.query("1")).answer == "ended"
        assert (await jobs.query("1")).answer == "ended"
        assert len(fake.questions) == 1
        jobs.forget("1")

    asyncio.run(run())


def test_a_job_that_could_not_be_cancelled_is_cancelled_later() -> None:
    async def run() -> None:
        fake = FakeScheduler()
        fake.statuses["1"] = RUNNING
        fake.silent = True
        jobs = watcher(fake)
        jobs.end_later("1", "ada")
        jobs.forget("1")
        await asyncio.sleep(0.1)
        assert not fake.cancelled
        fake.silent = False
        for _ in range(100):
            await asyncio.sleep(0.02)
            if fake.cancelled:
                break
        assert fake.cancelled == ["1"]

    asyncio.run(run())


async def eventually(done: Callable[[], object]) -> None:
    for _ in range(200):
        if done():
            return
        await asyncio.sleep(0.02)
    raise AssertionError


def test_who_watches_a_job_hears_of_its_end_once() -> None:
    async def run() -> None:
        fake = FakeScheduler()
        fake.statuses = {"1": RUNNING, "2": RUNNING}
        jobs = watcher(fake, calm=0.02)
        heard: list[str] = []
        for _ in range(3):
            jobs.watch("1", when_ended=lambda: heard.append("1"))
        jobs.watch("2", when_ended=lambda: heard.append("2"))
        await asyncio.sleep(0.1)
        assert heard == []
        fake.statuses["1"] = ENDED
        await eventually(lambda: heard)
        await asyncio.sleep(0.1)
        assert heard == ["1"]
        fake.silent = True
        await asyncio.sleep(0.1)
        assert heard == ["1"]
        jobs.forget("1")
        jobs.forget("2")

    asyncio.run(run())


def test_a_submission_that_nobody_answered_is_looked_for_and_cancelled() -> None:
    async def run() -> None:
        fake = FakeScheduler()
        fake.silent = True
        jobs = watcher(fake)
        jobs.end_lost(LostJobError("gipfel-1", "ada"))
        jobs.end_lost(LostJobError("gipfel-2", "ada"))
        await asyncio.sleep(0.1)
        assert not fake.cancelled
        fake.marks["gipfel-1"] = "77"
        fake.silent = False
        await eventually(lambda: fake.cancelled)
        # The other one was never taken: it is not looked for without end.
        await asyncio.sleep(0.3)
        looked = fake.looked
        await asyncio.sleep(0.2)
        assert (fake.cancelled, fake.looked) == (["77"], looked)

    asyncio.run(run())


def test_rounds_of_several_hubs_are_spread() -> None:
    pauses = set()
    for draw in (0.0, 0.5, 1.0):
        jobs = JobWatcher(
            FakeScheduler(), interval=2, calm_interval=15, log=LOG, jitter=lambda draw=draw: draw
        )  # type: ignore[misc]
        calm = jobs._pause()
        assert 13.5 <= calm <= 15
        jobs._failures = 1
        assert 2 <= jobs._pause() <= 4
        jobs._failures = 1000
        assert 30 <= jobs._pause() <= 60
        pauses.add(calm)
    assert len(pauses) == 3


def test_a_slow_scheduler_is_waited_for_and_asked_one_question_at_a_time() -> None:
    async def run() -> None:
        fake = FakeScheduler()
        fake.delay = 0.3
        fake.statuses = {"1": RUNNING}
        jobs = watcher(fake)
        jobs.watch("1", closely=True)
        assert (await jobs.query("1")) == RUNNING
        await asyncio.sleep(0.7)
        assert len(fake.questions) <= 4
        jobs.forget("1")

    asyncio.run(run())


@pytest.mark.parametrize("turns", range(6))
def test_a_hub_that_ends_ends_the_rounds_too(turns: int) -> None:
    """A cancellation that comes just when a round begins must not be lost: the hub waits for its tasks."""

    async def run() -> None:
        fake = FakeScheduler()
        fake.statuses = {"1": RUNNING}
        jobs = watcher(fake, interval=30, calm=30)
        jobs.watch("1")
        while not fake.questions:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)
        jobs.poll_soon()
        for _ in range(turns):
            await asyncio.sleep(0)
        task = jobs._task
        assert task
        task.cancel()
        await asyncio.wait({task}, timeout=1)
        assert task.cancelled()

    asyncio.run(run())
