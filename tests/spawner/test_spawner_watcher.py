import asyncio
import logging
from collections.abc import Sequence

from gipfel_cluster.model import GipfelError
from gipfel_cluster.scheduler.protocol import JobRequest, JobStatus, Partition
from gipfel_spawner.watcher import JobWatcher

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
        answers = await asyncio.gather(*(jobs.ask(each) for each in ("1", "2", "3", "1", "2")))
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
        assert (await jobs.ask("1")) == RUNNING
        jobs.forget("1")

    asyncio.run(run())


def test_an_ended_job_is_not_asked_about_again() -> None:
    async def run() -> None:
        fake = FakeScheduler()
        jobs = watcher(fake)
        assert (await jobs.ask("1")).answer == "ended"
        assert (await jobs.ask("1")).answer == "ended"
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
