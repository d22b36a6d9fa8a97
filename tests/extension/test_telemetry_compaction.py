"""Conversion of closed segments to Parquet: the same samples, less disk, nothing lost on errors."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.compute
import pyarrow.parquet
import pytest

from gipfel_extension.telemetry.sample import Device, Sample, SampleTable
from gipfel_extension.telemetry.store import compaction
from gipfel_extension.telemetry.store.compaction import compact, run_has_ended
from gipfel_extension.telemetry.store.overview import read_overview
from gipfel_extension.telemetry.store.segments import (
    Provenance,
    SegmentWriter,
    read_samples,
    read_segment,
)

GPU = Device("GPU-8c1f", "gpu", "NVIDIA GH200 120GB", 0, node="nid001")
HOST = Device("host:nid001", "host", "nid001", None, node="nid001")
ORIGIN = Provenance(
    "nid001", "job", "nvml", simulated=False, interval=1.0, devices=(HOST, GPU), extra=("MEM_CLOCK",)
)
START = 1_700_000_000
LIMIT_S = 60.0


def record(folder: Path, seconds: int = 600, *, start: int = START, close: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    writer = SegmentWriter(folder, ORIGIN, start_ns=start * 10**9)
    noise = np.random.default_rng(start)
    for second in range(start, start + seconds, 2):
        batch = []
        for each in (second, second + 1):
            level = float(noise.random())
            gpu = {"SM_ACTIVE": level, "FB_USED": None if each % 7 else 7e10, "MEM_CLOCK": 2619.0}
            batch += [
                Sample(each * 10**9 + 17, each, GPU.uuid, gpu),
                Sample(each * 10**9, each, HOST.uuid, {"CPU_UTIL": level}),
            ]
        writer.write(batch)
    return writer.close() if close else writer.path


def same(one: SampleTable, other: SampleTable) -> None:
    assert one.devices == other.devices
    for device in one.devices:
        assert set(one[device.uuid]) == set(other[device.uuid])
        for name, column in one[device.uuid].items():
            np.testing.assert_array_equal(column, other[device.uuid][name], err_msg=name)


def test_compaction_keeps_samples_and_summaries_in_less_space(tmp_path):
    closed = record(tmp_path, 3600)
    (tmp_path / "x-1-0.arrows").write_bytes(b"torn")
    running = record(tmp_path, 20, start=START + 4000, close=False)
    before, seen = read_samples(tmp_path), read_overview(tmp_path, buckets=100)
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    done = compact(tmp_path)
    assert (done.converted, done.skipped) == (1, ())
    assert not closed.exists()
    assert running.exists()
    parquet = closed.with_name(closed.name.replace(".closed.arrows", ".closed.parquet"))
    assert parquet.stat().st_mode & 0o777 == 0o600
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < size / 2
    after = read_samples(tmp_path)
    same(before, after)
    (state,) = (s for s in after.segments if s.name == parquet.name)
    origin = state.provenance
    assert (state.state, origin.recorder, origin.interval, state.rows) == ("closed", "job", 1.0, 7200)
    again = read_overview(tmp_path, buckets=100)
    assert again.bucket_ns == seen.bucket_ns
    np.testing.assert_array_equal(again.time_ns, seen.time_ns)
    np.testing.assert_array_equal(again.count["SM_ACTIVE"], seen.count["SM_ACTIVE"])
    np.testing.assert_allclose(again.mean["SM_ACTIVE"], seen.mean["SM_ACTIVE"], rtol=6e-4)
    assert compact(tmp_path).converted == 0


@pytest.mark.parametrize("state", ["stream", "packed"])
def test_time_range_and_metrics_read_from_parquet_match_the_stream(tmp_path, state):
    # Long enough for several pieces of a file.
    closed = record(tmp_path, 18_000)
    whole = read_samples(tmp_path)
    if state == "packed":
        assert compact(tmp_path).converted == 1
        name = closed.name.replace(".closed.arrows", ".closed.parquet")
        with pyarrow.parquet.ParquetFile(tmp_path / name) as file:
            assert file.num_row_groups > 2
    for begin, seconds in ((0, 10), (8_900, 200), (17_990, 100), (20_000, 5), (-50, 20)):
        since = (START + begin) * 10**9
        until = since + seconds * 10**9
        wanted = ("SM_ACTIVE", "MEM_CLOCK")
        part = read_samples(tmp_path, since_ns=since, until_ns=until, metrics=wanted)
        assert part.devices == whole.devices
        for device in whole.devices:
            columns = whole[device.uuid]
            inside = (columns["time_ns"] >= since) & (columns["time_ns"] <= until)
            own = part[device.uuid]
            times = ("time_ns", "monotonic_ns")
            assert set(own) == {*times, *(wanted if device.kind == "gpu" else ())}
            for name, column in own.items():
                np.testing.assert_array_equal(column, columns[name][inside], err_msg=name)


def test_segment_that_would_grow_is_not_converted(tmp_path):
    closed = record(tmp_path, 4)
    assert compact(tmp_path).converted == 0
    assert closed.exists()
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("case", ["symlink", "torn", "foreign", "pipe"])
def test_damaged_or_foreign_segments_are_skipped_with_a_reason(tmp_path, case):
    closed = record(tmp_path / "elsewhere", 600)
    folder = tmp_path / "telemetry"
    folder.mkdir()
    name = folder / closed.name
    if case == "symlink":
        name.symlink_to(closed)
    elif case == "torn":
        name.write_bytes(closed.read_bytes()[:-100])
    elif case == "foreign":
        name.write_bytes(b"something else")
    else:
        os.mkfifo(name)
    done = compact(folder)
    assert done.converted == 0
    assert len(done.skipped) == 1
    assert closed.name in done.skipped[0]
    assert closed.exists()
    assert os.path.lexists(name)


def test_compaction_resumes_after_a_crash_between_rename_and_removal(tmp_path):
    closed = record(tmp_path)
    content, before = closed.read_bytes(), read_samples(tmp_path)
    compact(tmp_path)
    closed.write_bytes(content)
    same(before, read_samples(tmp_path))
    assert compact(tmp_path).converted == 1
    assert not closed.exists()
    same(before, read_samples(tmp_path))


def test_damaged_parquet_file_is_rewritten(tmp_path):
    closed = record(tmp_path)
    before = read_samples(tmp_path)
    closed.with_name(closed.name.replace(".closed.arrows", ".closed.parquet")).write_bytes(b"PAR1 half")
    same(before, read_samples(tmp_path))
    compact(tmp_path)
    same(before, read_samples(tmp_path))
    assert not closed.exists()


_WORK = """
import sys
from pathlib import Path
from gipfel_extension.telemetry.store.compaction import compact
print("ready", flush=True)
sys.stdin.readline()
compact(Path(sys.argv[1]))
"""


def worker(folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", _WORK, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def ended(process: subprocess.Popen[str]) -> None:
    process.wait(LIMIT_S)
    for stream in (process.stdin, process.stdout):
        stream.close()


def test_killed_and_concurrent_compactions_lose_no_samples(tmp_path):
    for number in range(8):
        record(tmp_path, 600, start=START + 1000 * number)
    before = read_samples(tmp_path)
    for wait in (0.05, 0.3, 0.6):
        process = worker(tmp_path)
        go(process)
        # Wherever it is then: what counts is that nothing is lost.
        time.sleep(wait)
        process.send_signal(signal.SIGKILL)
        ended(process)
        same(before, read_samples(tmp_path))
    pair = [worker(tmp_path), worker(tmp_path)]
    for process in pair:
        go(process)
    readers = 0
    while any(process.poll() is None for process in pair):
        same(before, read_samples(tmp_path))
        readers += 1
    for process in pair:
        ended(process)
        assert process.returncode == 0
    assert readers
    same(before, read_samples(tmp_path))
    assert not list(tmp_path.glob("*.arrows"))
    for part in tmp_path.glob(".*.part"):
        os.utime(part, (0, 0))
    compact(tmp_path)
    assert not list(tmp_path.glob(".*"))


def test_full_disk_keeps_the_stream_segment(tmp_path, monkeypatch):
    closed = record(tmp_path)
    before = closed.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(compaction, "write_parquet", full)
    done = compact(tmp_path)
    assert (done.converted, len(done.skipped)) == (0, 1)
    assert "No space" in done.skipped[0]
    assert closed.read_bytes() == before
    assert not list(tmp_path.glob(".*"))


def test_a_segment_that_is_renamed_under_a_reader_is_found(tmp_path):
    closed = record(tmp_path)
    open_name = closed.with_name(closed.name.replace(".closed", ""))
    before = read_segment(closed)
    same(before, read_segment(open_name))
    compact(tmp_path)
    same(before, read_segment(closed))


def test_run_has_ended_depends_only_on_the_record(tmp_path):
    assert not run_has_ended(tmp_path)
    for content, expected in (
        ("{}", False),
        ('{"ended": null}', False),
        ("[]", False),
        ("{", False),
        (json.dumps({"ended": "2026-01-01T00:00:00+00:00"}), True),
    ):
        (tmp_path / "record.json").write_text(content)
        assert run_has_ended(tmp_path) is expected


def test_readers_and_writers_of_one_folder_at_a_time(tmp_path):
    """A recorder continues while another's segments are converted."""
    record(tmp_path)
    stop = threading.Event()
    writer = SegmentWriter(tmp_path, replace(ORIGIN, recorder="rank1"), start_ns=START * 10**9)

    def write() -> None:
        second = START
        while not stop.is_set():
            writer.write([Sample(second * 10**9, second, GPU.uuid, {"SM_ACTIVE": 0.5})])
            second += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        assert compact(tmp_path).skipped == ()
        assert {s.state for s in read_samples(tmp_path).segments} <= {"closed", "open", "torn"}
    finally:
        stop.set()
        thread.join(LIMIT_S)
    writer.close()
    assert {s.state for s in read_samples(tmp_path).segments} == {"closed"}
