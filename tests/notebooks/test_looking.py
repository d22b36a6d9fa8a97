"""The notebooks that inspect nodes, a job, and formats of stored samples."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from notebook_runs import Executed, job_environment

from gipfel_widgets import Lesson

Execute = Callable[..., Executed]

_PROTOCOL = """
name: small
description: for this test
time_limit: 60 s
checks:
- {name: affinity, type: affinity, time_limit: 30 s}
- {name: room, type: shared_memory, time_limit: 30 s, parameters: {min_free: %s, write: 1 MiB}}
"""
_PLOTLY = "application/vnd.plotly.v1+json"


def test_a_newcomer_sees_gpus_trains_on_two_ranks_and_submits_a_notebook(execute_notebook: Execute) -> None:
    done = execute_notebook("start-here", seconds=5)
    assert "simulated GPU" in done.text("score")
    assert "bound" in done.text("score")
    assert "completed" in done.text("outcome")
    assert done.logged[-1]["step"] == 60
    assert done.logged[-1]["loss"] < 0.01
    assert "Hello, Gipfel!" in done.text("greeting")


@pytest.mark.parametrize(
    ("name", "steps"), [("container", 3), ("launch", 4), ("vetting", 2), ("service", 4), ("slow", 2)]
)
def test_a_learner_is_told_of_each_step_whether_it_was_done(
    execute_notebook: Execute, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, steps: int
) -> None:
    # Its service is in the home directory.
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "small.yaml").write_text(_PROTOCOL % "1 MiB")
    given = {"slow": {"seconds": 5}, "vetting": {"protocol": str(tmp_path / "small.yaml")}}
    done = execute_notebook(f"learn-{name}", **given.get(name, {}))
    assert f"{steps} of {steps} steps are done" in done.text("summary")
    assert done.text("summary").count("\ndone ") == steps


def test_a_step_that_was_not_done_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    lesson = Lesson()
    answer = lesson.gipfel("edf", "check", "/no/such.toml")
    assert (bool(answer), answer.json()) == (False, {})
    assert "/no/such.toml" in capsys.readouterr().out
    lesson.check("a step", answer, "Do this.")
    lesson.check("another", True, "")
    lesson.summary()
    expected = ["NOT DONE  a step. Do this.", "done      another", "1 of 2 steps are done."]
    assert capsys.readouterr().out.splitlines()[:3] == expected


def test_vetted_nodes_get_the_next_launch(execute_notebook: Execute, tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(_PROTOCOL % "1 MiB")
    done = execute_notebook("vet-nodes", protocol=str(tmp_path / "small.yaml"))
    grid = done.text("run")
    assert "1 of 1 node vetted (small" in grid
    assert "affinity" in grid
    assert "to exclude: none" in done.text("found")
    spec = json.loads((done.launch / "spec.json").read_text())
    assert (spec["nodes"], spec["exclude"]) == (1, "")
    logs = "".join((done.launch / f"rank-{rank}.log").read_text() for rank in range(2))
    assert "rank 1 of 2: the sum is 2" in logs
    assert "completed" in done.text("ended")


def test_no_fit_node_is_no_launch(execute_notebook: Execute, tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(_PROTOCOL % "1000 TB")
    with pytest.raises(AssertionError, match="0 of at least 1 nodes are good"):
        execute_notebook("vet-nodes", protocol=str(tmp_path / "small.yaml"))
    assert not (tmp_path / "runs" / "launches").exists()


def test_a_job_is_explained_from_its_folder(execute_notebook: Execute, tmp_path: Path) -> None:
    program = (
        "from gipfel_widgets import measure, run_workload\n"
        "with measure('synthetic:starved', 0.1): run_workload('sleep', 3)"
    )
    environment = job_environment(tmp_path, {})
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=120)
    (run,) = (tmp_path / "runs").iterdir()
    done = execute_notebook("explain-job", run=run.name)
    assert "measurement" in done.text("record")
    assert "points lost: launch" in done.text("saturation")
    shown = [
        o.data[_PLOTLY]
        for cell in ("saturation", "heat", "evidence")
        for o in done.outputs(cell)
        if _PLOTLY in o.data
    ]
    assert {trace["type"] for figure in shown for trace in figure["data"]} >= {"bar", "heatmap"}
    assert "recorder_started" in done.text("events")
    assert "There is no launch" in done.text("launches")
    assert "Not vetted yet" in done.text("vetted")
    assert "CUDA graph" in done.text("next")


def test_three_ways_to_read_give_the_same_samples(execute_notebook: Execute, tmp_path: Path) -> None:
    done = execute_notebook(
        "load-data", samples=300, rounds=1, shards=4, interval=0.1, try_workers="1,2", try_seconds=0.1
    )
    table = done.text("result")
    assert "| small files |" in table
    assert "| tar shards |" in table
    assert "| SquashFS |" in table or "SquashFS was not measured: " in table
    (run,) = (tmp_path / "runs").iterdir()
    names = {
        name
        for line in (run / "metrics.jsonl").read_text().splitlines()
        for name in json.loads(line)["values"]
    }
    assert {"small files, samples/s", "tar shards, samples/s"} <= names
    figures = [o.data[_PLOTLY] for o in done.outputs("plot") if _PLOTLY in o.data]
    uids = {trace["uid"] for figure in figures for trace in figure["data"]}
    assert any("READ" in uid for uid in uids), uids
    assert any("tar shards" in uid for uid in uids), uids
    (tried,) = [o.data[_PLOTLY] for o in done.outputs("try") if _PLOTLY in o.data]
    assert {"files, cold", "files, warm", "shards, cold"} <= {trace["name"] for trace in tried["data"]}
    assert not (tmp_path / "load-data").exists()
    assert str(tmp_path) not in Path("/proc/mounts").read_text()
