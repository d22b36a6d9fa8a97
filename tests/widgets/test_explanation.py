"""Explanation of a run: its score, a launch's time range, and missing data."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from gipfel_cluster.model import GipfelError
from gipfel_extension.training.launch import Launch
from gipfel_extension.training.record import Failure, LaunchState, write_state
from gipfel_widgets import explain, measure


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of simulated GPUs that wait between small kernels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GIPFEL_RUNS", str(tmp_path_factory.mktemp("runs")))
        patch.delenv("GIPFEL_RUN", raising=False)
        with measure("synthetic:starved", 0.05) as work:
            begun = time.monotonic()
            while len(work.table().gpus) < 4 or time.monotonic() < begun + 3:
                assert time.monotonic() < begun + 120
                time.sleep(0.1)
        return work.run.path


def test_a_run_is_explained_by_its_name_its_folder_and_as_the_newest(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIPFEL_RUNS", str(run.parent))
    monkeypatch.delenv("GIPFEL_RUN", raising=False)
    for job in (explain(run), explain(run.name), explain()):
        assert job.path.resolve() == run.resolve()
        assert job.score is not None
        assert job.score + sum(job.losses.values()) == pytest.approx(100)
        assert max(job.losses, key=lambda name: job.losses[name]) == "launch"
    assert ("nodes", f"1: {json.loads((run / 'record.json').read_text())['node']}") in job.record.rows
    # Programs of other tests may listen on all interfaces.
    events = [row[2] for row in job.events.rows if row[2] != "network_listener"]
    assert events == ["recorder_started", "recorder_ended"]
    assert "CUDA graph" in job.next_steps.rows[0][0]
    assert "points lost: launch" in repr(job)
    figures = {each.title: each._repr_mimebundle_() for each in job.figures}
    assert {"Score and losses", "Shares over time", "GPUs over time", "Activity"} <= set(figures)
    for bundle in figures.values():
        assert set(bundle) == {"application/vnd.plotly.v1+json", "image/png", "text/plain"}


def _launch(run: Path, number: int, **state: Any) -> Launch:
    folder = run / "launches" / str(number)
    folder.mkdir(parents=True)
    write_state(folder, LaunchState(number=number, run=str(run), **{"phase": "ended", **state}))
    return Launch(folder)


def test_a_launch_is_explained_by_the_time_in_which_it_ran(run: Path) -> None:
    whole = explain(run)
    first, last = whole.scored.job.first_ns, whole.scored.job.last_ns
    assert first is not None
    assert last is not None
    middle = (first + last) // 2
    completed = _launch(run, 1, outcome="completed", started_ns=first, ended_ns=middle)
    part = explain(completed)
    assert part.scored.job.last_ns is not None
    assert part.scored.job.last_ns <= middle
    assert part.score is not None
    assert f"launch 1 of {run.name}"[:20] in part.text
    failure = Failure(rank=3, node="n1", message="ValueError: <b>no</b>")
    _launch(run, 2, outcome="failed", started_ns=middle, ended_ns=last, failure=failure)
    assert [each.folder.name for each in whole.launches] == ["2", "1"]
    # Failures come before slow phases, and are escaped.
    assert "rank 3 on n1" in explain(run).next_steps.rows[0][0]
    assert "<b>no" not in explain(run).next_steps._repr_html_()


def test_what_is_not_there_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIPFEL_RUNS", str(tmp_path))
    monkeypatch.delenv("GIPFEL_RUN", raising=False)
    never = _launch(tmp_path / "other", 1, outcome="stopped", reason="It was stopped.")
    (tmp_path / "empty" / "telemetry").mkdir(parents=True)
    for which, says in (
        (None, "There is no run in"),
        ("nowhere", "There is no run nowhere"),
        (tmp_path / "empty", "it contains no recording"),
        (never, "has not run"),
    ):
        with pytest.raises(GipfelError, match=says) as caught:
            explain(which)
        assert "\n" not in str(caught.value)
