"""Events that become messages: idle GPUs, a checkpoint that won't fit, a notebook or launch that failed."""

import contextlib
import errno
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from gipfel_cluster.notify.journal import read_events as read_journal
from gipfel_extension.recorder.journal import Journal
from gipfel_extension.recorder.loop import IDLE_S, IdleWatch
from gipfel_extension.telemetry.events import read_events, report_failure
from gipfel_extension.telemetry.sample import Device, Sample
from gipfel_extension.telemetry.sources import SystemClock
from gipfel_extension.training.launches.hang_watch import report_end
from gipfel_extension.training.record import LaunchState
from gipfel_widgets.checkpoint_directory import SpaceWatch

MINUTE = 60.0


class Node:
    """A node with GPUs whose activity is given minute by minute."""

    def __init__(self, folder: Path, *gpus: Device) -> None:
        self.folder = folder
        self.journal = Journal(folder, "n1", "job", SystemClock())
        self.gpus = gpus or (_gpu("g0"), _gpu("g1"))
        self.watch = IdleWatch(self.journal, (*self.gpus, Device("h", "host", "host", None)))
        self.now = 0.0

    def minutes(self, count: int, values: Sequence[float | None], metric: str = "GPU_UTIL") -> int:
        """Pass some minutes; return the number of events until now."""
        for _ in range(count):
            self.now += MINUTE
            now_ns = int(self.now * 1e9)
            self.watch.check(
                Sample(now_ns, now_ns, gpu.uuid, {metric: value})
                for gpu, value in zip(self.gpus, values, strict=True)
            )
        self.journal.write()
        return len(read_events(self.folder))


def _gpu(uuid: str, *, simulated: bool = False) -> Device:
    return Device(uuid, "gpu", "H100", 0, simulated=simulated)


def test_idle_gpus_are_reported_once_after_twenty_minutes(tmp_path: Path) -> None:
    node = Node(tmp_path)
    assert node.minutes(1, [0.9, 0.9]) == 0
    assert node.minutes(int(IDLE_S / MINUTE) - 1, [0.04, 0.0]) == 0
    assert node.minutes(1, [0.0, 0.0]) == 1
    assert node.minutes(60, [0.0, 0.0]) == 1
    assert node.minutes(1, [0.5, 0.0]) == 1
    assert node.minutes(21, [0.0, 0.0]) == 2
    [first, _] = read_events(tmp_path)
    assert (first.kind, first.message) == ("gpus_idle", "All 2 GPUs have been below 5% for 20 minutes.")


def test_one_busy_or_unknown_gpu_is_enough(tmp_path: Path) -> None:
    node = Node(tmp_path)
    assert node.minutes(60, [0.0, 0.06]) == 0
    assert node.minutes(60, [0.0, None]) == 0
    assert node.minutes(60, [0.0, 0.0], "A_METRIC_WITHOUT_ACTIVITY") == 0


def test_simulated_gpus_and_nodes_without_gpus_are_never_idle(tmp_path: Path) -> None:
    assert Node(tmp_path, _gpu("s", simulated=True)).minutes(60, [0.0]) == 0
    node = Node(tmp_path)
    node.watch = IdleWatch(node.journal, ())
    assert node.minutes(60, [0.0, 0.0]) == 0


def test_a_checkpoint_that_wont_fit_is_reported_until_it_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, directory = tmp_path / "run", tmp_path / "checkpoints"
    (run / "telemetry").mkdir(parents=True)
    step = directory / "step-1"
    step.mkdir(parents=True)
    with (step / "rank-0").open("wb") as file:
        file.truncate(3 << 30)
    free = SimpleNamespace(f_bavail=1 << 18, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda _: free)
    watch = SpaceWatch(directory, {"GIPFEL_RUN": str(run), "GIPFEL_NODE": "n1"})
    assert [watch.check(step), watch.check(step)] == [False, False]
    [event] = read_events(run / "telemetry")
    assert (event.kind, event.node) == ("checkpoint_space", "n1")
    assert "has 1.0 GiB free, and a checkpoint needs 3.0 GiB" in event.message
    free.f_bavail = 1 << 20
    assert watch.check(step)
    free.f_bavail = 1
    assert not watch.check(step)
    assert len(read_events(run / "telemetry")) == 2
    assert SpaceWatch(directory, {}).check(tmp_path / "missing")


