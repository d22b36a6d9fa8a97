"""More time for a job of the local scheduler."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from gipfel_cluster.model import GipfelError
from gipfel_cluster.scheduler.local import LocalScheduler
from gipfel_cluster.scheduler.protocol import JobRequest


def request(folder: Path, script: str, time: str) -> JobRequest:
    return JobRequest(
        name="test",
        script=f"#!/bin/sh\n{script}\n",
        directory=str(folder),
        output=str(folder / "log"),
        time=time,
        environment={"PATH": os.environ["PATH"]},
    )


def test_an_extended_job_outlives_its_first_limit_and_another_does_not(tmp_path: Path) -> None:
    async def run() -> None:
        local = LocalScheduler(tmp_path / "jobs", environment={"PATH": os.environ["PATH"]})
        longer = await local.submit(request(tmp_path, "exec sleep 60", "0:02"))
        other = await local.submit(request(tmp_path, "exec sleep 60", "0:02"))
        await local.extend(longer, 1)
        end = time.monotonic() + 15
        while (await local.query([other]))[other].answer == "running":
            assert time.monotonic() < end
            await asyncio.sleep(0.1)
        assert (await local.query([other]))[other].state == "TIMEOUT"
        await asyncio.sleep(1.5)
        assert (await local.query([longer]))[longer].answer == "running"
        await local.cancel(longer)
        with pytest.raises(GipfelError, match="is not running"):
            await local.extend(longer, 1)

    asyncio.run(run())


def test_a_job_gets_its_end_time(tmp_path: Path) -> None:
    async def run() -> None:
        local = LocalScheduler(tmp_path / "jobs", environment={"PATH": os.environ["PATH"]})
        before = int(time.time())
        await local.submit(request(tmp_path, 'echo "$GIPFEL_JOB_END_TIME"', "1:00:00"))
        end = time.monotonic() + 10
        while not (tmp_path / "log").exists() or not (tmp_path / "log").read_text():
            assert time.monotonic() < end
            await asyncio.sleep(0.05)
        assert 0 <= int((tmp_path / "log").read_text()) - before - 3600 <= 5

    asyncio.run(run())
