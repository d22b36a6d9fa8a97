"""Launches whose supervisor was killed or never started: the state that readers get, and the files."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gipfel_cluster.model import GipfelError
from gipfel_cluster.process.tree import Process
from gipfel_cluster.scheduler import JobStatus, LocalScheduler, Scheduler
from gipfel_cluster.workloads.directory import LOCK, hold_supervisor_lock, is_supervised, refresh_queued_state
from gipfel_cluster.workloads.logs import read_logs
from gipfel_extension.training.launch import Launch
from gipfel_extension.training.launches.allocation import excluded_nodes, held_gpus, requeue
from gipfel_extension.training.launches.logs import LogTimes, launch_logs, read_progress, read_training_curve
from gipfel_extension.training.launches.notebook import resumes
from gipfel_extension.training.record import LaunchState, read_state, refresh_state, write_state
from gipfel_extension.training.record.spec import LaunchSpec
from gipfel_extension.vetting.history.queries import Exclusion, Exclusions
from gipfel_extension.vetting.history.store import History

_OLD_NS = 3600 * 10**9
_HOLD = """
import sys, time
from pathlib import Path
from gipfel_cluster.workloads.directory import hold_supervisor_lock
with hold_supervisor_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(1000)
"""


def _folder(place: Path, **more: Any) -> tuple[Path, LaunchState]:
    """A launch that has said nothing for an hour."""
    place.mkdir(parents=True, exist_ok=True)
    state = LaunchState.model_validate({"phase": "running", "number": 1, "job_id": "7", **more})
    old = state.model_copy(update={"updated_ns": time.time_ns() - _OLD_NS})
    (place / "state.json").write_text(old.model_dump_json())
    return place, old


def test_a_launch_whose_supervisor_is_killed_has_ended_and_its_gpus_are_free(tmp_path: Path) -> None:
    gone = Process(pid=os.getpid(), start=1, boot="another")
    folder, state = _folder(tmp_path / "launches/1", gpus={"n1": (0, 1)}, supervisor=gone)
    assert is_supervised(folder) is None
    assert refresh_state(folder) == state, "nobody ever held its lock: that says nothing"
    keeper = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(folder)], stdout=subprocess.PIPE, text=True, cwd="/"
    )
    try:
        assert keeper.stdout is not None
        assert keeper.stdout.readline() == "held\n"
        assert refresh_state(folder).phase == "running", "it lives, and only the disk may be full"
        assert not Launch(folder).silent
        assert held_gpus(tmp_path / "launches/2", "7") == {"n1": {0, 1}}
    finally:
        keeper.kill()
        keeper.communicate()
    assert held_gpus(tmp_path / "launches/2", "7") == {}
    told = read_state(folder)
    assert (told.phase, told.outcome, told.exit_status, told.gpus) == ("ended", "lost", 1, {})
    assert "was killed" in told.reason
    assert json.loads((folder / "exit.json").read_text())["outcome"] == "lost"
    assert Launch.open(folder).wait(0) == 1


def test_a_launch_has_one_supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gipfel_cluster.workloads.directory._LOCK_TIMEOUT_S", 0.0)
    with (
        hold_supervisor_lock(tmp_path),
        pytest.raises(GipfelError, match="supervises the workload"),
        hold_supervisor_lock(tmp_path),
    ):
        pass
    with hold_supervisor_lock(tmp_path):
        assert is_supervised(tmp_path)
    assert is_supervised(tmp_path) is False
    (tmp_path / LOCK).unlink()
    (tmp_path / LOCK).symlink_to("/etc/passwd")
    assert is_supervised(tmp_path) is None


class _Queue(LocalScheduler):
    def __init__(self, status: JobStatus) -> None:
        self._given = status

    async def query(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        return dict.fromkeys(job_ids, self._given)


def test_what_ended_before_it_began_does_not_wait_for_ever(tmp_path: Path) -> None:
    def settled(name: str, scheduler: Scheduler | None, **more: Any) -> LaunchState:
        folder, state = _folder(tmp_path / name, phase="queued", **more)
        for log in ("job.log", "supervisor.log"):
            (folder / log).write_text("starting\nno disk is left\n")
        return refresh_queued_state(folder, state, scheduler)

    waits = JobStatus(answer="running", state="PENDING")
    assert settled("1", _Queue(waits)).phase == "queued"
    assert settled("2", _Queue(JobStatus(answer="unknown"))).phase == "queued"
    ended = settled("3", _Queue(JobStatus(answer="ended", state="FAILED")))
    assert (ended.outcome, ended.reason) == ("lost", "Its job 7 ended before it started: no disk is left")
    assert read_state(tmp_path / "3").outcome == "lost"
    assert settled("4", None).reason == "It never started: no disk is left"
    folder, _ = _folder(tmp_path / "5", phase="queued")
    fresh = write_state(folder, read_state(folder))
    assert refresh_queued_state(folder, fresh, None).phase == "queued"


def test_two_launches_of_a_run_show_their_own_metrics(tmp_path: Path) -> None:
    run = tmp_path / "alps-7"
    lines: list[Any] = [
        {"time_ns": 5, "rank": 0, "launch": "alps-7/1", "values": {"step": 1, "loss": 4.0}},
        {"time_ns": 6, "rank": 0, "launch": "alps-7/2", "values": {"step": 50, "loss": 9.0}},
        {"time_ns": 7, "rank": None, "values": {"step": 99, "loss": 7.0}},
    ]
    run.mkdir()
    (run / "metrics.jsonl").write_text("\n".join(json.dumps(each) for each in lines))
    state = LaunchState(phase="running", number=1, run=str(run), started_ns=2)
    steps = [read_progress(run / "launches" / name, state).step for name in ("1", "2", "3")]
    assert steps == [1, 50, 99]
    assert read_training_curve(run / "launches/2", state).losses == ((50, 9.0),)


@pytest.mark.parametrize(
    ("world", "again", "tags", "wanted"),
    [("1", "1", ["setup"], True), ("2", "1", ["setup"], False), ("1", "", ["setup"], False),
     ("1", "1", [], False)],
)  # fmt: skip
def test_a_lonely_notebook_goes_on_where_it_was(
    tmp_path: Path, world: str, again: str, tags: list[str], wanted: bool
) -> None:
    notebook = tmp_path / "in.ipynb"
    notebook.write_text(json.dumps({"cells": [{"metadata": {"tags": tags}}, {}]}))
    environment = {"WORLD_SIZE": world, "GIPFEL_RESUME": again}
    assert not resumes(notebook, tmp_path, environment), "there is nothing to go on from"
    (tmp_path / "notebook.ipynb").write_text("{}")
    assert resumes(notebook, tmp_path, environment) is wanted
    notebook.write_text("[]")
    assert not resumes(notebook, tmp_path, environment)


def test_a_vetted_launch_leaves_out_what_was_found_bad_of_late(tmp_path: Path) -> None:
    environment = {"GIPFEL_VETTING_HISTORY": str(tmp_path)}
    spec = LaunchSpec(target="x.py", vetting="cpu", exclude="nid[007-008]")
    assert excluded_nodes(spec, "alps", environment) == "nid[007-008]"
    until = time.time_ns() + _OLD_NS
    bad = Exclusion(node="nid009", reason="slow", since_ns=0, until_ns=until)
    Exclusions(History(tmp_path, "alps").folder).update([bad])
    assert excluded_nodes(spec, "alps", environment) == "nid[007-009]"
    assert excluded_nodes(spec.model_copy(update={"vetting": ""}), "alps", environment) == "nid[007-008]"
    assert excluded_nodes(spec, "other", environment) == "nid[007-008]"


@pytest.mark.parametrize(("end", "taken"), [("exit 0", True), ("kill -TERM $$", True), ("exit 1", False)])
def test_a_job_is_requeued_even_where_that_ends_the_command_before_its_answer(
    tmp_path: Path, end: str, taken: bool
) -> None:
    program = tmp_path / "scontrol"
    program.write_text(f"#!/bin/sh\n{end}\n")
    program.chmod(0o700)
    assert requeue("7", {"PATH": f"{tmp_path}:/usr/bin:/bin"}) is taken


def test_a_line_keeps_its_time_if_that_is_recorded_late(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    log.write_text("step 6\n")
    LogTimes(tmp_path).record_growth()
    log.write_text("step 6\nstep 7\n")
    written_ns = time.time_ns() + 5 * 10**9
    os.utime(log, ns=(written_ns, written_ns))
    assert read_logs(launch_logs(tmp_path)).lines[1].time_ns == written_ns
    LogTimes(tmp_path).record_growth()
    recorded_ns = read_logs(launch_logs(tmp_path)).lines[1].time_ns
    assert recorded_ns is not None
    # No record is of the future.
    assert recorded_ns <= time.time_ns()
    os.utime(log, ns=(written_ns - 9 * 10**9,) * 2)
    log.with_name("times.jsonl").unlink()
    LogTimes(tmp_path).record_growth()
    assert read_logs(launch_logs(tmp_path)).lines[1].time_ns == written_ns - 9 * 10**9
