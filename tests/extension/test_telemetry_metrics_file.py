"""Metrics that a recorder takes from a file of the workload."""

import os
from pathlib import Path

import pytest
from recorder_process import TwoClocks

from gipfel_extension.recorder.metric_files import MetricsFile
from gipfel_extension.telemetry.user_metrics import read_metrics


def test_metrics_from_a_file_of_the_workload(tmp_path: Path) -> None:
    clock = TwoClocks()
    path, run = tmp_path / "train.jsonl", tmp_path / "run"
    run.mkdir()
    path.write_text('{"loss": 99.0}\n')
    follower = MetricsFile(path, run, "n1", clock)
    now = clock.wall_ns
    with path.open("a") as file:
        file.write(
            '{"step": 1, "loss": 0.5, "note": "x", "rank": 3}\n{"timestamp": 1700000050.5, "loss": 0.25'
        )
        file.flush()
        follower.poll()
        file.write(
            "}\nnonsense\n[1]\n{}\n" + '{"loss": NaN, "time_ns": true}\n{"values": {"tps": 10}, "time": -5}\n'
        )
    follower.poll()
    # Cut off, and longer than before when it is looked at again.
    path.write_text('{"loss": 0.75, "note": "' + "y" * 400 + '"}\n')
    follower.poll()
    # Truncated, as by a second run of the program.
    path.write_text('{"loss": 0.125}\n')
    follower.poll()
    (run / "metrics.jsonl").open("ab").write(b'{"torn')
    (tmp_path / "new").write_text('{"loss": 0.0625}\n{"loss": 0.03125}\n')
    (tmp_path / "new").replace(path)
    follower.poll()
    found = read_metrics(run)
    loss = found.find("loss", None)
    assert loss is not None
    assert sorted(each.name for each in found.series if each.rank == 3) == ["loss", "step"]
    values = {
        (int(t), float(v))
        for each in found.series
        if each.name == "loss"
        for t, v in zip(each.time_ns, each.values, strict=True)
    }
    assert values == {
        (now, 0.5),
        (1_700_000_050_500_000_000, 0.25),
        (now, 0.75),
        (now, 0.125),
        (now, 0.0625),
        (now, 0.03125),
    }
    assert found.find("tps") is not None
    assert found.damaged_lines == 1
    # A pipe would block the recorder until a writer opens it.
    path.unlink()
    follower.poll()
    os.mkfifo(path)
    with pytest.raises(OSError, match="not a regular file"):
        follower.poll()
