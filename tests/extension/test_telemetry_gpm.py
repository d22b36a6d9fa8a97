"""GPM's metrics through the NVML source: in our units, window by window, and over the C interface."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pynvml
import pytest
from nvml_fake import HOPPER, MIB, FakeNvml, opened

from gipfel_extension.telemetry.metric_table import GPU_METRICS
from gipfel_extension.telemetry.sources.nvidia import GPM_METRICS
from gipfel_extension.telemetry.store.segments import read_samples


def test_ids_are_pynvmls():
    names = {
        "GR_ENGINE_ACTIVE": "GRAPHICS_UTIL",
        "SM_ACTIVE": "SM_UTIL",
        "SM_OCCUPANCY": "SM_OCCUPANCY",
        "PIPE_TENSOR_ACTIVE": "ANY_TENSOR_UTIL",
        "DRAM_ACTIVE": "DRAM_BW_UTIL",
        "PIPE_FP64_ACTIVE": "FP64_UTIL",
        "PIPE_FP32_ACTIVE": "FP32_UTIL",
        "PIPE_FP16_ACTIVE": "FP16_UTIL",
        "PCIE_TX_BYTES": "PCIE_TX_PER_SEC",
        "PCIE_RX_BYTES": "PCIE_RX_PER_SEC",
        "NVLINK_RX_BYTES": "NVLINK_TOTAL_RX_PER_SEC",
        "NVLINK_TX_BYTES": "NVLINK_TOTAL_TX_PER_SEC",
        "PIPE_INT_ACTIVE": "INTEGER_UTIL",
        "C2C_TX_ALL_BYTES": "C2C_TOTAL_TX_PER_SEC",
        "C2C_RX_ALL_BYTES": "C2C_TOTAL_RX_PER_SEC",
    }
    assert {name: number for name, (number, _) in GPM_METRICS.items()} == {
        name: getattr(pynvml, f"NVML_GPM_METRIC_{gpm}") for name, gpm in names.items()
    }


def test_gpm_values_are_converted_and_refused_ones_are_missing():
    library = FakeNvml(gpm=HOPPER)
    source, clock = opened(library)
    clock.now_ns = 10**9
    values = source.read()[0].values
    assert source.name == "nvml+gpm"
    assert set(values) == set(GPU_METRICS)
    assert values["SM_ACTIVE"] == pytest.approx(0.875)
    assert values["PIPE_TENSOR_ACTIVE"] == pytest.approx(0.62)
    assert values["PIPE_FP64_ACTIVE"] is None
    assert values["PCIE_RX_BYTES"] == 4000 * MIB
    assert values["NVLINK_RX_BYTES"] == 90000 * MIB
    assert values["NVLINK_TX_BYTES"] == 1 * MIB
    assert values["GPU_UTIL"] == 0.87
    assert values["FB_USED"] == 40 * 2**30
    assert values["POWER_USAGE"] == pytest.approx(612.345)
    assert (values["GPU_TEMP"], values["SM_CLOCK"]) == (61, 1980)
    assert (values["PIPE_INT_ACTIVE"], values["C2C_TX_ALL_BYTES"]) == (0.125, None)
    assert values["CLOCKS_EVENT_REASONS"] == 4
    assert library.pcie_reads == 0


def test_windows_follow_each_other_without_a_gap():
    library = FakeNvml(gpus=1, gpm=HOPPER)
    source, clock = opened(library)
    for second in (1, 2, 3):
        clock.now_ns = second * 10**9
        source.read()
    assert [(first[2], second[2]) for first, second in library.requests] == [(1, 2), (2, 3), (3, 4)]


def test_too_short_gpm_window_is_missing_and_continues():
    library = FakeNvml(gpus=1, gpm=HOPPER)
    source, clock = opened(library, interval=0.05)
    clock.now_ns = 50_000_000
    assert source.read()[0].values["SM_ACTIVE"] is None
    clock.now_ns = 100_000_000
    assert source.read()[0].values["SM_ACTIVE"] == pytest.approx(0.875)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_invalid_gpm_value_is_missing(value):
    source, clock = opened(FakeNvml(gpus=1, gpm={**HOPPER, 2: value}))
    clock.now_ns = 10**9
    assert source.read()[0].values["SM_ACTIVE"] is None


def test_metrics_on_request():
    library = FakeNvml(gpus=1, gpm={**HOPPER, 30: 50.0, 63: 7.0})
    asked = ("NVDEC0_ACTIVE", "NVLINK_L0_TX_BYTES", "NVLINK_L1_TX_BYTES", "MEM_COPY_UTIL", "FB_FREE")
    source, clock = opened(library, metrics=asked)
    clock.now_ns = 10**9
    values = source.read()[0].values
    assert [values[name] for name in asked] == [0.5, 7 * MIB, None, 0.4, None]
    assert values["SM_ACTIVE"] == pytest.approx(0.875)
    # A driver that knows none of them still gives the usual ones, and is not asked for them again.
    library.unknown = {30, 63}
    clock.now_ns = 2 * 10**9
    values = source.read()[0].values
    assert (values["NVDEC0_ACTIVE"], values["SM_ACTIVE"]) == (None, pytest.approx(0.875))


def test_chip_to_chip_in_bytes_where_the_gpu_has_it():
    source, clock = opened(FakeNvml(gpus=1, gpm={**HOPPER, 100: 3.0, 101: 420_000.0}))
    clock.now_ns = 10**9
    values = source.read()[0].values
    assert (values["C2C_TX_ALL_BYTES"], values["C2C_RX_ALL_BYTES"]) == (3 * MIB, 420_000 * MIB)


def test_a_driver_that_refuses_later_metrics_still_gives_the_others():
    library = FakeNvml(gpus=1, gpm=HOPPER)
    library.unknown = {100, 101}
    source, clock = opened(library)
    for second in (1, 2):
        clock.now_ns = second * 10**9
        values = source.read()[0].values
        assert values["SM_ACTIVE"] == pytest.approx(0.875)
        assert values["C2C_RX_ALL_BYTES"] is None
    # Asked once with them, then never again; the windows still follow each other.
    assert [(first[2], second[2]) for first, second in library.requests] == [(1, 2), (2, 3)]


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler")
def test_a_recorder_reads_gpm_over_the_c_interface(tmp_path):
    source = Path(__file__).parent / "data/nvml_of_one_hopper_gpu.c"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-w", "-o", tmp_path / "libnvidia-ml.so.1", source],
        check=True,
        timeout=60,
    )
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    command = [sys.executable, "-m", "gipfel_extension.recorder", "--source", "auto"]
    command += ["--telemetry", tmp_path / "telemetry", "--node", "n1", "--interval", "0.15", "--flush", "0.2"]
    recorder = subprocess.Popen(command, env=environment)
    try:
        deadline = time.monotonic() + 20
        while read_samples(tmp_path / "telemetry").rows < 5 and time.monotonic() < deadline:
            time.sleep(0.1)
    finally:
        recorder.terminate()
        assert recorder.wait(10) == 0
    table = read_samples(tmp_path / "telemetry")
    assert (table.source, [device.uuid for device in table.gpus]) == ("nvml+gpm", ["GPU-0123-4567"])
    last = {name: float(column[-1]) for name, column in table["GPU-0123-4567"].items()}
    expected = {
        "SM_ACTIVE": 0.02,
        "PIPE_TENSOR_ACTIVE": 0.05,
        "DRAM_ACTIVE": 0.1,
        "NVLINK_TX_BYTES": 61 * MIB,
        "NVLINK_RX_BYTES": 60 * MIB,
        "GPU_UTIL": 0.87,
        "FB_USED": 40 * 2**30,
        "POWER_USAGE": 612.345,
        "TOTAL_ENERGY": 7_654_321.0,
        "PIPE_INT_ACTIVE": 0.04,
        "C2C_RX_ALL_BYTES": 101 * MIB,
    }
    # A segment keeps as many digits as the hardware knows.
    assert {name: last[name] for name in expected} == pytest.approx(expected, rel=1e-3)
    missing = [name for name, value in last.items() if value != value]
    assert missing == ["PIPE_FP64_ACTIVE", "PIPE_FP16_ACTIVE", "SM_CLOCK", "MAX_SM_CLOCK"]
    assert last["CLOCKS_EVENT_REASONS"] == 0x44
