"""A recorder among everything that goes wrong: what was flushed stays, the reader says what is missing."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gipfel_cluster.job.other_nodes import Signs, other_nodes
from gipfel_extension.telemetry.events import KINDS, Event, read_event_files, read_events
from gipfel_extension.telemetry.imports import open_recording
from gipfel_extension.telemetry.live import LiveReader
from gipfel_extension.telemetry.metrics import read_metrics
from gipfel_extension.telemetry.ranks import gpus_by_rank, read_ranks
from gipfel_extension.telemetry.recorder import Recorder, Settings
from gipfel_extension.telemetry.recorder.metrics_file import MetricsFile
from gipfel_extension.telemetry.sample import Device, Sample
from gipfel_extension.telemetry.store.segments import read_samples
from gipfel_extension.telemetry.stream import SaturationFeed

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

import nvml_stand_in

_LIMIT_S = 60.0


def until(done: Any, seconds: float = _LIMIT_S) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := done()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


@contextmanager
def running(folder: Path, *arguments: object, **how: Any) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "gipfel_extension.telemetry.recorder", "--telemetry", str(folder)]
    command += ["--node", "n1", "--interval", "0.1", "--flush", "0.2", *map(str, arguments)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **how)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.communicate(timeout=10)


def fill(path: Path) -> None:
    """A file of all the room that there is."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(512)):
            pass


def kinds(folder: Path) -> list[str]:
    return [event.kind for event in read_events(folder)]


class TwoClocks:
    """A wall clock that can be set, beside one that can't."""

    def __init__(self) -> None:
        self.wall_ns = 1_700_000_000 * 10**9
        self.monotonic = 10**9

    def time_ns(self) -> int:
        return self.wall_ns

    def monotonic_ns(self) -> int:
        return self.monotonic

    def wait(self, seconds: float, ended: threading.Event) -> bool:
        self.wall_ns += int(seconds * 1e9)
        self.monotonic += int(seconds * 1e9)
        return ended.is_set()


class OneGpu:
    """A GPU that counts its readings, and says what its clocks say."""

    name = "one"
    simulated = False
    devices = (Device("GPU-1", "gpu", "GPU", 0),)

    def __init__(self, clock: TwoClocks) -> None:
        self.clock = clock
        self.reads = 0
        self.reasons = 0.0

    def read(self) -> list[Sample]:
        self.reads += 1
        values = {"SM_ACTIVE": self.reads / 1024, "CLOCKS_EVENT_REASONS": self.reasons}
        return [Sample(self.clock.time_ns(), self.clock.monotonic_ns(), "GPU-1", values)]

    def close(self) -> None:
        pass


def test_a_clock_set_back_an_hour_loses_nothing_and_is_told(tmp_path: Path) -> None:
    clock, never = TwoClocks(), threading.Event()
    source = OneGpu(clock)
    recorder = Recorder([source], Settings(tmp_path, "n1"), clock=clock)
    for tick in range(30):
        if tick == 10:
            clock.wall_ns -= 3600 * 10**9
        if tick == 20:
            clock.wall_ns += 7200 * 10**9
        if tick == 25:
            clock.wait(12.0, never)
        recorder.tick()
        clock.wait(1.0, never)
    recorder.close()
    table = read_samples(tmp_path)
    assert sorted(table.of("GPU-1")["SM_ACTIVE"] * 1024) == pytest.approx(np.arange(1, 31), rel=1e-3)
    # Within a segment times go forward; each step begins another.
    assert [each.state for each in table.segments] == ["closed"] * 3
    told = [event for event in read_events(tmp_path) if event.kind == "clock_step"]
    assert sorted(event.message for event in told) == [
        "The clock was set back by 3600.0 s.",
        "The clock was set forward by 7200.0 s.",
    ]
    # Who scores the run is told, too.
    notes = open_recording(tmp_path).notes
    assert [note for note in notes if "The clock was set" in note and note.startswith("n1: ")]
    assert [note for note in notes if "stood still" in note]
    (stalled,) = [event.message for event in read_events(tmp_path) if event.kind == "recorder_stalled"]
    assert "13.0 s" in stalled