def test_a_checkpoint_that_met_a_full_disk_is_reported_once(tmp_path: Path) -> None:
    run, directory = tmp_path / "run", tmp_path / "small"
    (run / "telemetry").mkdir(parents=True)
    directory.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", "size=4m", "gipfel-test", str(directory)]
    if os.geteuid() or subprocess.run(argv, check=False, capture_output=True).returncode:
        pytest.skip("Nothing can be mounted here.")
    try:
        watch = SpaceWatch(directory, {"GIPFEL_RUN": str(run), "GIPFEL_NODE": "n1"})
        # Another error on a disk with space; PyTorch's own error has no number.
        watch.check_failure(ValueError("a tensor"))
        assert not (run / "telemetry/n1-checkpoints.events.jsonl").exists()
        with (directory / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        watch.check_failure(RuntimeError("unexpected pos 64 vs 0"))
        watch.check_failure(RuntimeError("unexpected pos 64 vs 0"))
        [event] = read_events(run / "telemetry")
        assert event.kind == "checkpoint_space"
        assert event.message.startswith(f"{directory} or your quota there is full, so a checkpoint was not")
        assert sorted(each.name for each in directory.iterdir()) == ["ballast"]
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def test_an_exceeded_quota_is_known_by_its_error(tmp_path: Path) -> None:
    (tmp_path / "telemetry").mkdir()
    watch = SpaceWatch(tmp_path, {"GIPFEL_RUN": str(tmp_path), "GIPFEL_NODE": "n1"})
    error = RuntimeError("PyTorch's")
    error.__cause__ = OSError(errno.EDQUOT, "Disk quota exceeded")
    watch.check_failure(error)
    assert [each.kind for each in read_events(tmp_path / "telemetry")] == ["checkpoint_space"]


def test_a_failure_is_in_the_run_folder_and_nowhere_without_one(tmp_path: Path) -> None:
    report_failure({}, "no run")
    report_failure({"GIPFEL_RUN": str(tmp_path / "missing")}, "no folder")
    (tmp_path / "telemetry").mkdir()
    report_failure({"GIPFEL_RUN": str(tmp_path), "GIPFEL_NODE": "n/1"}, "Cell 3: x" * 1000)
    [event] = read_events(tmp_path / "telemetry")
    assert event.kind == "workload_failed"
    assert len(event.message) == 2000


@pytest.mark.parametrize(
    ("outcome", "kind"), [("failed", "failed"), ("timeout", "failed"), ("stopped", "ended")]
)
def test_a_launch_in_a_job_reports_its_end(tmp_path: Path, outcome: str, kind: str) -> None:
    environment = {"HOME": str(tmp_path)}
    folder = tmp_path / "runs/alps-7/launches/2"
    run = folder.parents[1]
    (run / "telemetry").mkdir(parents=True)
    state = LaunchState.model_validate(
        {
            "phase": "ended", "outcome": outcome, "number": 2, "name": "llama", "run": str(run),
            "reason": "rank 1 on n2: ValueError: no", "started_ns": 10**18, "ended_ns": 10**18 + 60 * 10**9,
        }
    )  # fmt: skip
    report_end(folder, state, environment)
    [event] = read_journal(environment)
    assert (event.kind, event.title) == (kind, "Launch llama (alps-7/2)")
    assert (event.workload, event.run) == ("launch:alps-7/2", "alps-7")
    assert event.reason == "rank 1 on n2: ValueError: no"


@pytest.mark.parametrize(("outcome", "count"), [("completed", 0), ("stopped", 0), ("failed", 1)])
def test_a_short_launch_is_reported_only_if_it_failed(tmp_path: Path, outcome: str, count: int) -> None:
    environment = {"HOME": str(tmp_path)}
    state = LaunchState.model_validate(
        {"phase": "ended", "outcome": outcome, "number": 2, "started_ns": 10**18, "ended_ns": 10**18 + 10**9}
    )
    report_end(tmp_path / "launches/2", state, environment)
    assert len(read_journal(environment)) == count


def test_a_launch_in_a_job_of_its_own_leaves_the_reason_to_its_job(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "GIPFEL_NODE": "n1"}
    run = tmp_path / "runs/alps-8"
    (run / "telemetry").mkdir(parents=True)
    state = LaunchState.model_validate(
        {
            "phase": "ended",
            "outcome": "failed",
            "number": 1,
            "in_job": False,
            "run": str(run),
            "reason": "why",
        }
    )
    report_end(tmp_path / "runs/launches/1", state, environment)
    assert read_journal(environment) == ()
    assert [each.message for each in read_events(run / "telemetry")] == ["why"]
