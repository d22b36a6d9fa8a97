"""Ten samples per second by default: recording, streaming and retention; the score does not change."""

import json
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from nvml_fake import FakeNvml, SetClock
from recorder_process import TwoClocks
from test_telemetry_recorder import Listener

from gipfel_extension.cli.score import score
from gipfel_extension.cli.scored_run import ScoredRun
from gipfel_extension.recorder import Recorder, Settings
from gipfel_extension.recorder.__main__ import main
from gipfel_extension.saturation import Settings as ScoreSettings
from gipfel_extension.saturation import Weights, score_table
from gipfel_extension.saturation.loss_breakdown import score_parts
from gipfel_extension.server.analysis import score_document
from gipfel_extension.server.history import means_table
from gipfel_extension.telemetry.metric_table import SCORE_PARTS
from gipfel_extension.telemetry.sample import Device, Sample, SampleTable
from gipfel_extension.telemetry.sources import SourceRequest, open_source
from gipfel_extension.telemetry.sources.nvml import NvmlSource
from gipfel_extension.telemetry.store.compaction import compact
from gipfel_extension.telemetry.store.fine import FineRetention, fine_folder, read_finest
from gipfel_extension.telemetry.store.overview import read_overview
from gipfel_extension.telemetry.store.parquet import write_parquet
from gipfel_extension.telemetry.store.segments import read_samples

SECONDS = 30


class Phases:
    """Two GPUs whose 0.3 s of multiplying, 0.3 s of copying and 0.4 s of nothing make a step."""

    name = "phases"
    simulated = False
    fine = True
    devices = tuple(Device(f"GPU-{n}", "gpu", "NVIDIA H100 80GB HBM3", n) for n in range(2))

    def __init__(self, clock: TwoClocks) -> None:
        self.clock = clock
        self.reads = 0

    def read(self) -> list[Sample]:
        phase = self.reads % 10
        self.reads += 1
        work = float(phase < 3), 0.9 * (3 <= phase < 6)
        values = {
            "GR_ENGINE_ACTIVE": float(phase < 6),
            "SM_ACTIVE": 0.9 * (phase < 6),
            "PIPE_TENSOR_ACTIVE": 0.8 * work[0],
            "DRAM_ACTIVE": work[1],
            "PCIE_RX_BYTES": 1e9 * phase,
            "SM_CLOCK": 1980.0 - 99.0 * phase,
            "FB_USED": 2.0**30 * self.reads,
            "CLOCKS_EVENT_REASONS": float(phase == 4) * 4 + float(phase == 5) * 8,
        }
        now = self.clock.time_ns(), self.clock.monotonic_ns()
        return [Sample(*now, device.uuid, values) for device in self.devices]

    def close(self) -> None:
        pass


class Host(Phases):
    """A host that counts how often it is read."""

    name = "host"
    fine = False
    devices = (Device("host:n1", "host", "n1", None),)

    def read(self) -> list[Sample]:
        self.reads += 1
        return [Sample(self.clock.time_ns(), self.clock.monotonic_ns(), "host:n1", {"CPU_CORES_USED": 1.0})]


def recorded(
    telemetry: Path, *, kept: FineRetention | None = None, seconds: int = SECONDS
) -> tuple[Host, Listener]:
    clock, listener = TwoClocks(), Listener()
    host = Host(clock)
    settings = Settings(telemetry, "n1", fine=kept or FineRetention())
    recorder = Recorder(
        [host, Phases(clock)], settings, sinks=[listener], clock=clock, environment={}, score=score_parts
    )
    for _ in range(10 * seconds):
        recorder.tick()
        clock.wait(0.1, threading.Event())
    recorder.close()
    return host, listener


def test_fast_counters_are_read_ten_times_a_second_and_streamed_once(tmp_path):
    host, listener = recorded(tmp_path)
    ticks = [tick for tick in listener.ticks if tick.samples]
    assert len(ticks) == host.reads == SECONDS
    assert {tick.origin.interval for tick in ticks} == {1.0}
    assert all(len(tick.samples) == 3 for tick in ticks)
    fine = read_samples(fine_folder(tmp_path))
    assert fine.interval == 0.1
    assert [len(fine[gpu.uuid]["time_ns"]) for gpu in fine.gpus] == [10 * SECONDS] * 2
    assert not list(fine_folder(tmp_path).glob("*.summary"))
    seconds = read_samples(tmp_path)
    assert (seconds.interval, seconds.segments[0].state) == (1.0, "closed")
    # The last second was not full, and is there all the same.
    assert len(seconds["GPU-0"]["time_ns"]) == SECONDS + 1
    # The second to which a sample belongs ends with it: phases 1 to 9, and 0.
    row = {name: column[2] for name, column in seconds["GPU-0"].items()}
    assert row["PCIE_RX_BYTES"] == pytest.approx(4.5e9, rel=2e-4)
    assert row["PIPE_TENSOR_ACTIVE"] == pytest.approx(0.24, rel=2e-4)
    assert row["CLOCKS_EVENT_REASONS"] == 12.0
    assert row["FB_USED"] == 2.0**30 * 21


