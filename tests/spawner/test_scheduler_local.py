import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gipfel_cluster.job import JOB_VARIABLE, JobSpec, batch_script, recording, remote_recorders
from gipfel_cluster.model import GipfelError
from gipfel_cluster.process import supervisor, tree
from gipfel_cluster.process.tree import Process, descendants
from gipfel_cluster.scheduler.local import LocalScheduler
from gipfel_cluster.scheduler.machine import LocalGpu, gpus_are_known
from gipfel_cluster.scheduler.protocol import JobRequest, JobStatus
from gipfel_cluster.scheduler.supervisor import GRACE_SECONDS


def scheduler(folder: Path) -> LocalScheduler:
    return LocalScheduler(folder / "jobs", environment={"PATH": os.environ["PATH"]})


def request(folder: Path, script: str, **more: object) -> JobRequest:
    return JobRequest(
        name="test",
        script=f"#!/bin/sh\n{script}\n",
        directory=str(folder),
        output=str(folder / "log-%j"),
        **more,
    )


async def ended(local: LocalScheduler, job_id: str, limit: float = 20) -> JobStatus:
    end = time.monotonic() + limit
    while (status := (await local.query([job_id]))[job_id]).answer == "running":
        assert time.monotonic() < end, "the job did not end"
        await asyncio.sleep(0.05)
    return status


async def appears_at_all(path: Path, limit: float = 60) -> None:
    end = time.monotonic() + limit
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not appear"
        await asyncio.sleep(0.02)


async def appears(path: Path, limit: float = 10) -> str:
    end = time.monotonic() + limit
    while not path.exists() or not path.read_text():
        assert time.monotonic() < end, f"{path} did not appear"
        await asyncio.sleep(0.02)
    return path.read_text()


def test_a_job_ends_with_its_status_and_log(tmp_path: Path) -> None:
    async def run() -> None:
        local = scheduler(tmp_path)
        job = await local.submit(
            request(
                tmp_path, 'echo "$COLOUR in $PWD, job $GIPFEL_JOB_ID"; exit 7', environment={"COLOUR": "blue"}
            )
        )
        status = await ended(local, job)
        assert (status.answer, status.state, status.exit_code) == ("ended", "FAILED", 7)
        assert (tmp_path / f"log-{job}").read_text() == f"blue in {tmp_path}, job {job}\n"

    asyncio.run(run())


#: A program of its own, since this test's process has other threads; some of its words may be taken over.
_PROGRAM = """
import asyncio, os, sys
from pathlib import Path
from gipfel_cluster.process.fork import allow_forks
from gipfel_cluster.job import JOB_VARIABLE, JobSpec, batch_script
from gipfel_cluster.scheduler.local import LocalScheduler
from gipfel_cluster.scheduler.protocol import JobRequest
allow_forks()
home, code, script = sys.argv[1:]
spec = JobSpec(kind="notebook", command=("sh", "-c", code), directory=home, options={"gpus": 0})
held = open(home + "/held", "w")
print("unwritten", end="")
local = LocalScheduler(Path(home, "jobs"), environment=dict(os.environ))
request = JobRequest(
    name="test", script=script or batch_script(sys.executable), directory=home, output=home + "/log",
    environment={"PATH": os.environ["PATH"], "HOME": home, "COLOUR": "blue"}
    | {JOB_VARIABLE: spec.model_dump_json()},
)
job = asyncio.run(local.submit(request))
print("\\n" + job, next(line.split()[0] for line in open("/proc/self/maps") if "pydantic_core" in line))
"""


@pytest.mark.parametrize("forked", [True, False])
def test_a_gipfel_program_forks_supervisor_and_runner_of_its_job(tmp_path: Path, *, forked: bool) -> None:
    seen = (
        "tr '\\0' '\\n' </proc/$PPID/cmdline >words; cat /proc/$PPID/maps >maps; ls -l /proc/$PPID/fd >files"
    )
    code = f"{seen}; echo $COLOUR ${{SECRET-none}} $GIPFEL_JOB_ID >said; exit 7"
    script = "" if forked else batch_script(sys.executable) + "# another one\n"
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path), code, script],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SECRET": "x", "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, (job, place) = done.stdout.splitlines()[0], done.stdout.splitlines()[1].split()
    local = scheduler(tmp_path)
    status = asyncio.run(ended(local, job, 60))
    assert (first, done.stderr, status.state, status.exit_code) == ("unwritten", "", "FAILED", 7)
    assert (tmp_path / "said").read_text() == f"blue none {job}\n"
    words = (tmp_path / "words").read_text().split("\n")
    assert words[:4] == [sys.executable, "-I", "-m", "gipfel_cluster.job"]
    assert str(tmp_path / "held") not in (tmp_path / "files").read_text()
    assert (place in (tmp_path / "maps").read_text()) is forked
    (log,) = (tmp_path / "log").read_text().splitlines()
    assert "the record of this run" in log


