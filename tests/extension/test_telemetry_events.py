"""Events beside the samples: throttled GPUs, events of other writers and other nodes."""

import json
import threading
from dataclasses import asdict
from pathlib import Path

import pytest
from recorder_process import OneGpu, TwoClocks

from gipfel_cluster.job.remote_recorders import NodeLiveness, remote_nodes
from gipfel_extension.recorder import Recorder, Settings
from gipfel_extension.telemetry.events import KINDS, Event, read_event_files, read_events
from gipfel_extension.telemetry.ranks import read_ranks


def test_throttled_gpu_gets_one_event(tmp_path: Path) -> None:
    clock = TwoClocks()
    source = OneGpu(clock)
    recorder = Recorder([source], Settings(tmp_path, "n1"), clock=clock)
    for reasons in (0x4, 0x40, 0x44, 0x40, 0x0, 0x40):
        source.reasons = float(reasons)
        recorder.tick()
        clock.wait(1.0, threading.Event())
    recorder.close()
    (event,) = [event for event in read_events(tmp_path) if event.kind == "throttle"]
    assert (event.device, event.node) == ("GPU-1", "n1")
    assert "temperature" in event.message


def test_damaged_event_lines_are_counted(tmp_path: Path) -> None:
    one = Event(5, "n1", "xid", "GPU-1", "The driver reports XID 79.")
    two = Event(3, "n2", "of a later version", "", "Something.")
    lines = [
        json.dumps({**asdict(one), "more": 1}),
        json.dumps(asdict(two)),
        '{"time_ns": 1}',
        "[]",
        "nul\0l",
        "1",
    ]
    lines += [
        "[" * 100_000,
        '{"time_ns": 1e400, "node": "", "kind": "", "message": ""}',
        '{"time_ns": 1, "no',
    ]
    (tmp_path / "n1-job.events.jsonl").write_text("\n".join(lines))
    (tmp_path / "n2-job.events.jsonl").mkdir()
    found = read_event_files(tmp_path)
    assert found.events == (two, one)
    assert found.damaged_lines == 8
    assert read_events(tmp_path / "nowhere") == ()
    (tmp_path / "n1-job.ranks.json").write_text('[{"rank": 1}]')
    assert read_ranks(tmp_path) == ()


def test_a_node_that_joins_late_one_that_is_lost_and_one_that_comes_back(tmp_path: Path) -> None:
    signs = NodeLiveness(("n2", "n3", "n3-a"), 30.0, 100.0)

    def write(node: str, size: int, number: int = 1_700_000_000_000_000_000) -> None:
        (tmp_path / f"{node}-{number}-0.arrows").write_bytes(bytes(size))

    assert signs.check(tmp_path, 110.0) == []
    write("n2", 10)
    write("n3-a", 10)
    assert signs.check(tmp_path, 120.0) == []
    assert [each[:2] for each in signs.check(tmp_path, 131.0)] == [("node_lost", "n3")]
    write("n2", 20)
    assert [each[:2] for each in signs.check(tmp_path, 151.0)] == [("node_lost", "n3-a")]
    write("n3", 5)
    write("n3-a", 5, 1_700_000_000_000_000_009)
    told = signs.check(tmp_path, 181.0)
    assert [each[:2] for each in told] == [("late_join", "n3"), ("node_back", "n3-a")]
    assert told[0][2] == "The recorder on n3 started 81 s after the job."
    assert {each[0] for each in told} <= set(KINDS)
    assert [each[:2] for each in signs.check(tmp_path, 182.0)] == [("node_lost", "n2")]
    assert signs.check(tmp_path / "nowhere", 183.0) == []


@pytest.mark.parametrize(
    ("environment", "others"),
    [
        ({}, ()),
        ({"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n[1-3]"}, ("n2", "n3")),
        ({"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n1"}, ()),
        ({"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n[1"}, ()),
        ({"SLURM_JOB_NODELIST": "n[1-3]"}, ()),
    ],
)
def test_other_nodes_of_the_job(environment: dict[str, str], others: tuple[str, ...]) -> None:
    assert remote_nodes(environment, "n1") == others