def test_a_live_view_goes_on_after_the_clock_was_set_back(tmp_path: Path) -> None:
    clock, never = TwoClocks(), threading.Event()
    recorder = Recorder([OneGpu(clock)], Settings(tmp_path, "n1", flush=0.5), clock=clock)
    feed = SaturationFeed(tmp_path, clock=clock)
    for tick in range(40):
        if tick == 20:
            clock.wall_ns -= 3600 * 10**9
        recorder.tick()
        clock.wait(1.0, never)
    # Of the views one looked on all the time, the other was opened after it.
    for each in (feed, SaturationFeed(tmp_path, clock=clock)):
        clock.wait(5.0, never)
        each.poll(0.0)
        times = each.table().of("GPU-1")["time_ns"]
        assert len(times) == 20
        assert 0 < clock.wall_ns - times[-1] < 60 * 10**9
        each.close()
    recorder.close()


def test_a_clock_that_is_steered_is_no_step(tmp_path: Path) -> None:
    clock = TwoClocks()
    recorder = Recorder([OneGpu(clock)], Settings(tmp_path, "n1", interval=60.0), clock=clock)
    for _ in range(20):
        recorder.tick()
        clock.wait(60.0, threading.Event())
        clock.wall_ns += 30_000_000
    recorder.close()
    assert "clock_step" not in kinds(tmp_path)


def test_a_gpu_that_is_slowed_down_is_told_once(tmp_path: Path) -> None:
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


def test_sigstop_leaves_a_gap_and_a_whole_record(tmp_path: Path) -> None:
    with running(tmp_path, "--source", "synthetic:idle:1") as process:
        assert until(lambda: read_samples(tmp_path).rows > 3)
        process.send_signal(signal.SIGSTOP)
        before = read_samples(tmp_path).rows
        stopped = time.monotonic()
        assert not until(lambda: read_samples(tmp_path).rows > before + 3, 2.0)
        process.send_signal(signal.SIGCONT)
        gap = time.monotonic() - stopped
        assert until(lambda: read_samples(tmp_path).rows > before + 3)
        process.terminate()
        assert process.wait(20) == 0
    table = read_samples(tmp_path)
    steps = np.diff(table.of(table.gpus[0].uuid)["time_ns"]) / 1e9
    # What was missed is left out, not made up for.
    assert steps.max() >= gap - 0.5
    assert [each.state for each in table.segments] == ["closed"]


def test_a_source_that_gives_no_numbers_ends_nothing(tmp_path: Path) -> None:
    clock = TwoClocks()
    source = OneGpu(clock)
    recorder = Recorder([source], Settings(tmp_path, "n1", flush=0.5), clock=clock)
    for reasons in (0.0, "many", 0.0, float("nan"), 0.0):
        source.reasons = reasons  # type: ignore[assignment]
        recorder.tick()
        clock.wait(1.0, threading.Event())
    recorder.close()
    levels = sorted(read_samples(tmp_path).of("GPU-1")["SM_ACTIVE"] * 1024)
    assert levels == pytest.approx([1, 3, 4, 5], rel=1e-3)
    assert {"source_lost", "samples_lost"} <= set(kinds(tmp_path))