def test_score_of_one_second_means_equals_that_of_fine_samples(tmp_path):
    telemetry = tmp_path / "run" / "telemetry"
    recorded(telemetry)
    finest = read_finest(telemetry)
    assert (finest.interval, finest.rows) == (0.1, 3 * 10 * SECONDS)
    fine = score_table(finest)
    FineRetention(hours=0).prune(fine_folder(telemetry), 2**62)
    assert not list(fine_folder(telemetry).iterdir())
    left = read_finest(telemetry)
    assert left.interval == 1.0
    compact(telemetry)
    packed = read_finest(telemetry)
    means = means_table(read_overview(telemetry, buckets=3))
    for table, near in ((left, 0.01), (packed, 0.01), (means, 0.5)):
        kept = score_table(table)
        assert kept.scored_interval == 0.1
        for name in ("score", "lower_bound", "upper_bound"):
            assert getattr(kept.total, name) == pytest.approx(getattr(fine.total, name), abs=near)
        for name in ("points", "binding", "sequential_points"):
            assert getattr(kept.total, name) == pytest.approx(getattr(fine.total, name), abs=near)
        assert kept.total.bottleneck == fine.total.bottleneck
    assert "The score uses samples every 0.1 s" in score_document(means, telemetry)["notes"][0]
    # Of plain seconds the score is another one, and that is told.
    other = score_table(left, ScoreSettings(Weights(compute=0.999)))
    assert fine.total.score - other.total.score > 15.0
    document = ScoredRun.of(tmp_path / "run").document()
    assert document["interval_s"] == 0.1
    assert document["coarser_score"]["interval_s"] == 1.0
    assert document["coarser_score"]["difference"] == pytest.approx(
        fine.total.score - other.total.score, abs=0.1
    )


def test_incomplete_fine_samples_are_not_scored(tmp_path):
    recorded(tmp_path)
    (segment,) = fine_folder(tmp_path).glob("*.arrows")
    content = segment.read_bytes()
    segment.write_bytes(content[: len(content) // 2])
    assert read_finest(tmp_path).interval == 1.0


def test_short_time_range_is_drawn_from_fine_samples(tmp_path):
    recorded(tmp_path)
    times = read_samples(tmp_path)["GPU-0"]["time_ns"]
    overview = read_overview(tmp_path, start_ns=int(times[5]), end_ns=int(times[15]), buckets=600)
    assert overview.bucket_ns == 10**8
    cores = overview.mean["CPU_CORES_USED"][[d.kind for d in overview.devices].index("host")]
    assert np.isfinite(cores[1:-1]).all()


def test_a_site_sets_how_long_fine_samples_are_kept(tmp_path):
    none = tmp_path / "none"
    recorded(none, kept=FineRetention.from_environment({"GIPFEL_FINE_HOURS": "0"}))
    assert not fine_folder(none).exists()
    assert score_table(read_finest(none)).scored_interval == 0.1
    assert (
        FineRetention.from_environment({"GIPFEL_FINE_HOURS": "x", "GIPFEL_FINE_MEGABYTES": "-1"})
        == FineRetention()
    )

    folder = tmp_path / "fine"
    folder.mkdir()
    for number in range(6):
        path = folder / f"n1-{10 + number}-0{'' if number == 5 else '.closed'}.arrows"
        path.write_bytes(bytes(400_000))
        os.utime(path, ns=(0, 3600 * 10**9 * number))
    (folder / "n1-x-10-0.closed.arrows").write_bytes(bytes(10))
    (folder / "notes").write_text("not ours")
    FineRetention(hours=4, megabytes=1.0).prune(folder, 5 * 3600 * 10**9, name_prefix="n1")
    left = sorted(path.name for path in folder.iterdir())
    assert left == ["n1-14-0.closed.arrows", "n1-15-0.arrows", "n1-x-10-0.closed.arrows", "notes"]


def test_saving_a_score_removes_old_fine_samples_of_other_runs(tmp_path, monkeypatch):
    for name in ("a-1", "a-2"):
        recorded(tmp_path / name / "telemetry", seconds=3)
    (old,) = fine_folder(tmp_path / "a-1" / "telemetry").glob("*.arrows")
    os.utime(old, (0, 0))
    monkeypatch.setenv("GIPFEL_FINE_HOURS", "1")
    answer = CliRunner().invoke(score, [str(tmp_path / "a-2"), "--save", "--json"])
    assert answer.exit_code == 0, answer.output
    assert json.loads((tmp_path / "a-2" / "score.json").read_text())["interval_s"] == 0.1
    assert not old.exists()
    assert list(fine_folder(tmp_path / "a-2" / "telemetry").glob("*.arrows"))


def test_gpm_is_fast_and_a_gpu_without_it_is_not():
    def opened(library: FakeNvml) -> NvmlSource:
        return NvmlSource(
            SourceRequest(environment={}, clock=SetClock()), library=library, can_open=lambda _: True
        )

    assert opened(FakeNvml(gpm={2: 50.0})).fine
    assert not opened(FakeNvml()).fine


@pytest.mark.parametrize(("asked", "fast"), [((), True), (("--interval", "0.1"), False)])
def test_recorder_reads_fine_samples_without_a_requested_interval(tmp_path, monkeypatch, asked, fast):
    trace = tmp_path / "trace.parquet"
    clock = TwoClocks()
    source = Phases(clock)
    samples = []
    for _ in range(50):
        samples += source.read()
        clock.wait(0.1, threading.Event())
    write_parquet(SampleTable.from_samples(samples, source.devices, interval=0.1), trace)
    assert open_source(f"replay:{trace}", SourceRequest()).fine
    found = []
    monkeypatch.setattr(Recorder, "run", lambda self, _ended, *, parent: found.append(self) or self.tick())
    # What the program sets for its whole process would stay with the tests.
    monkeypatch.setattr("os.umask", lambda _: 0)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    argv = ["--telemetry", str(tmp_path / "t"), "--node", "n1", "--source", f"replay:{trace}", *asked]
    assert main(argv) == 0
    found[0].close()
    table = read_samples(tmp_path / "t")
    assert table.interval == (1.0 if fast else 0.1)
    assert fine_folder(tmp_path / "t").exists() is fast
    assert set(SCORE_PARTS) <= set(table[table.gpus[0].uuid]) or not fast
