"""Metric files of a training on the time axis of its run, live."""

import json
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from event_bytes import event, frame, simple
from recorder_process import TwoClocks

from gipfel_extension.cli.recorded_run import _metrics_arguments
from gipfel_extension.telemetry.user_metrics import UserMetrics, read_metrics
from gipfel_extension.tracking.run_metrics import MetricsDirectory

_SECOND = 10**9


def _events(*steps: int, tag: str = "loss", start: float = 1.7e9) -> bytes:
    return b"".join(frame(event(step, start + step, simple(tag, step / 8))) for step in steps)


def _series(found: UserMetrics, name: str, rank: int | None = None) -> list[tuple[float, float]]:
    metric = found.find(name, rank)
    assert metric is not None
    start = 1_700_000_000 * _SECOND
    return [
        ((int(time) - start) / 1e9, float(value))
        for time, value in zip(metric.time_ns, metric.values, strict=True)
    ]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def test_event_files_of_ranks_have_their_own_times(tmp_path: Path, run: Path) -> None:
    clock = TwoClocks()
    outputs = tmp_path / "outputs"
    follower = MetricsDirectory(outputs, run, "n1", clock, since_ns=clock.wall_ns)
    follower.follow()
    for rank in (0, 1):
        (outputs / f"rank{rank}").mkdir(parents=True)
    first, second = (outputs / f"rank{rank}/events.out.tfevents.1" for rank in (0, 1))
    # Values of an earlier training in the same directory.
    first.write_bytes(_events(3, 4, start=1.6e9) + _events(1, 2))
    second.write_bytes(_events(1))
    clock.wait(20, threading.Event())
    follower.follow()
    with first.open("ab") as file:
        file.write(_events(3) + frame(event(4, 1.7e9 + 4, simple("loss", float("nan")))))
    follower.follow()
    follower.follow(last=True)
    found = read_metrics(run)
    assert _series(found, "loss", 0)[:3] == [(1.0, 0.125), (2.0, 0.25), (3.0, 0.375)]
    assert np.isnan(_series(found, "loss", 0)[3][1])
    assert _series(found, "loss", 1) == [(1.0, 0.125)]
    assert _series(found, "step", 0)[-1] == (4.0, 4.0)
    assert found.damaged_lines == 0
    # The time of the run's monotonic clock, too.
    metric = found.find("loss", 1)
    assert metric is not None
    assert metric.monotonic_ns.tolist() == [2 * _SECOND]
    assert (run / "metrics.jsonl").stat().st_mode & 0o777 == 0o600


def test_values_without_times_are_spread_over_the_time_since_the_last_reading(
    tmp_path: Path, run: Path
) -> None:
    clock = TwoClocks()
    path = tmp_path / "version_0/metrics.csv"
    path.parent.mkdir()
    path.write_text("step,loss\n1,8\n")
    os.utime(path, ns=(0, clock.wall_ns - _SECOND))
    follower = MetricsDirectory(tmp_path, run, "n1", clock, since_ns=clock.wall_ns)
    follower.follow()
    clock.wait(40, threading.Event())
    with path.open("a") as file:
        file.write("2,4\n3,2\n4,1\n5,0.5\n")
    follower.follow()
    clock.wait(10, threading.Event())
    with path.open("a") as file:
        file.write("6,0.25")
    follower.follow(last=True)
    assert _series(read_metrics(run), "loss") == [(10, 4), (20, 2), (30, 1), (40, 0.5), (50, 0.25)]


def test_a_name_of_two_sources_stays_two_series(tmp_path: Path, run: Path) -> None:
    clock = TwoClocks()
    for name in ("train", "validation"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "events.out.tfevents.1").write_bytes(_events(1, tag="epoch_loss"))
    follower = MetricsDirectory(tmp_path, run, "n1", clock, since_ns=clock.wall_ns)
    follower.follow(last=True)
    # The run folder lies in the same directory; what is copied into it is not read again.
    assert set(read_metrics(run).names) == {"step", "epoch_loss", "validation/epoch_loss"}


def test_what_is_written_at_the_end_is_read_by_the_thread(tmp_path: Path, run: Path) -> None:
    path = tmp_path / "events.out.tfevents.1"
    follower = MetricsDirectory(path, run, "n1", TwoClocks(), since_ns=0)
    follower.poll()
    path.write_bytes(_events(1, 2))
    follower.close()
    assert [value for _, value in _series(read_metrics(run), "loss")] == [0.125, 0.25]


def test_a_file_of_json_lines_is_followed_from_its_end_and_others_from_now(tmp_path: Path) -> None:
    lines = tmp_path / "log.jsonl"
    assert _metrics_arguments(lines) == ["--metrics", str(lines), "--metrics-start", "0"]
    lines.write_text(json.dumps({"step": 1}) + "\n")
    assert _metrics_arguments(lines)[2:] == ["--metrics-start", "12"]
    for path in (tmp_path, tmp_path / "not-yet"):
        assert _metrics_arguments(path)[2] == "--metrics-since"
    (tmp_path / "events.out.tfevents.1").touch()
    assert _metrics_arguments(tmp_path / "events.out.tfevents.1")[2] == "--metrics-since"
