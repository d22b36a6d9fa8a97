"""The texts of a waiting page, and the permissions to read them."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from gipfel_cluster.scheduler.protocol import JobStatus
from gipfel_cluster.scheduler.slurm_output import (
    ALIVE,
    ENDED,
    can_never_start,
    explain_reason,
    parse_jobs,
    parse_queue_positions,
)
from gipfel_spawner.start.progress import Progress, describe_end, describe_running, describe_status

NOW = datetime(2026, 3, 1, 14, 2, tzinfo=UTC).astimezone()


def at(minutes: int) -> str:
    return (NOW + timedelta(minutes=minutes)).isoformat()


def test_a_queue_is_explained_in_one_sentence() -> None:
    # Printed by a real squeue.
    status = parse_jobs("3|PENDING||2026-11-21T18:11:00|0|Priority|normal|2|gres:gpu:4|")["3"]
    status = status.model_copy(update={"queue_position": 3, "expected_start": at(30)})
    percent, words = describe_status("3", status, now=NOW)
    assert percent == 30
    clock = (NOW + timedelta(minutes=30)).strftime("%H:%M %Z")
    assert words == (
        "Job 3 is waiting for 2 nodes with 4 GPUs each on partition normal: other jobs are before it; "
        f"3rd in line; expected start {clock}."
    )


@pytest.mark.parametrize(
    ("fields", "wants"),
    [
        ("normal|1|gres:gpu:4", "4 GPUs"),
        ("normal|1|gres/gpu:gh200:1", "1 GPU"),
        ("normal|3|N/A", "3 nodes"),
        ("normal|1|N/A", "a node"),
        ("normal|2|gres:gpu:a100:2,gres:shard:4", "2 nodes with 2 GPUs each"),
    ],
)
def test_what_a_job_waits_for(fields: str, wants: str) -> None:
    assert parse_jobs(f"3|PENDING||N/A|0|Resources|{fields}|")["3"].requested == wants


def test_a_job_that_will_never_start_says_so() -> None:
    status = parse_jobs("6|PENDING||N/A|0|PartitionTimeLimit|debug|1|N/A|")["6"]
    assert "It cannot start with these options. Cancel it" in describe_status("6", status)[1]
    assert can_never_start("(JobHeldUser)")
    assert not can_never_start("Priority")


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("QOSMaxGRESPerUser", "you have as many GPUs as your QoS allows"),
        ("AssocGrpCpuLimit", "everybody with this account together has as many CPUs as it allows"),
        ("QOSMaxJobsPerUserLimit", "you have as many jobs as your QoS allows"),
        ("ReqNodeNotAvail, UnavailableNodes:nid[001-002]", "its nodes are down, drained or reserved"),
        ("(None)", ""),
        ("SomethingNew", "SomethingNew"),
    ],
)
def test_slurms_reasons_in_words(word: str, words: str) -> None:
    assert explain_reason(word) == words


def test_the_line_leaves_out_who_does_not_wait_for_nodes() -> None:
    # Printed by a real squeue, sorted by priority.
    output = (
        "2|normal|Resources|\n3|normal|Priority|\n6|debug|PartitionTimeLimit|\n7|normal|Priority|\n"
        "8|normal,debug|Priority|\n11|normal|PartitionConfig|\n12|normal|Priority|\n5|normal|JobHeldUser|\n"
    )
    assert parse_queue_positions(output) == {"2": 1, "3": 2, "7": 3, "8": 1, "12": 5}


@pytest.mark.parametrize("state", sorted(ALIVE | ENDED))
def test_every_state_has_an_answer_and_words(state: str) -> None:
    status = parse_jobs(f"1|{state}|n1|N/A|0|None|normal|1|N/A|")["1"]
    assert status.answer == ("ended" if state in ENDED else "running")
    assert describe_status("1", status)[1].endswith(".")
    assert describe_end("1", status, None)


def test_the_log_says_whether_the_container_or_the_server_starts() -> None:
    running = JobStatus(answer="running", state="RUNNING", nodes=("n1", "n2"))
    assert describe_running("1", running, "") == describe_status("1", running)
    percent, words = describe_running("1", running, "pyxis: importing docker image: ubuntu")
    assert (percent, "importing docker image" in words) == (60, True)
    percent, words = describe_running("1", running, "[I 2026-03-01 10:00:00 ServerApp] jupyterlab loaded")
    assert (percent, "the server is starting" in words) == (70, True)
    for percent, words in (
        describe_status("1", running, has_setup=False),
        describe_running("1", running, "", has_setup=False),
        describe_running("1", running, "warming up", has_setup=False),
    ):
        assert (percent, "container" in words, "the server is starting" in words) == (70, False, True)


def test_the_log_of_events_says_when() -> None:
    async def run() -> list[dict[str, object]]:
        times = iter([NOW, NOW + timedelta(seconds=5)])
        progress = Progress(clock=lambda: next(times))
        progress.report(10, "a <b>")
        progress.report(10, "a <b>")
        progress.report(65, "vetting", "<table></table>")
        progress.close()
        return [event async for event in progress.follow()]

    first, second = asyncio.run(run())
    assert first["message"] == "a <b>"
    assert str(first["html_message"]).endswith(f">{NOW:%H:%M:%S %Z}</time>a &lt;b&gt;")
    assert str(second["html_message"]).endswith("</time><table></table>")


def test_a_late_reader_reads_everything_and_an_early_one_nothing_twice() -> None:
    async def run() -> None:
        progress = Progress()
        early: list[str] = []

        async def read(into: list[str]) -> None:
            async for event in progress.follow():
                into.append(event["message"])

        reader = asyncio.create_task(read(early))
        for number in range(5):
            progress.report(10, f"event {number}")
            progress.report(10, f"event {number}")
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        progress.close()
        await reader
        late: list[str] = []
        await read(late)
        assert early == late == [f"event {number}" for number in range(5)]

    asyncio.run(run())


def test_a_queue_of_days_keeps_a_hundred_events() -> None:
    async def run() -> None:
        progress = Progress()
        for number in range(10_000):
            progress.report(30, f"event {number}")
        progress.close()
        events = [event["message"] async for event in progress.follow()]
        assert len(events) == 100
        assert events[:2] == ["event 0", "event 1"]
        assert events[-1] == "event 9999"

    asyncio.run(run())