def test_without_whoever_started_it_a_recorder_ends_at_once(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(20)
    # Named, it is known also where it ended while the recorder was loaded.
    with running(tmp_path, "--source", "host", f"--with-parent={gone.pid}") as process:
        assert process.wait(20) == 0
    assert read_samples(tmp_path).rows == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a small file system")
def test_a_full_disk_costs_no_sample_when_it_has_room_again(tmp_path: Path) -> None:
    folder = tmp_path / "telemetry"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "gipfel-test", str(folder)], check=False
    )
    if mounted.returncode:
        pytest.skip("this machine mounts no tmpfs")
    try:
        with running(folder, "--source", "synthetic:training:8") as process:
            assert until(lambda: read_samples(folder).rows > 8)
            fill(folder / "ballast")
            assert process.stderr is not None
            line = process.stderr.readline()
            assert "The disk is full" in line
            flushed = read_samples(folder).rows
            (folder / "ballast").unlink()
            assert until(lambda: read_samples(folder).rows > flushed + 80)
            process.terminate()
            assert process.wait(20) == 0
        table = read_samples(folder)
        steps = np.diff(table.of(table.gpus[0].uuid)["time_ns"]) / 1e9
        assert steps.max() < 2.0, steps
        assert {"disk_full", "disk_back"} <= set(kinds(folder))
        assert "samples_lost" not in kinds(folder)
        # What was begun while nothing could be written is not left behind as files of nothing.
        assert [each.state for each in table.segments].count("unreadable") == 0
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_two_recorders_of_one_name_keep_apart(tmp_path: Path) -> None:
    folder, sockets = tmp_path / "telemetry", tmp_path / "s"
    sockets.mkdir()
    more = ("--source", "host", "--sockets", sockets)
    with running(folder, *more) as first:
        assert until(lambda: read_samples(folder).rows > 2)
        with running(folder, *more) as second, LiveReader(sockets) as reader:
            heard: set[str] = set()

            def both() -> bool:
                tick = reader.receive(1.0)
                heard.update({tick.recorder} if tick else set())
                return len(heard) == 2

            assert until(both), heard
            for process in (first, second):
                process.terminate()
                assert process.wait(20) == 0
    table = read_samples(folder)
    assert sorted((each.recorder, each.state) for each in table.segments) == [
        ("job", "closed"),
        ("job-2", "closed"),
    ]
    assert kinds(folder).count("second_recorder") == 1
    # The name is free again, also after a recorder that was killed.
    with running(folder, *more) as third:
        assert until(lambda: [each.recorder for each in read_samples(folder).segments].count("job") == 2)
        third.kill()
    assert sorted(each.recorder for each in read_samples(folder).segments) == ["job", "job", "job-2"]


def test_ranks_xids_and_metrics_on_request_over_the_c_interface(tmp_path: Path) -> None:
    library = nvml_stand_in.build(tmp_path)
    folder, pids, xids = tmp_path / "telemetry", tmp_path / "pids", tmp_path / "xids"
    environment = {
        **nvml_stand_in.environment(library, gpus=4),
        "NVML_STAND_IN_PIDS": str(pids),
        "NVML_STAND_IN_XIDS": str(xids),
        "CUDA_VISIBLE_DEVICES": "0,1,3",
        "SLURM_JOB_ID": "48812",
    }
    nap = [sys.executable, "-c", "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"]
    ranks = [
        subprocess.Popen(
            nap, env={**os.environ, "RANK": str(rank), "SLURM_JOB_ID": job}, stdin=subprocess.PIPE
        )
        for rank, job in ((0, "48812"), (1, "48812"), (2, "48812"), (7, "4"))
    ]
    uuids = [f"GPU-57a9d000-0000-4000-8000-{gpu:012}" for gpu in range(4)]
    pids.write_text(
        f"0 {ranks[0].pid}\n1 {ranks[1].pid}\n2 {ranks[2].pid}\n3 {ranks[1].pid}\n3 {os.getpid()}\n"
    )
    xids.write_text("1 79\n2 13\n3 31\n")
    more = [
        "--source",
        "nvml",
        "--metric",
        "NVDEC0_ACTIVE",
        "--metric",
        "DCGM_FI_DEV_MEM_CLOCK",
        "--metric",
        "SM_ACTIV",
    ]
    try:
        with running(folder, *more, env=environment) as process:
            assert until(lambda: read_ranks(folder))
            assert until(lambda: kinds(folder).count("xid") >= 2)
            assert until(lambda: read_samples(folder).rows > 6)
            process.terminate()
            assert process.wait(20) == 0
            assert process.stderr is not None
            assert "no metric 'SM_ACTIV'" in process.stderr.read()
    finally:
        for each in ranks:
            each.communicate(b"\n", timeout=20)
    places = read_ranks(folder)
    # Rank 2 computes on a GPU that isn't this recorder's; rank 7 is another job's.
    assert gpus_by_rank(places) == {0: [uuids[0]], 1: [uuids[1], uuids[3]]}
    assert [(each.rank, each.gpu_uuid) for each in places if each.gpu_uuid is None] == [(2, None)]
    assert {each.pid for each in places} == {each.pid for each in ranks[:3]}
    found = {
        (event.device, event.message.partition(":")[0])
        for event in read_events(folder)
        if event.kind == "xid"
    }
    assert found == {(uuids[1], "The driver reports XID 79"), (uuids[3], "The driver reports XID 31")}
    table = read_samples(folder)
    assert [device.uuid for device in table.gpus] == [uuids[0], uuids[1], uuids[3]]
    columns = table.of(uuids[0])
    assert np.nanmax(columns["MEM_CLOCK"]) == 1980
    assert np.isfinite(columns["NVDEC0_ACTIVE"]).any()


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
    # Begun anew, as by a second run of the program.
    path.write_text('{"loss": 0.125}\n')
    follower.poll()
    (run / "metrics.jsonl").open("ab").write(b'{"torn')
    (tmp_path / "new").write_text('{"loss": 0.0625}\n{"loss": 0.03125}\n')
    (tmp_path / "new").replace(path)
    follower.poll()
    found = read_metrics(run)
    loss = found.of("loss", None)
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
    assert found.of("tps") is not None
    assert found.damaged == 1
    # A pipe would keep the recorder waiting for whoever writes into it.
    path.unlink()
    follower.poll()
    os.mkfifo(path)
    with pytest.raises(OSError, match="no file"):
        follower.poll()


