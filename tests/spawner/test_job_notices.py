"""What a job reports about itself: its wait, its end and its events; one real job without any server."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from notify_servers import Webhook, write_settings

from gipfel_cluster.job import JOB_VARIABLE, JobSpec, batch_script
from gipfel_cluster.job.notices import EventFollower, JobNotices, duration
from gipfel_cluster.model import GipfelError
from gipfel_cluster.notify import Event
from gipfel_cluster.notify.journal import read_events
from gipfel_cluster.runs import RunFolder


class Job:
    """The notices of a job, and the events that they left."""

    def __init__(self, home: Path, **spec: object) -> None:
        self.environment = {"HOME": str(home)}
        values = {"kind": "notebook", "command": ("true",), "options": {"notebook": "/data/train.ipynb"}}
        self.spec = JobSpec.model_validate({**values, **spec})
        self.run = RunFolder.create(home / "runs", "alps", "7")
        self.notices = self.begin()

    def begin(self, **variables: str) -> JobNotices:
        self.environment |= variables
        self.notices = JobNotices(self.spec, self.run, "7", self.environment)
        return self.notices

    def note(self, kind: str, message: str, name: str = "n1-job") -> None:
        line = json.dumps({"time_ns": 1, "node": "n1", "kind": kind, "device": "", "message": message})
        with (self.run.telemetry / f"{name}.events.jsonl").open("a") as file:
            file.write(line + "\n")

    def events(self) -> list[Event]:
        self.notices.finish()
        return list(read_events(self.environment))


def test_a_wait_in_the_queue_is_reported_when_it_ends(tmp_path: Path) -> None:
    job = Job(tmp_path, submitted=int(time.time()) - 7500)
    job.notices.start()
    [event] = job.events()
    assert (event.kind, event.reason) == ("started", "It waited 2 h 5 min in the queue.")
    assert (event.title, event.run) == ("Batch notebook train.ipynb (alps-7)", "alps-7")
    assert event.workload == "batch:7"


def test_a_service_is_named_by_its_own_name(tmp_path: Path) -> None:
    job = Job(tmp_path, kind="service", options={"service": "board"})
    job.notices.report_end(1, stopped=False)
    [event] = job.events()
    assert (event.kind, event.title, event.workload) == ("failed", "Service board (alps-7)", "service:board")


def test_a_job_that_starts_at_once_reports_no_wait(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.begin(SLURM_RESTART_COUNT="0").start()
    assert job.events() == []


def test_a_requeued_job_reports_its_start_and_its_end_again(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.notices.report_end(143, stopped=True)
    job.begin(SLURM_RESTART_COUNT="1").start()
    job.notices.report_end(1, stopped=False)
    job.notices.report_end(1, stopped=False)
    assert [(each.kind, each.reason.split(" after")[0]) for each in job.events()] == [
        ("ended", "It was stopped"),
        ("started", "Slurm had requeued it and has started it again."),
        ("failed", "It ended with exit status 1"),
    ]


@pytest.mark.parametrize(("reason", "count"), [("requeued", 0), ("", 1)])
def test_a_launch_that_requeues_its_job_has_not_ended(tmp_path: Path, reason: str, count: int) -> None:
    folder = tmp_path / "runs/launches/3"
    folder.mkdir(parents=True)
    (folder / "state.json").write_text(json.dumps({"phase": "queued", "reason": reason}))
    job = Job(tmp_path, kind="launch", options={"launch": str(folder)})
    job.notices.report_end(143, stopped=True)
    assert len(job.events()) == count


@pytest.mark.parametrize(
    ("status", "stopped", "kind", "reason"),
    [
        (0, False, "ended", "It completed after 0 s."),
        (143, True, "ended", "It was stopped after 0 s."),
        (3, False, "failed", "It ended with exit status 3 after 0 s."),
        (137, False, "failed", "exit status 137, SIGKILL (often because memory ran out), after"),
        (129 + 200, False, "failed", "exit status 329 after"),
    ],
)
def test_the_end_has_its_reason(tmp_path: Path, status: int, stopped: bool, kind: str, reason: str) -> None:
    job = Job(tmp_path)
    job.notices.report_end(status, stopped=stopped)
    [event] = job.events()
    assert event.kind == kind
    assert reason in event.reason


def test_a_time_limit_is_told_from_a_cancellation(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.begin(SLURM_JOB_END_TIME=str(int(time.time()) + 5)).report_end(143, stopped=True)
    [event] = job.events()
    assert (event.kind, event.reason) == ("failed", "It reached its time limit after 0 s.")


def test_the_workloads_own_error_is_the_reason(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.note("workload_failed", "of an earlier start")
    job.notices.start()
    job.note("workload_failed", "Cell 3: ValueError: <!channel>", "n1-workload")
    job.notices.report_end(1, stopped=False)
    [event] = job.events()
    assert event.reason == "Cell 3: ValueError: <!channel>"


def test_events_of_recorders_and_programs_are_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gipfel_cluster.job.notices._POLL_S", 0.02)
    job = Job(tmp_path)
    job.begin(GIPFEL_JOB_END_TIME=str(int(time.time()) + 3600)).start()
    job.note("gpus_idle", "All 4 GPUs have been below 5 % for 20 minutes.")
    job.note("gpus_idle", "All 4 GPUs have been below 5 % for 20 minutes.", "n2-job")
    job.note("checkpoint_space", "It needs 10 GiB, but 2 GiB are free.")
    job.note("throttle", "no message about this")
    deadline = time.monotonic() + 20
    while len(read_events(job.environment)) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    found = {each.kind: each.reason for each in job.events()}
    assert found == {
        "idle": "n1: All 4 GPUs have been below 5 % for 20 minutes.",
        "checkpoint": "n1: It needs 10 GiB, but 2 GiB are free.",
    }


def test_the_end_of_the_time_is_reported_before_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gipfel_cluster.job.notices._POLL_S", 0.02)
    job = Job(tmp_path)
    job.begin(GIPFEL_JOB_END_TIME=str(int(time.time()) + 600))
    job.notices._began -= 3600
    job.notices.start()
    deadline = time.monotonic() + 20
    while not read_events(job.environment) and time.monotonic() < deadline:
        time.sleep(0.02)
    [event] = job.events()
    assert event.kind == "time"
    assert "unless its time limit is extended" in event.reason


SQUEUE = """#!/bin/sh
echo asked >> "$HOME/asked"
date --date=@"$(cat "$HOME/end")" +%Y-%m-%dT%H:%M:%S
"""


def test_an_extended_time_limit_is_not_reported_as_near_or_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gipfel_cluster.job.notices._POLL_S", 0.02)
    (tmp_path / "squeue").write_text(SQUEUE)
    (tmp_path / "squeue").chmod(0o755)
    now = int(time.time())
    (tmp_path / "end").write_text(str(now + 7200))
    job = Job(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    job.begin(PATH=os.environ["PATH"], SLURM_JOB_ID="7", SLURM_JOB_END_TIME=str(now + 60))
    job.notices._began -= 3600
    job.notices.start()
    deadline = time.monotonic() + 20
    while not (tmp_path / "asked").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.5)
    # Once for this end, however often the thread checks it.
    assert (tmp_path / "asked").read_text() == "asked\n"
    job.notices.report_end(143, stopped=True)
    assert [(each.kind, each.reason) for each in job.events()] == [("ended", "It was stopped after 1 h.")]


def test_a_job_that_ignores_its_signal_at_the_time_limit_is_reported_before_it_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gipfel_cluster.job.notices._POLL_S", 0.02)
    job = Job(tmp_path)
    job.environment["SLURM_JOB_END_TIME"] = str(int(time.time()) + 2)
    notices = JobNotices(job.spec, job.run, "7", job.environment, lambda: True)
    # Long ago, so that fractions of a second don't show in the limit.
    notices._began -= 3600
    notices.start()
    deadline = time.monotonic() + 20
    while not read_events(job.environment) and time.monotonic() < deadline:
        time.sleep(0.02)
    [event] = read_events(job.environment)
    assert (event.kind, event.reason) == ("failed", "It reached its time limit of 1 h.")
    # Not a second time, when the job can still report its end.
    job.begin().report_end(143, stopped=True)
    assert len(job.events()) == 1


def test_a_server_reports_failures_alone(tmp_path: Path) -> None:
    job = Job(tmp_path, kind="server", options={})
    job.notices.report_end(0, stopped=False)
    job.begin().report_end(143, stopped=True)
    assert job.events() == []
    job.begin().report_error(GipfelError("There is no image.", "Correct it."))
    [event] = job.events()
    assert (event.title, event.workload) == ("Notebook server (alps-7)", "")
    assert event.reason == "It could not start or continue: There is no image. Correct it."


def test_a_launch_is_named_as_gipfel_ps_names_it(tmp_path: Path) -> None:
    for folder, name in (
        (tmp_path / "runs/launches/3", "3"),
        (tmp_path / "runs/alps-7/launches/2", "alps-7/2"),
    ):
        job = Job(tmp_path, kind="launch", options={"name": "llama", "launch": str(folder)})
        job.notices.report_end(1, stopped=False)
        event = job.events()[-1]
        assert (event.title, event.workload) == ("Launch llama (alps-7)", f"launch:{name}")


def test_hostile_events_files_stop_no_follower(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.events.jsonl")
    (tmp_path / "b.events.jsonl").write_bytes(b"[" * 200_000 + b"\n" + b'{"kind": "x"}\n{"kind": "ha')
    (tmp_path / "c.events.jsonl").symlink_to("/etc/passwd")
    follower = EventFollower(tmp_path)
    found = [event for _ in range(8) for event in follower.read()]
    assert found == [{"kind": "x"}]
    with (tmp_path / "b.events.jsonl").open("ab") as file:
        file.write(b'lf"}\n')
    assert list(follower.read()) == [{"kind": "half"}]


def test_events_of_an_earlier_start_are_skipped_however_many_they_are(tmp_path: Path) -> None:
    job = Job(tmp_path)
    for _ in range(2000):
        job.note("gpus_idle", "All GPUs of the earlier start.")
    job.notices.start()
    job.note("checkpoint_space", "No space.")
    job.notices.report_end(0, stopped=False)
    assert [each.kind for each in job.events()] == ["checkpoint", "ended"]


def test_a_flood_of_events_is_one_message_and_delays_no_end(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.notices.start()
    for number in range(3000):
        job.note("gpus_idle", f"{number} \x1b[2J\x9b31m\u202e<!channel>\r\nBcc: a@b.c " + "x" * 3000)
    began = time.monotonic()
    job.notices.report_end(0, stopped=False)
    assert time.monotonic() - began < 5
    idle, ended = job.events()
    assert idle.reason.startswith("n1: 0 [2J 31m <!channel> Bcc: a@b.c x")
    assert (len(idle.reason), ended.kind) == (600, "ended")


def test_durations_are_readable() -> None:
    found = [duration(each) for each in (0.4, 59, 60, 3599, 3600, 7500, 90_000)]
    assert found == ["0 s", "59 s", "1 min", "1 h", "1 h", "2 h 5 min", "25 h"]


def _run_job(spec: JobSpec, home: Path, *, status: int) -> None:
    """Run a job's script as its user, to its end."""
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(home), "GIPFEL_JOB_ID": "7",
        JOB_VARIABLE: spec.model_dump_json(),
    }  # fmt: skip
    done = subprocess.run(
        ["/bin/sh", "-c", batch_script(sys.executable).partition("\n")[2]], env=environment,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stderr


def test_a_real_job_that_cannot_start_reports_why(tmp_path: Path) -> None:
    spec = JobSpec(
        kind="notebook", command=("/bin/true",), cluster="here", sources=("host",), directory="/no/such/place"
    )
    _run_job(spec, tmp_path, status=1)
    [event] = read_events({"HOME": str(tmp_path)})
    assert event.kind == "failed"
    assert event.reason.startswith("It could not start or continue: The working directory /no/such/place")


def test_a_real_job_that_fails_sends_its_message_without_any_server(tmp_path: Path, webhook: Webhook) -> None:
    write_settings(tmp_path, f'[slack]\nurl = "{webhook.url}/x"\n')
    spec = JobSpec(
        kind="notebook", command=("/bin/sh", "-c", "exit 3"), cluster="here", sources=("host",),
        options={"notebook": "a\n<!channel>.ipynb"},
    )  # fmt: skip
    _run_job(spec, tmp_path, status=3)
    [(_, _, document)] = webhook.received
    first, second, third, fourth = document["text"].split("\n")
    assert first == "Batch notebook a &lt;!channel&gt;.ipynb (here-7) failed"
    assert second.startswith("It ended with exit status 3 after")
    assert third == "Its output: gipfel logs 7"
    assert fourth == "Its report: gipfel report here-7"
