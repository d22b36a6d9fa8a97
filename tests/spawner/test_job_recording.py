"""Score of a job that has ended, within a time limit; an error never fails the job."""

import json
import os
import sys
import time
from pathlib import Path

import pytest

from gipfel_cluster.job import recording
from gipfel_cluster.job.recording import close_run
from gipfel_cluster.runs import RunFolder
from gipfel_extension.telemetry.metric_table import GPU_METRICS
from gipfel_extension.telemetry.sample import Device, Sample
from gipfel_extension.telemetry.store.segments import Provenance, SegmentWriter

GPU = Device("GPU-1", "gpu", "NVIDIA H100 80GB HBM3", 0, node="nid1")


@pytest.fixture
def run(tmp_path) -> RunFolder:
    folder = RunFolder.create(tmp_path, "alps", "1")
    origin = Provenance("nid1", "job", "nvml", simulated=False, interval=1.0, devices=(GPU,))
    writer = SegmentWriter(folder.telemetry, origin, start_ns=10**18)
    for second in range(900):
        values: dict[str, float | None] = dict.fromkeys(GPU_METRICS, 0.5)
        writer.write([Sample(10**18 + second * 10**9, second, GPU.uuid, values)])
    writer.close()
    folder.write_record({"ended": "2026-01-01T00:00:00+00:00", "nodes": ["nid1"]})
    return folder


def test_an_ended_run_gets_its_score_and_parquet(run):
    environment = {**os.environ, "GIPFEL_API_TOKEN": "secret"}
    assert close_run(run.path, environment, limit_s=120)
    saved = json.loads((run.path / "score.json").read_text())
    assert saved["score"] == pytest.approx(100 * 0.5 / 0.9, abs=0.1)
    assert [path.suffix for path in run.telemetry.glob("*.closed.*")] == [".parquet"]


def test_a_slow_or_failing_score_is_killed_and_changes_nothing(run, monkeypatch, tmp_path):
    slow = tmp_path / "slow"
    slow.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(600)\n")
    slow.chmod(0o700)
    before = sorted(path.name for path in run.telemetry.iterdir())
    for program, ended in ((slow, False), (Path("/bin/false"), False), (tmp_path / "gone", False)):
        monkeypatch.setattr(recording.sys, "executable", str(program))
        begun = time.monotonic()
        assert close_run(run.path, os.environ, limit_s=0.5) is ended
        assert time.monotonic() - begun < 60
    assert sorted(path.name for path in run.telemetry.iterdir()) == before
    assert not (run.path / "score.json").exists()


def test_parents_of_a_run_folder_are_private(tmp_path):
    folder = RunFolder.create(tmp_path / ".gipfel" / "runs", "alps", "1")
    for each in (folder.telemetry, folder.path, folder.path.parent, tmp_path / ".gipfel"):
        assert each.stat().st_mode & 0o777 == 0o700