def test_a_job_outlives_the_process_that_started_it(tmp_path: Path) -> None:
    program = f"""
import asyncio, os
from pathlib import Path
from gipfel_cluster.scheduler.local import LocalScheduler
from gipfel_cluster.scheduler.machine import LocalGpu, gpus_are_known
from gipfel_cluster.scheduler.protocol import JobRequest
local = LocalScheduler(Path({str(tmp_path / "jobs")!r}), environment={{"PATH": os.environ["PATH"]}})
request = JobRequest(name="t", script="#!/bin/sh\\nexec sleep 60\\n", directory="/")
print(asyncio.run(local.submit(request)))
"""
    job = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout.strip()

    async def run() -> None:
        local = scheduler(tmp_path)
        assert (await local.query([job]))[job].answer == "running"
        await local.cancel(job)
        status = (await local.query([job]))[job]
        assert (status.answer, status.state, status.exit_code) == ("ended", "CANCELLED", 143)

    asyncio.run(run())


def test_cancel_ends_detached_processes_and_those_that_ignore_sigterm(tmp_path: Path) -> None:
    async def run() -> None:
        local = scheduler(tmp_path)
        script = f"""
setsid sh -c 'sleep 300 & echo $! > {tmp_path}/away; wait' &
setsid sh -c 'trap "" TERM; echo $$ > {tmp_path}/deaf; while :; do sleep 1; done' &
wait
"""
        job = await local.submit(request(tmp_path, script))
        away = Process.of(int(await appears(tmp_path / "away")))
        deaf = Process.of(int(await appears(tmp_path / "deaf")))
        assert away
        assert deaf
        await local.cancel(job)
        assert not away.alive
        assert not deaf.alive
        assert (await local.query([job]))[job].state == "CANCELLED"

    asyncio.run(run())


def test_servers_that_are_stopped_together_end_without_sigkill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIPFEL_RUNS", str(tmp_path / "runs"))
    spec = JobSpec(
        kind="notebook", command=("sh", "-c", "touch $GIPFEL_RUN/up; exec sleep 300"), cluster="here",
        interval=0.1, sources=("host",), options={},
    )  # fmt: skip
    names = ("PATH", "HOME", "USER", "GIPFEL_RUNS")
    environment = {name: os.environ[name] for name in names if name in os.environ}
    environment |= {JOB_VARIABLE: spec.model_dump_json()}

    async def run() -> None:
        local = scheduler(tmp_path)
        asked = request(tmp_path, "", environment=environment).model_copy(
            update={"script": batch_script(sys.executable)}
        )
        jobs = [await local.submit(asked) for _ in range(3)]
        for job in jobs:
            await appears_at_all(tmp_path / f"runs/here-{job}/up")
        await asyncio.gather(*(local.cancel(job) for job in jobs))
        for job, status in (await local.query(jobs)).items():
            assert (status.state, status.exit_code) == ("CANCELLED", 143)
            run = tmp_path / f"runs/here-{job}"
            record = json.loads((run / "record.json").read_text())
            assert (record["exit_status"], bool(record["ended"])) == (143, True)
            assert [
                each for each in (run / "telemetry").glob("*.arrows") if ".closed." not in each.name
            ] == []

    asyncio.run(run())
    # Each part of a job's end has its own limit: together they are below what the job gets.
    parts = (
        2 * tree.GRACE_S,
        remote_recorders.END_S,
        supervisor.FLUSH_S,
        recording.SCORE_S,
        recording.TRACK_S,
    )
    assert sum(parts) + 10 <= GRACE_SECONDS


def test_a_process_may_have_any_name(tmp_path: Path) -> None:
    program = tmp_path / os.fsdecode(b"\xff) (x")
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "1000"]) as child:
        try:
            found = Process.of(child.pid)
            assert found
            assert found.alive
            assert child.pid in descendants(os.getpid())
        finally:
            child.kill()


@pytest.mark.parametrize("moment", [0.0, 0.02, 0.05, 0.1])
def test_an_interrupted_submission_leaves_no_job(tmp_path: Path, moment: float) -> None:
    async def run() -> None:
        local = scheduler(tmp_path)
        submitting = asyncio.ensure_future(local.submit(request(tmp_path, "exec sleep 300")))
        await asyncio.sleep(moment)
        submitting.cancel()
        try:
            await local.cancel(await submitting)
        except asyncio.CancelledError:
            assert submitting.cancelled()
        end = time.monotonic() + 20
        # A supervisor that was just forked has no name of its own yet, but its job shows.
        while any("gipfel_cluster.scheduler.supervisor" in line for line in below_here()) or await answers(
            local
        ):
            assert time.monotonic() < end, below_here()
            await asyncio.sleep(0.1)

    async def answers(local: LocalScheduler) -> set[str]:
        jobs = [each.name for each in (tmp_path / "jobs").glob("*")]
        return {each.answer for each in (await local.query(jobs)).values()} - {"ended"}

    def below_here() -> list[str]:
        found = (Path(f"/proc/{pid}/cmdline") for pid in descendants(os.getpid()))
        return [path.read_bytes().replace(b"\0", b" ").decode() for path in found if path.exists()]

    asyncio.run(run())


