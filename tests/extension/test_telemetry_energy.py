"""Energy of a recording: counters before power, none where nothing was measured, CO2 only with a factor."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from nvml_fake import FakeNvml, SetClock
from saturation_tables import gpu, host, table

from gipfel_cluster.scheduler.protocol import GpuUsage, Quota
from gipfel_cluster.workloads.quota import own_sections, recorded_energy
from gipfel_extension.telemetry.energy import CO2_VARIABLE, energy_of
from gipfel_extension.telemetry.sources import SourceRequest
from gipfel_extension.telemetry.sources.counters import HostEnergy
from gipfel_extension.telemetry.sources.host import HostSource
from gipfel_extension.telemetry.sources.nvml import NvmlSource


def test_a_counter_is_used_and_power_is_integrated_without_one():
    joules = 5e9 + 400.0 * np.arange(61)
    found = energy_of(
        table(
            {gpu(): {"TOTAL_ENERGY": joules, "POWER_USAGE": 1.0}, gpu(1): {"POWER_USAGE": 600.0}}, length=61
        )
    )
    counted, integrated = found.gpus
    assert (counted.method, counted.wh) == ("counter", pytest.approx(400 * 60 / 3600))
    assert (integrated.method, integrated.wh) == ("power", pytest.approx(600 * 60 / 3600))
    assert found.total_wh == found.gpu_wh == pytest.approx(1000 * 60 / 3600)
    assert found.host_wh is None
    assert found.coverage == pytest.approx(1.0)
    assert found.gpu_hours == pytest.approx(2 * 60 / 3600)


def test_a_gap_is_counted_but_its_power_is_unknown():
    series = {"TOTAL_ENERGY": 100.0 * np.arange(121.0), "POWER_USAGE": np.full(121, 100.0)}
    for values in series.values():
        values[30:90] = np.nan
    counted = energy_of(table({gpu(): series}, length=121))
    assert counted.gpu_wh == pytest.approx(100 * 120 / 3600)
    integrated = energy_of(table({gpu(): {"POWER_USAGE": series["POWER_USAGE"]}}, length=121))
    assert integrated.gpu_wh == pytest.approx(100 * 59 / 3600)
    assert integrated.coverage == pytest.approx(59 / 120)


def test_a_driver_that_was_loaded_again_takes_nothing_away():
    joules = np.concatenate([1e6 + 300.0 * np.arange(30), 300.0 * np.arange(30)])
    assert energy_of(table({gpu(): {"TOTAL_ENERGY": joules}}, length=60)).gpu_wh == pytest.approx(
        300 * 58 / 3600
    )


def test_the_months_energy_is_that_of_its_runs(tmp_path):
    now = datetime(2026, 11, 28, 12, tzinfo=UTC)
    environment = {"GIPFEL_RUNS": str(tmp_path)}
    assert recorded_energy(environment, now) == ""
    for number, (started, score) in enumerate(
        [
            ("2026-11-02T10:00:00+00:00", '{"energy": {"total_wh": 1500}}'),
            ("2026-11-01T00:00:00+00:00", '{"energy": {"total_wh": 250.5}}'),
            ("2026-10-31T23:59:59+00:00", '{"energy": {"total_wh": 9000}}'),
            ("2026-11-05T10:00:00+00:00", "{}"),
            ("yesterday", '{"energy": {"total_wh": 9000}}'),
            ("2026-11-05T10:00:00+00:00", '["energy"]'),
        ]
    ):
        run = tmp_path / f"alps-{number}"
        run.mkdir()
        (run / "record.json").write_text(json.dumps({"started": started}))
        (run / "score.json").write_text(score)
    shown = "Energy this month: 1.75 kWh, measured in 2 runs"
    assert recorded_energy(environment, now) == shown
    assert [each.title for each in own_sections(None, environment, now)] == [shown]
    # Slurm's own measurement includes jobs without a recorder.
    for measured, titles in ((None, [shown]), (1234.5, [])):
        quota = Quota(usage=GpuUsage(used=2, energy_kwh=measured))
        used = "Used this month: 2.0 GPU hours" + (", 1,234 kWh" if measured else "")
        found = [each.title for each in own_sections(quota, environment, now)]
        assert found[1:] == [used, *titles]
    # A record that was not written since is not even read.
    for run in tmp_path.iterdir():
        os.utime(run / "record.json", (0, datetime(2026, 10, 30, tzinfo=UTC).timestamp()))
    assert recorded_energy(environment, now) == ""


def test_what_was_not_measured_has_no_energy():
    found = energy_of(table({gpu(): {}, host(): {}}, length=10), environment={CO2_VARIABLE: "30"})
    assert found.total_wh is found.co2_g is None
    assert found.sentence == ""
    assert found.to_json()["gpus"][0]["wh"] is None
    assert energy_of(table({}, length=0)).to_json()["coverage"] is None


def test_ranks_share_a_gpu_in_equal_parts():
    both = {gpu(): {"POWER_USAGE": 360.0}, gpu(1): {"POWER_USAGE": 720.0}, gpu(2): {}}
    ranks = {0: [gpu().uuid], 1: [gpu(1).uuid], 2: [gpu(1).uuid], 3: [gpu(2).uuid]}
    found = energy_of(table(both, length=11), ranks)
    assert dict(found.ranks) == {
        0: pytest.approx(1.0),
        1: pytest.approx(1.0),
        2: pytest.approx(1.0),
        3: None,
    }


@pytest.mark.parametrize(
    ("factor", "grams"),
    [("128", 128.0 * 0.003), ("", None), ("-1", None), ("nan", None), ("1e9", None), ("much", None)],
)
def test_co2_needs_a_plausible_factor_of_the_site(factor, grams):
    samples = table({gpu(): {"POWER_USAGE": 720.0}, host(): {"HOST_POWER": 360.0}}, length=11)
    found = energy_of(samples, environment={CO2_VARIABLE: factor})
    assert found.host_wh == pytest.approx(1.0)
    assert found.co2_g == (None if grams is None else pytest.approx(grams))
    assert ("CO2" in found.sentence) == (grams is not None)


def test_nvml_gives_the_counter_in_joules_except_of_a_mig_instance():
    library = FakeNvml(gpus=1)
    source = NvmlSource(
        SourceRequest(environment={}, clock=SetClock()), library=library, can_open=lambda _minor: True
    )
    assert source.read()[0].values["TOTAL_ENERGY"] == 7_654_321.0
    part = FakeNvml(gpus=1, mig=1)
    source = NvmlSource(
        SourceRequest(environment={}, clock=SetClock()), library=part, can_open=lambda _minor: True
    )
    assert source.read()[0].values["TOTAL_ENERGY"] is None


def _zone(root: Path, name: str, kind: str, microjoules: int) -> Path:
    zone = root / "sys/class/powercap" / name
    zone.mkdir(parents=True)
    (zone / "name").write_text(f"{kind}\n")
    (zone / "max_energy_range_uj").write_text("262143328850\n")
    (zone / "energy_uj").write_text(f"{microjoules}\n")
    return zone


def test_rapl_counts_packages_and_memory_and_wraps(tmp_path):
    package = _zone(tmp_path, "intel-rapl:0", "package-0", 262_143_000_000)
    memory = _zone(tmp_path, "intel-rapl:0:1", "dram", 5_000_000)
    # Part of the package, and the whole machine: they would count twice.
    for name, kind in (("intel-rapl:0:0", "core"), ("intel-rapl:1", "psys")):
        (_zone(tmp_path, name, kind, 0) / "energy_uj").write_text("9\n")
    energy = HostEnergy(tmp_path)
    assert energy.joules() == 0.0
    (package / "energy_uj").write_text("99671150\n")
    (memory / "energy_uj").write_text("15000000\n")
    assert energy.joules() == pytest.approx(100.0 + 10.0)
    # Without the right to read one of them the sum is unknown; afterwards counting continues.
    (memory / "energy_uj").unlink()
    assert energy.joules() is None
    (memory / "energy_uj").write_text("95000000\n")
    assert energy.joules() == pytest.approx(110.0)


def test_crays_counters_come_first(tmp_path):
    _zone(tmp_path, "intel-rapl:0", "package-0", 7)
    counters = tmp_path / "sys/cray/pm_counters"
    counters.mkdir(parents=True)
    (counters / "cpu_energy").write_text("1200 J 1414157474061434 us\n")
    (counters / "memory_energy").write_text("300 J 1414157474061434 us\n")
    assert HostEnergy(tmp_path).joules() == 1500.0
    (counters / "cpu_energy").write_text("1200 W\n")
    assert HostEnergy(tmp_path).joules() == 0.0


def test_the_host_reports_power_between_two_readings(tmp_path):
    (tmp_path / "proc").symlink_to("/proc")
    package = _zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    clock = SetClock()
    source = HostSource(SourceRequest(environment={"GIPFEL_NODE": "n1"}, clock=clock), root=tmp_path)
    assert source.read()[0].values["HOST_POWER"] is None
    clock.now_ns = 2 * 10**9
    (package / "energy_uj").write_text("401000000\n")
    assert source.read()[0].values["HOST_POWER"] == pytest.approx(200.0)
