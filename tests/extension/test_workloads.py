"""Workloads: a kind in one file is listed, followed, stopped and restarted; run folders are removed."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from sleep_kind import SleepKind, install_sleep_kind

from gipfel_cluster.scheduler import JobStatus
from gipfel_cluster.workloads import run_folders
from gipfel_cluster.workloads.directory import (
    SPEC,
    WorkloadState,
    new_directory,
    parent_directory,
    write_state,
)
from gipfel_cluster.workloads.run_folders import list_runs, remove_run
from gipfel_extension.cli.main import gipfel
from gipfel_extension.training.batch.submitted import SubmittedNotebook, submitted_folder
from gipfel_extension.training.record import LaunchState

_OLD_S = 40 * 86_400


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """The command, with the kind ``sleep`` of another package, and run folders of its own."""
    monkeypatch.syspath_prepend(str(install_sleep_kind(tmp_path)))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIPFEL_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("GIPFEL_SCHEDULER", "local")
    for name in ("GIPFEL_RUN", "GIPFEL_ENGINE", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    return lambda *words, answer=None: CliRunner().invoke(
        gipfel, list(words), input=answer, standalone_mode=False
    )


def test_a_kind_of_one_file_is_listed_followed_stopped_and_started_again(run: Callable[..., Result]) -> None:
    assert run("ps").stdout == ""
    first = SleepKind.start(60, os.environ)
    assert (first.id, first.state, first.ended) == ("1", "running", False)
    (row,) = json.loads(run("ps", "--json").stdout)
    assert (row["kind"], row["id"], row["title"], row["state"]) == ("sleep", "1", "sleep 60", "running")
    assert "sleep 60" in run("ps", "--kind", "sleep").stdout
    assert run("ps", "--kind", "launch", "--json").stdout == "[]\n"
    assert run("logs", "1").stdout == "r0 | going to sleep\n"

    stopped = run("stop", "1")
    assert stopped.return_value == 0
    assert "sleep 1 is stopped." in stopped.stderr
    assert "has ended already" in run("stop", "sleep:1").stderr
    assert run("ps").stdout == ""
    (row,) = json.loads(run("ps", "--all", "--json").stdout)
    assert (row["state"], row["exit_status"]) == ("stopped", 143)
    followed = run("logs", "-f")
    assert followed.stdout == "r0 | going to sleep\nr0 | stopped\n"
    assert followed.return_value == 143
    assert run("logs", "1", "-n", "1").stdout == "r0 | stopped\n"

    again = run("rerun", "1")
    assert again.stdout == "2\n"
    assert "it sleeps again" in again.stderr
    assert [each["id"] for each in json.loads(run("ps", "--json").stdout)] == ["2"]
    run("stop", "2")


def test_an_id_that_two_kinds_have_is_named_with_its_kind(run: Callable[..., Result], tmp_path: Path) -> None:
    SleepKind.start(0, os.environ)
    folder = new_directory(parent_directory("launches", os.environ))
    (folder / SPEC).write_text("{}")
    write_state(folder, LaunchState(phase="ended", number=1, outcome="completed", created_ns=1))
    problem = str(run("logs", "1").exception)
    assert "Write launch:1 or sleep:1." in problem
    assert run("logs", "launch:1").exit_code == 0
    assert "There is no workload '7'" in str(run("stop", "7").exception)
    assert "There is no kind 'nap'" in str(run("ps", "--kind", "nap").exception)
    (tmp_path / "runs/launches/1/state.json").write_text("{")
    assert {each["kind"] for each in json.loads(run("ps", "--all", "--json").stdout)} == {"sleep"}


def test_a_batch_notebook_that_has_ended_is_a_workload_with_its_logs(
    run: Callable[..., Result], tmp_path: Path
) -> None:
    folder = submitted_folder(os.environ) / "local-17"
    folder.mkdir(parents=True)
    log = tmp_path / "out.ipynb.log"
    log.write_text("ran\n")
    task = {"job_id": "17", "values": {}, "output": str(tmp_path / "out.ipynb"), "log": str(log)}
    options = {"notebook": str(tmp_path / "in.ipynb"), "output": str(tmp_path / "out.ipynb")}
    note: dict[str, Any] = {"job_id": "17", "scheduler": "local", "notebook": options["notebook"]}
    note |= {"time": time.time(), "tasks": [task], "options": options, "directory": str(tmp_path)}
    (folder / SPEC).write_text(SubmittedNotebook.model_validate(note).model_dump_json())
    state = WorkloadState(
        phase="ended", name="in", job_id="17", outcome="failed", exit_status=1, created_ns=5
    )
    write_state(folder, state)
    (row,) = json.loads(run("ps", "--all", "--json").stdout)
    assert (row["kind"], row["id"], row["state"]) == ("batch", "17", "failed")
    assert run("logs", "17").stdout == "r0 | ran\n"
    assert run("logs", "17", "-f").return_value == 1
    assert json.loads((folder / "exit.json").read_text())["exit_status"] == 1
    assert "does not exist" in str(run("rerun", "17").exception)


def _run_folder(root: Path, name: str, *, age_s: float, **record: Any) -> Path:
    folder = root / name
    (folder / "telemetry").mkdir(parents=True)
    (folder / "telemetry/n1.arrows").write_bytes(b"x" * 10_000)
    (folder / "record.json").write_text(json.dumps({"kind": "server", **record}))
    then = time.time() - age_s
    for each in folder.rglob("*"):
        os.utime(each, (then, then))
    return folder


def test_runs_are_listed_shown_and_removed_when_they_are_old(
    run: Callable[..., Result], tmp_path: Path
) -> None:
    root = tmp_path / "runs"
    ended = {"ended": "2026-01-01T00:00:00Z", "exit_status": 0}
    old = _run_folder(root, "alps-1", age_s=_OLD_S, **ended)
    new = _run_folder(root, "alps-2", age_s=60, **ended)
    busy = _run_folder(root, "alps-3", age_s=60)
    (root / "launches").mkdir()
    (root / "my-notes").mkdir()
    (root / "alps-9").symlink_to(tmp_path)
    listed = json.loads(run("runs", "--json").stdout)
    assert [each["name"] for each in listed] == ["alps-1", "alps-2", "alps-3"] or listed[0][
        "name"
    ] == "alps-1"
    assert {each["name"] for each in listed} == {"alps-1", "alps-2", "alps-3"}
    assert all(each["bytes"] >= 10_000 for each in listed)
    assert "KiB" in run("runs").stdout
    assert "exit status  0" in run("runs", "show", "alps-1").stdout
    for name in ("launches", "my-notes", "alps-9", "../runs/alps-1", ""):
        assert "There is no run" in str(run("runs", "rm", "--yes", name).exception)

    asked = run("runs", "rm", "--older", "30d", answer="n\n")
    assert "Remove 1 run," in asked.stderr
    assert asked.return_value == 1
    assert old.is_dir()
    assert run("runs", "rm", "--older", "30d", "--yes").return_value == 0
    assert not old.exists()
    assert new.is_dir()
    assert "nothing to remove" in run("runs", "rm", "--older", "30d", "--yes").stderr
    assert "alps-3 is in use" in str(run("runs", "rm", "--yes", "alps-3").exception)
    assert busy.is_dir()
    assert run("runs", "rm", "alps-2", answer="y\n").return_value == 0
    assert not new.exists()
    with pytest.raises(Exception, match="either names of runs or --older"):
        raise run("runs", "rm").exception or AssertionError
    assert "not a valid age" in str(run("runs", "rm", "--older", "soon").exception)


def test_a_run_in_which_a_workload_or_this_process_runs_stays(
    run: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _run_folder(tmp_path / "runs", "alps-5", age_s=_OLD_S, ended="2026-01-01T00:00:00Z")
    inside = {**os.environ, "GIPFEL_RUN": str(folder)}
    sleeping = SleepKind.start(60, inside)
    assert sleeping.id == "alps-5/1"
    then = time.time() - _OLD_S
    for each in folder.rglob("*"):
        os.utime(each, (then, then))
    assert "nothing to remove" in run("runs", "rm", "--older", "30d", "--yes").stderr
    (found,) = list_runs(os.environ)
    assert found.in_use_reason == "sleeps/1 is running"
    with pytest.raises(Exception, match="alps-5 is in use"):
        remove_run(found, os.environ)
    assert run("stop", "alps-5/1").return_value == 0
    monkeypatch.setenv("GIPFEL_RUN", str(folder))
    (found,) = list_runs(os.environ)
    assert found.in_use_reason == "this process runs in it"


@pytest.mark.parametrize(
    ("answer", "ended", "reason"),
    [
        ("running", "", "its job 7 is running or pending"),
        ("running", "2026-01-01T00:00:00Z", "its job 7 is running or pending"),
        ("unknown", "", "its scheduler does not report whether its job has ended"),
        ("unknown", "2026-01-01T00:00:00Z", ""),
        ("ended", "", ""),
    ],
)
def test_a_run_is_in_use_while_its_job_may_run(
    answer: str, ended: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Cluster:
        in_container = True

        def default_setting(self, _name: str) -> str:
            return "slurm"

        def scheduler(self, _name: str) -> "Cluster":
            return self

        async def query(self, job_ids: list[str]) -> dict[str, JobStatus]:
            return {each: JobStatus.model_validate({"answer": answer}) for each in job_ids}

    monkeypatch.setattr(run_folders, "submission_context", lambda _environment: Cluster())
    environment = {"GIPFEL_RUNS": str(tmp_path)}
    _run_folder(tmp_path, "alps-7", age_s=_OLD_S, job_id="7", **({"ended": ended} if ended else {}))
    (found,) = run_folders.check_jobs(list(list_runs(environment)), environment)
    assert found.in_use_reason == reason
