"""The scheduler behind the broker: real jobs of the local scheduler, through typed requests."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_jobs import running_broker, until, write_edf

from gipfel_cluster.broker.client import BrokerScheduler, send_request_sync
from gipfel_cluster.broker.context import JobContext
from gipfel_cluster.broker.messages import (
    Answer,
    EdfAnswer,
    EdfRequest,
    FactsAnswer,
    FactsRequest,
    LintRequest,
    LocateRequest,
    PathRef,
    broker_socket,
)
from gipfel_cluster.edf import Diagnostic
from gipfel_cluster.model import GipfelError
from gipfel_cluster.scheduler import JobRequest, Scheduler


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[JobContext]:
    with running_broker(tmp_path) as context:
        yield context


@pytest.fixture
def scheduler(broker: JobContext) -> Scheduler:
    return BrokerScheduler(broker.socket)


def _lint(broker: JobContext, edf: str) -> tuple[Diagnostic, ...]:
    return send_request_sync(broker.socket, LintRequest(edf=edf), Answer[tuple[Diagnostic, ...]]).value


def _request(folder: Path, text: str, **more: object) -> JobRequest:
    return JobRequest.model_validate(
        {"name": "a", "script": f"#!/bin/sh\n{text}\n", "directory": str(folder),
         "output": f"{folder}/%j.log",
         "environment": {"PATH": "/usr/bin:/bin", "GREETING": "grüezi; $(id)"}, **more}
    )  # fmt: skip


def test_a_job_is_submitted_followed_and_ended(scheduler: Scheduler, tmp_path: Path) -> None:
    job_id = asyncio.run(scheduler.submit(_request(tmp_path, 'echo "$GREETING"; exit 3')))

    def ended() -> bool:
        return asyncio.run(scheduler.query([job_id]))[job_id].answer == "ended"

    until(ended)
    status = asyncio.run(scheduler.query([job_id, "1-abcdef"]))
    assert status[job_id].exit_code == 3
    assert status["1-abcdef"].answer == "ended"
    assert (tmp_path / f"{job_id}.log").read_text() == "grüezi; $(id)\n"
    assert (tmp_path / ".gipfel" / "jobs" / job_id).is_dir()


def test_a_job_is_cancelled(scheduler: Scheduler, tmp_path: Path) -> None:
    job_id = asyncio.run(scheduler.submit(_request(tmp_path, "exec sleep 60")))
    assert asyncio.run(scheduler.query([job_id]))[job_id].state == "RUNNING"
    asyncio.run(scheduler.cancel(job_id))
    until(lambda: asyncio.run(scheduler.query([job_id]))[job_id].state == "CANCELLED")


def test_partitions_and_addresses_through_the_broker(scheduler: Scheduler) -> None:
    (partition,) = asyncio.run(scheduler.partitions())
    assert partition.name == "local"
    assert asyncio.run(scheduler.address("node01")) == "127.0.0.1"


def test_a_job_of_another_user_is_refused(scheduler: Scheduler, tmp_path: Path) -> None:
    with pytest.raises(GipfelError, match="own user only"):
        asyncio.run(scheduler.submit(_request(tmp_path, "id", user="nobody")))


def test_a_job_that_is_too_long_is_refused_before_it_is_sent(scheduler: Scheduler, tmp_path: Path) -> None:
    with pytest.raises(GipfelError, match="longer than 512 KiB"):
        asyncio.run(scheduler.submit(_request(tmp_path, "x" * 600_000)))


def test_without_a_broker_jobs_are_unknown(tmp_path: Path) -> None:
    scheduler = BrokerScheduler(tmp_path / "nothing")
    status = asyncio.run(scheduler.query(["7"]))["7"]
    assert (status.answer, "does not answer" in status.reason) == ("unknown", True)
    assert asyncio.run(scheduler.query(["--all"]))["--all"].answer == "unknown"
    with pytest.raises(GipfelError, match="does not answer"):
        asyncio.run(scheduler.submit(_request(tmp_path, "id")))


def test_the_broker_returns_facts_for_new_jobs(broker: JobContext, tmp_path: Path) -> None:
    facts = send_request_sync(broker.socket, FactsRequest(), FactsAnswer)
    assert (facts.scheduler, facts.cluster, facts.engine) == ("local", "here", "bubblewrap")
    assert facts.environment["HOME"] == str(tmp_path)
    assert "GIPFEL_SOCKETS" not in facts.environment
    assert Path(facts.python).exists()


def test_edfs_are_looked_up_on_the_host(broker: JobContext, tmp_path: Path) -> None:
    write_edf(tmp_path, "mine")
    found = send_request_sync(broker.socket, EdfRequest(edf="mine"), EdfAnswer)
    assert (found.name, found.file, found.image) == ("mine", f"{tmp_path}/.edf/mine.toml", "")
    with pytest.raises(GipfelError, match="no EDF of this name"):
        send_request_sync(broker.socket, EdfRequest(edf="nowhere"), EdfAnswer)
    with pytest.raises(GipfelError, match="no engine 'warp'"):
        send_request_sync(broker.socket, EdfRequest(edf="mine", engine="warp"), EdfAnswer)


def test_edfs_are_linted_on_the_host_within_one_message(broker: JobContext, tmp_path: Path) -> None:
    write_edf(tmp_path, "mine")
    found = _lint(broker, "mine")
    assert [each.code for each in found] == ["no-image"]
    file = tmp_path / ".edf" / "odd.toml"
    file.write_text(
        'imagee = "x"\n' + "".join(f"unknown_{n} = '{'x' * 300}'\n" for n in range(500)) + "workdir = 7\n"
    )
    found = _lint(broker, str(file))
    assert 0 < len(found) <= 64
    assert (found[0].severity, found[0].file, found[0].key) == ("error", str(file), "workdir")
    assert any(each.key == "imagee" and "image" in each.fix for each in found)
    file.write_text("image = \n")
    (broken,) = _lint(broker, "odd")
    assert (broken.severity, broken.line) == ("error", 1)
    (missing,) = _lint(broker, "nowhere")
    assert "no EDF of this name" in missing.message


def test_paths_are_located_on_the_host(broker: JobContext, tmp_path: Path) -> None:
    there = send_request_sync(broker.socket, LocateRequest(ref=PathRef.of(tmp_path)), Answer[str | None])
    assert there.value == str(tmp_path)
    wrong = PathRef.of(tmp_path).model_copy(update={"device": 1})
    assert send_request_sync(broker.socket, LocateRequest(ref=wrong), Answer[str | None]).value is None


def test_outside_of_jobs_there_is_no_socket(broker: JobContext, tmp_path: Path) -> None:
    assert broker_socket({}) is None
    assert broker_socket({"GIPFEL_SOCKETS": str(tmp_path)}) is None
    assert broker_socket({"GIPFEL_SOCKETS": "s"}) is None
    assert broker_socket({"GIPFEL_SOCKETS": broker.sockets}) == broker.socket