def test_the_time_limit_ends_a_job(tmp_path: Path) -> None:
    async def run() -> None:
        local = scheduler(tmp_path)
        job = await local.submit(request(tmp_path, "exec sleep 60", time="00:00:01"))
        assert (await ended(local, job)).state == "TIMEOUT"

    asyncio.run(run())


def test_a_killed_supervisor_means_ended(tmp_path: Path) -> None:
    async def run() -> None:
        local = scheduler(tmp_path)
        job = await local.submit(request(tmp_path, "exec sleep 60"))
        job_supervisor = Process.model_validate_json(
            (tmp_path / "jobs" / job / "supervisor.json").read_text()
        )
        below = descendants(job_supervisor.pid)
        job_supervisor.signal(signal.SIGKILL)
        for pid in below:
            os.kill(pid, signal.SIGKILL)
        assert (await ended(local, job)).state == "NODE_FAIL"

    asyncio.run(run())


def test_a_missing_state_directory_is_unknown_and_a_foreign_id_has_ended(tmp_path: Path) -> None:
    async def run() -> None:
        local = scheduler(tmp_path)
        assert (await local.query(["123-abcdef"]))["123-abcdef"].answer == "unknown"
        (tmp_path / "jobs").mkdir()
        answers = await local.query(["123-abcdef", "../../etc", ""])
        assert {status.answer for status in answers.values()} == {"ended"}
        await local.cancel("../../etc")

    asyncio.run(run())


def test_a_job_without_gpus_sees_none(tmp_path: Path) -> None:
    async def run() -> None:
        local = scheduler(tmp_path)
        job = await local.submit(request(tmp_path, 'echo "<${CUDA_VISIBLE_DEVICES-unset}>"'))
        await ended(local, job)
        assert (tmp_path / f"log-{job}").read_text() == "<>\n"

    asyncio.run(run())


def test_the_first_gpus_go_to_the_job(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nprintf '0\\n1\\n2\\n3\\n'\n")
    program.chmod(0o755)
    local = LocalScheduler(tmp_path / "jobs", environment={"PATH": f"{program.parent}:{os.environ['PATH']}"})

    async def run() -> None:
        job = await local.submit(request(tmp_path, 'echo "$CUDA_VISIBLE_DEVICES"', gpus_per_node=2))
        await ended(local, job)
        assert (tmp_path / f"log-{job}").read_text() == "0,1\n"
        assert (await local.partitions())[0].gpus[0].count == 4
        with pytest.raises(GipfelError, match="requests 5 GPUs, but this machine has 4"):
            await local.submit(request(tmp_path, "true", gpus_per_node=5))

    asyncio.run(run())


# Another user must pass through the test's folder, which pytest-xdist closes to others.
@pytest.mark.integration
@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become somebody else")
def test_root_runs_a_job_as_its_user(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, 65534, 65534)

    async def run() -> None:
        local = scheduler(tmp_path)
        job = await local.submit(request(home, "id -un", user="nobody"))
        await ended(local, job)
        log = home / f"log-{job}"
        assert log.read_text() == "nobody\n"
        assert log.stat().st_uid == 65534
        with pytest.raises(GipfelError, match="Permission denied"):
            await local.submit(
                request(home, "true", user="nobody").model_copy(update={"output": "/etc/gipfel-log"})
            )
        with pytest.raises(GipfelError, match="no unix user nobody-at-all"):
            await local.submit(request(home, "true", user="nobody-at-all"))

    asyncio.run(run())


def test_a_missing_directory_is_reported_with_one_line(tmp_path: Path) -> None:
    async def run() -> None:
        with pytest.raises(GipfelError, match="No such file or directory") as caught:
            await scheduler(tmp_path).submit(request(tmp_path / "gone", "true"))
        assert "\n" not in str(caught.value)

    asyncio.run(run())


def test_no_gpu_is_listed_means_none_only_where_no_driver_is_loaded(tmp_path: Path) -> None:
    assert gpus_are_known((), devices=tmp_path)
    (tmp_path / "kfd").touch()
    assert not gpus_are_known((), devices=tmp_path)
    assert gpus_are_known((LocalGpu(index="0"),), devices=tmp_path)
