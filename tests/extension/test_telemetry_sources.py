"""Sources: the host for real, simulated and replayed ones, and which GPUs a job may see."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gipfel_extension.telemetry.metric_table import GPU_METRICS, HOST_METRICS
from gipfel_extension.telemetry.sample import Device, Sample, SampleTable, SourceError
from gipfel_extension.telemetry.sources import SourceRequest, open_source
from gipfel_extension.telemetry.sources.host import HostSource, ProcessTree, job_cgroup
from gipfel_extension.telemetry.sources.job_gpus import select_uuids
from gipfel_extension.telemetry.sources.simulated import ReplaySource, SyntheticSource
from gipfel_extension.telemetry.store.segments import write_parquet


class SetClock:
    """A clock that stands until it is moved."""

    def __init__(self, time_ns: int = 0) -> None:
        self.now_ns = time_ns

    def time_ns(self) -> int:
        return self.now_ns

    def monotonic_ns(self) -> int:
        return self.now_ns

    def wait(self, seconds: float, ended: threading.Event) -> bool:
        self.now_ns += int(seconds * 1e9)
        return ended.is_set()


def spin(seconds: float) -> None:
    ends = time.process_time() + seconds
    while time.process_time() < ends:
        pass


def test_host_sees_this_process_at_work():
    source = open_source("host", SourceRequest(root_pid=os.getpid(), environment={"GIPFEL_NODE": "n1"}))
    (first,) = source.read()
    assert first.values["CPU_UTIL"] is None
    spin(0.3)
    (second,) = source.read()
    assert source.devices[0].uuid == second.device == "host:n1"
    assert set(second.values) == set(HOST_METRICS)
    seconds = (second.monotonic_ns - first.monotonic_ns) / 1e9
    assert second.values["CPU_CORES_USED"] * seconds == pytest.approx(0.3, abs=0.15)
    assert 0 < second.values["CPU_UTIL"] <= 1
    assert 10e6 < second.values["MEMORY_USED"] < second.values["MEMORY_TOTAL"]


def test_children_that_have_ended_count():
    tree = ProcessTree(os.getpid())
    before = tree.usage()["CPU_CORES_USED"]
    code = "import time\nwhile time.process_time() < 0.4: pass"
    subprocess.run([sys.executable, "-c", code], check=True)
    # The kernel counts in hundredths.
    assert tree.usage()["CPU_CORES_USED"] - before >= 0.35


def test_other_processes_are_read_once_and_descendants_always():
    tree = ProcessTree(os.getpid())
    tree.usage()
    child = subprocess.Popen(
        [sys.executable, "-c", "x = bytearray(200_000_000); x[::4096] = x[::4096]; input()"], stdin=-1
    )
    try:
        before = tree.usage()["MEMORY_USED"]
        deadline = time.monotonic() + 10
        while tree.usage()["MEMORY_USED"] - before < 150e6 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert tree.usage()["MEMORY_USED"] - before > 150e6
    finally:
        child.communicate(b"\n", timeout=10)


def test_ended_job_has_missing_values():
    child = subprocess.Popen(["true"])
    child.wait()
    source = HostSource(SourceRequest(root_pid=child.pid, environment={"GIPFEL_NODE": "n1"}))
    source.read()
    (sample,) = source.read()
    assert sample.values["CPU_CORES_USED"] is None
    assert sample.values["MEMORY_USED"] is None


def fake_job(folder: Path) -> tuple[Path, Path]:
    """Files of procfs and cgroup v2 as Slurm 24 lays them out for a batch step."""
    proc, cgroups = folder / "proc", folder / "cgroup"
    step = "system.slice/slurmstepd.scope/job_48812/step_batch/user/task_0"
    (proc / "77").mkdir(parents=True)
    (proc / "77/cgroup").write_text(f"0::/{step}\n")
    (proc / "meminfo").write_text("MemTotal:       500000000 kB\n")
    (proc / "net").mkdir()
    (proc / "net/dev").write_text(
        "Inter-| Receive | Transmit\n face |bytes |bytes\n"
        "    lo: 999 0 0 0 0 0 0 0 999 0 0 0 0 0 0 0\n"
        "  hsn0:1000 0 0 0 0 0 0 0 2000 0 0 0 0 0 0 0\n"
    )
    job = cgroups / "system.slice/slurmstepd.scope/job_48812"
    (cgroups / step).mkdir(parents=True)
    (job / "cpu.stat").write_text("usage_usec 1000000\nuser_usec 1\n")
    (job / "cpu.max").write_text("400000 100000\n")
    (job / "memory.current").write_text("9000000000\n")
    (job / "memory.stat").write_text("anon 1\ninactive_file 1000000000\n")
    (job / "memory.max").write_text("max\n")
    (job.parent / "memory.max").write_text("64000000000\n")
    (job / "io.stat").write_text("259:0 rbytes=1000 wbytes=500 rios=1\n8:0 rbytes=1000 wbytes=0 rios=1\n")
    (job / "cpu.pressure").write_text("some avg10=25.50 avg60=0 avg300=0 total=1\nfull avg10=0 total=0\n")
    return proc, cgroups


def test_a_slurm_job_is_measured_by_its_cgroup(tmp_path):
    _, cgroups = fake_job(tmp_path)
    clock = SetClock()
    source = HostSource(
        SourceRequest(root_pid=77, environment={"GIPFEL_NODE": "n1"}, clock=clock),
        root=tmp_path,
        cgroups=cgroups,
    )
    assert source.devices[0].scope == "job cgroup"
    source.read()
    clock.now_ns = 2 * 10**9
    job = cgroups / "system.slice/slurmstepd.scope/job_48812"
    (job / "cpu.stat").write_text("usage_usec 2000000\n")
    (job / "io.stat").write_text("259:0 rbytes=5000 wbytes=500\n8:0 rbytes=1000 wbytes=2000\n")
    (sample,) = source.read()
    assert sample.values["CPU_CORES_USED"] == pytest.approx(0.5)
    assert sample.values["MEMORY_USED"] == 8e9
    assert sample.values["MEMORY_TOTAL"] == 64e9
    assert sample.values["IO_READ_BYTES"] == 2000
    assert sample.values["IO_WRITE_BYTES"] == 1000
    assert sample.values["PRESSURE_CPU"] == pytest.approx(0.255)
    assert sample.values["PRESSURE_MEMORY"] is None
    assert sample.values["NET_TX_BYTES"] == 0


def test_io_that_a_cgroup_does_not_count_is_that_of_the_jobs_processes(tmp_path):
    proc, cgroups = fake_job(tmp_path)
    clock = SetClock()
    source = HostSource(
        SourceRequest(root_pid=77, environment={"GIPFEL_NODE": "n1"}, clock=clock),
        root=tmp_path,
        cgroups=cgroups,
    )
    (proc / "77/stat").write_text("77 (python) S 1 " + "0 " * 40)
    (proc / "77/io").write_text("rchar: 9\nwchar: 9\nread_bytes: 0\nwrite_bytes: 0\n")
    clock.now_ns = 10**9
    source.read()
    # Written to a network file system: the cgroup's block devices saw nothing of it.
    (proc / "77/io").write_text("rchar: 9\nwchar: 9\nread_bytes: 0\nwrite_bytes: 6000000\n")
    clock.now_ns = 3 * 10**9
    (sample,) = source.read()
    assert sample.values["IO_WRITE_BYTES"] == 3e6
    assert sample.values["IO_READ_BYTES"] == 0


def test_cgroup_outside_of_a_job_is_not_used(tmp_path):
    proc, cgroups = fake_job(tmp_path)
    (proc / "77/cgroup").write_text("0::/system.slice/sshd.service\n")
    assert job_cgroup(77, proc=proc, mount=cgroups) is None
    (proc / "77/cgroup").write_text("4:memory:/slurm/uid_1000/job_48812\n0::/\n")
    assert job_cgroup(77, proc=proc, mount=cgroups) is None


UUIDS = ["GPU-aaaa-1", "GPU-aabb-2", "MIG-cccc-3"]


@pytest.mark.parametrize(
    ("selection", "seen"),
    [
        (None, UUIDS),
        ("all", UUIDS),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("1", ["GPU-aabb-2"]),
        ("2, 0", ["MIG-cccc-3", "GPU-aaaa-1"]),
        ("0,7,1", ["GPU-aaaa-1"]),
        ("0,0", []),
        ("GPU-aab", ["GPU-aabb-2"]),
        ("GPU-aa", []),
        ("MIG-cccc-3", ["MIG-cccc-3"]),
        ("GPU-aaaa-1,garbage,1", ["GPU-aaaa-1"]),
    ],
)
def test_cuda_visible_devices(selection, seen):
    assert list(select_uuids(UUIDS, selection)) == seen


@pytest.mark.parametrize("name", ["training", "idle", "starved"])
def test_simulated_sources_repeat_themselves(name):
    one, two = (SyntheticSource(name, clock=SetClock(1_700_000_000 * 10**9)) for _ in range(2))
    assert one.read() == two.read()
    assert one.simulated
    assert all(device.simulated for device in one.devices)
    for sample in one.read():
        assert set(sample.values) == set(GPU_METRICS)
        for metric, unit in GPU_METRICS.items():
            if unit == "1":
                assert 0 <= sample.values[metric] <= 1


def test_simulated_training_stalls_two_gpus_and_saves_checkpoints():
    clock = SetClock()
    source = SyntheticSource("training", clock=clock)
    active = []
    for second in range(60):
        clock.now_ns = second * 10**9
        active.append([sample.values["SM_ACTIVE"] for sample in source.read()])
    assert max(row[0] for row in active[54:]) < 0.1
    assert active[16][0] > 0.8 > 0.3 > active[16][2]
    clock.now_ns = 10**9
    assert all(
        s.values["GPU_UTIL"] > 0.95 > 0.3 > s.values["SM_ACTIVE"]
        for s in SyntheticSource("starved", clock=clock).read()
    )


def test_replay_plays_a_recording_at_its_own_pace_again_and_again(tmp_path):
    gpu = Device("GPU-1", "gpu", "H100", 0)
    rows = [Sample(s * 10**9, s, gpu.uuid, {"SM_ACTIVE": s / 10, "FB_USED": None}) for s in (1, 2, 3)]
    write_parquet(SampleTable.from_samples(rows, [gpu], interval=1.0), tmp_path / "trace.parquet")
    clock = SetClock(100 * 10**9)
    source = ReplaySource(tmp_path / "trace.parquet", clock=clock)
    assert source.devices[0].uuid != gpu.uuid
    assert source.devices[0].simulated
    played = []
    for tenths in (0, 5, 10, 20, 30):
        clock.now_ns = 100 * 10**9 + tenths * 10**8
        (sample,) = source.read()
        assert sample.time_ns == clock.now_ns
        assert sample.values["FB_USED"] is None
        played.append(sample.values["SM_ACTIVE"])
    assert played == [0.1, 0.1, 0.2, 0.3, 0.1]


@pytest.mark.parametrize(
    "spec",
    ["nothing", "host:x", "synthetic:", "synthetic:unheard-of", "replay:/nowhere.arrows", "replay:", ""],
)
def test_source_that_cannot_be_opened_raises_source_error(spec):
    with pytest.raises(SourceError) as caught:
        open_source(spec, SourceRequest(environment={}))
    assert caught.value.problem
    assert caught.value.fix
    assert "\n" not in str(caught.value)


def test_invalid_replay_file_raises_source_error(tmp_path):
    for name, content in (("a.arrows", b"hello"), ("b.parquet", b"PAR1 hello PAR1"), ("c.parquet", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(SourceError):
            open_source(f"replay:{tmp_path / name}", SourceRequest(environment={}))


def test_auto_without_a_gpu_has_no_devices():
    source = open_source("auto", SourceRequest(environment={"CUDA_VISIBLE_DEVICES": ""}))
    assert source.devices == ()
    assert source.read() == []
    source.close()