def test_events_of_others_and_half_lines_are_counted_not_fatal(tmp_path: Path) -> None:
    one = Event(5, "n1", "xid", "GPU-1", "The driver reports XID 79.")
    two = Event(3, "n2", "of a later version", "", "Something.")
    lines = [
        json.dumps({**one.to_json(), "more": 1}),
        json.dumps(two.to_json()),
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
    assert found.damaged == 8
    assert read_events(tmp_path / "nowhere") == ()
    (tmp_path / "n1-job.ranks.json").write_text('[{"rank": 1}]')
    assert read_ranks(tmp_path) == ()


def test_a_node_that_joins_late_one_that_is_lost_and_one_that_comes_back(tmp_path: Path) -> None:
    signs = Signs(("n2", "n3", "n3-a"), 30.0, 100.0)

    def write(node: str, size: int, number: int = 1_700_000_000_000_000_000) -> None:
        (tmp_path / f"{node}-{number}-0.arrows").write_bytes(bytes(size))

    assert signs.look(tmp_path, 110.0) == []
    write("n2", 10)
    write("n3-a", 10)
    assert signs.look(tmp_path, 120.0) == []
    assert [each[:2] for each in signs.look(tmp_path, 131.0)] == [("node_lost", "n3")]
    write("n2", 20)
    assert [each[:2] for each in signs.look(tmp_path, 151.0)] == [("node_lost", "n3-a")]
    write("n3", 5)
    write("n3-a", 5, 1_700_000_000_000_000_009)
    told = signs.look(tmp_path, 181.0)
    assert [each[:2] for each in told] == [("late_join", "n3"), ("node_back", "n3-a")]
    assert told[0][2] == "The recorder on n3 began 81 s after the job."
    assert {each[0] for each in told} <= set(KINDS)
    assert [each[:2] for each in signs.look(tmp_path, 182.0)] == [("node_lost", "n2")]
    assert signs.look(tmp_path / "nowhere", 183.0) == []


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
def test_which_nodes_are_the_others(environment: dict[str, str], others: tuple[str, ...]) -> None:
    assert other_nodes(environment, "n1") == others
