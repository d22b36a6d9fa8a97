"""The NVML source on the real module's structures: behind an injected library, and over the C interface."""

# ruff: noqa: N802 - the names are NVML's

import ctypes
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from gipfel_extension.telemetry.sample import GPU_METRICS, SourceError
from gipfel_extension.telemetry.sources.gpm import GPM_METRICS
from gipfel_extension.telemetry.sources.nvml import NvmlSource
from gipfel_extension.telemetry.store.segments import read_samples

MIB = 1024 * 1024


class SetClock:
    now_ns = 0

    def time_ns(self) -> int:
        return self.now_ns

    def monotonic_ns(self) -> int:
        return self.now_ns

    def wait(self, seconds: float, ended: threading.Event) -> bool:
        self.now_ns += int(seconds * 1e9)
        return ended.is_set()


class FakeNvml:
    """NVML as `pynvml` gives it, on machines of our making; constants, errors and structures are its own.

    ``gpm`` maps a GPM metric id to its value; an id that is missing isn't supported. None: a GPU without GPM.
    """

    def __init__(self, gpus: int = 2, *, gpm: dict[int, float] | None = None, mig: int = 0) -> None:
        self.gpus, self.gpm, self.mig = gpus, gpm, mig
        self.refused: dict[str, int] = {}
        self.open = 0
        self.samples: dict[int, Any] = {}
        self.requests: list[tuple[Any, Any]] = []
        self.pcie_reads = 0
        self.unknown: set[int] = set()
        self._taken = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("NVML", "c_nvml", "nvmlMemory_v2", "nvmlEventType")):
            return getattr(pynvml, name)
        raise AttributeError(name)

    def _check(self, name: str) -> None:
        if name in self.refused:
            raise pynvml.NVMLError(self.refused[name])

    def nvmlInit(self) -> None:
        self._check("nvmlInit")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return self.gpus

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"gpu{index}"

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return f"MIG-{handle}" if "-" in handle else f"GPU-{handle}"

    def nvmlDeviceGetMinorNumber(self, handle: str) -> int:
        return int(handle[3])

    def nvmlDeviceGetName(self, handle: str) -> bytes:
        return b"NVIDIA H100"

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:
        if not self.mig:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: str) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: str, index: int) -> str:
        if index >= self.mig:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return f"{handle}-{index}"

    def nvmlDeviceGetGpuInstanceId(self, handle: str) -> int:
        return 7 + int(handle[-1])

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        self._check("nvmlDeviceGetUtilizationRates")
        return SimpleNamespace(gpu=87, memory=40)

    def nvmlDeviceGetMemoryInfo(self, handle: str, version: int | None = None) -> Any:
        self._check("nvmlDeviceGetMemoryInfo" if version is None else "nvmlDeviceGetMemoryInfo_v2")
        return SimpleNamespace(total=80 * 2**30, used=(40 if version else 41) * 2**30)

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        self._check("nvmlDeviceGetPowerUsage")
        return 612_345

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        return 61

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:
        assert kind == pynvml.NVML_CLOCK_SM
        return 1980

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:
        self._check("nvmlDeviceGetCurrentClocksEventReasons")
        return pynvml.nvmlClocksEventReasonSwPowerCap

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        return pynvml.nvmlClocksThrottleReasonHwThermalSlowdown

    def nvmlDeviceGetPcieThroughput(self, handle: str, counter: int) -> int:
        self.pcie_reads += 1
        return 1000 + counter

    def nvmlGpmQueryDeviceSupport(self, handle: str) -> Any:
        self._check("nvmlGpmQueryDeviceSupport")
        return pynvml.c_nvmlGpmSupport_t(version=1, isSupportedDevice=int(self.gpm is not None))

    def nvmlGpmSampleAlloc(self) -> Any:
        memory = ctypes.create_string_buffer(8)
        sample = ctypes.cast(memory, pynvml.c_nvmlGpmSample_t)
        self.samples[ctypes.addressof(memory)] = memory
        return sample

    def nvmlGpmSampleFree(self, sample: Any) -> None:
        del self.samples[ctypes.cast(sample, ctypes.c_void_p).value]

    def nvmlGpmSampleGet(self, handle: str, sample: Any) -> Any:
        self._check("nvmlGpmSampleGet")
        return self._take(handle, None, sample)

    def nvmlGpmMigSampleGet(self, handle: str, instance: int, sample: Any) -> Any:
        return self._take(handle, instance, sample)

    def _take(self, handle: str, instance: int | None, sample: Any) -> Any:
        self._taken += 1
        memory = self.samples[ctypes.cast(sample, ctypes.c_void_p).value]
        memory.tag = (handle, instance, self._taken)
        return sample

    def nvmlGpmMetricsGet(self, request: Any) -> Any:
        assert isinstance(request, pynvml.c_nvmlGpmMetricsGet_t)
        assert request.version == pynvml.NVML_GPM_METRICS_GET_VERSION
        self._check("nvmlGpmMetricsGet")
        asked = {request.metrics[place].metricId for place in range(request.numMetrics)}
        if asked & self.unknown:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        tags = [
            self.samples[ctypes.cast(sample, ctypes.c_void_p).value].tag
            for sample in (request.sample1, request.sample2)
        ]
        self.requests.append(tuple(tags))
        for place in range(request.numMetrics):
            metric = request.metrics[place]
            value = self.gpm.get(metric.metricId)
            metric.nvmlReturn = pynvml.NVML_SUCCESS if value is not None else pynvml.NVML_ERROR_NOT_SUPPORTED
            metric.value = 12345.0 if value is None else value
        return request


def opened(
    library: FakeNvml,
    *,
    interval: float = 1.0,
    metrics: tuple[str, ...] = (),
    opens: Any = None,
    **environment: str,
) -> tuple[NvmlSource, SetClock]:
    clock = SetClock()
    how = {"metrics": metrics, "opens": opens or (lambda minor: True)}
    return NvmlSource(environment=environment, clock=clock, interval=interval, library=library, **how), clock


HOPPER = {
    1: 99.0,
    2: 87.5,
    3: 31.0,
    4: 12.5,
    5: 62.0,
    10: 44.0,
    12: 8.0,
    13: 2.0,
    20: 100.0,
    21: 4000.0,
    60: 90000.0,
    61: 1.0,
}


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


def test_gpm_in_our_units_and_what_it_refuses_is_missing():
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


def test_a_window_shorter_than_gpm_can_do_is_missing_and_goes_on():
    library = FakeNvml(gpus=1, gpm=HOPPER)
    source, clock = opened(library, interval=0.05)
    clock.now_ns = 50_000_000
    assert source.read()[0].values["SM_ACTIVE"] is None
    clock.now_ns = 100_000_000
    assert source.read()[0].values["SM_ACTIVE"] == pytest.approx(0.875)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_a_number_that_is_none_is_missing(value):
    source, clock = opened(FakeNvml(gpus=1, gpm={**HOPPER, 2: value}))
    clock.now_ns = 10**9
    assert source.read()[0].values["SM_ACTIVE"] is None


def test_plain_nvml_where_there_is_no_gpm():
    library = FakeNvml(gpm=None)
    source, _ = opened(library)
    values = source.read()[0].values
    assert source.name == "nvml"
    assert values["SM_ACTIVE"] is None
    assert values["DRAM_ACTIVE"] is None
    assert values["GPU_UTIL"] == 0.87
    assert values["PCIE_TX_BYTES"] == 1000 * 1024
    assert values["PCIE_RX_BYTES"] == 1001 * 1024


def test_pcie_is_left_out_where_its_windows_would_fill_the_interval():
    library = FakeNvml(gpus=8, gpm=None)
    source, _ = opened(library, interval=0.5)
    assert source.read()[0].values["PCIE_TX_BYTES"] is None
    assert library.pcie_reads == 0


def test_a_user_who_may_not_profile_still_gets_plain_nvml():
    library = FakeNvml(gpm=HOPPER)
    library.refused["nvmlGpmSampleGet"] = pynvml.NVML_ERROR_NO_PERMISSION
    source, clock = opened(library)
    clock.now_ns = 10**9
    values = source.read()[0].values
    assert (source.name, values["SM_ACTIVE"], values["GPU_UTIL"]) == ("nvml", None, 0.87)
    assert not library.samples


def test_a_gpu_that_is_lost_gives_missing_values():
    library = FakeNvml(gpus=1, gpm=HOPPER)
    source, clock = opened(library)
    lost = ("nvmlGpmMetricsGet", "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPowerUsage")
    library.refused = dict.fromkeys(lost, pynvml.NVML_ERROR_GPU_IS_LOST)
    clock.now_ns = 10**9
    values = source.read()[0].values
    assert [values[name] for name in ("SM_ACTIVE", "GPU_UTIL", "POWER_USAGE")] == [None, None, None]
    library.refused = {}
    clock.now_ns = 2 * 10**9
    assert source.read()[0].values["SM_ACTIVE"] == pytest.approx(0.875)


def test_a_gpu_that_is_lost_is_an_event_once():
    library = FakeNvml(gpus=2, gpm=HOPPER)
    source, clock = opened(library, GIPFEL_NODE="n1")
    assert source.events() == []
    library.refused = {"nvmlDeviceGetUtilizationRates": pynvml.NVML_ERROR_GPU_IS_LOST}
    for second in (1, 2, 3):
        clock.now_ns = second * 10**9
        source.read()
    assert [(each.kind, each.device, each.node) for each in source.events()] == [
        ("gpu_lost", "GPU-gpu0", "n1"),
        ("gpu_lost", "GPU-gpu1", "n1"),
    ]
    assert source.events() == []
    source.close()


def test_metrics_on_request():
    library = FakeNvml(gpus=1, gpm={**HOPPER, 30: 50.0, 63: 7.0})
    asked = ("NVDEC0_ACTIVE", "NVLINK_L0_TX_BYTES", "NVLINK_L1_TX_BYTES", "MEM_COPY_UTIL", "TOTAL_ENERGY")
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


def test_only_what_the_control_group_opens():
    def odd(minor: int) -> bool:
        return minor % 2 == 1

    source, _ = opened(FakeNvml(gpus=4), opens=odd)
    assert [device.uuid for device in source.devices] == ["GPU-gpu1", "GPU-gpu3"]
    source, _ = opened(FakeNvml(gpus=4), opens=odd, CUDA_VISIBLE_DEVICES="1")
    assert [device.uuid for device in source.devices] == ["GPU-gpu3"]
    source, _ = opened(FakeNvml(gpus=4), SLURM_STEP_GPUS="0,2")
    assert [device.uuid for device in source.devices] == ["GPU-gpu0", "GPU-gpu2"]


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


def test_an_old_driver_has_throttle_reasons():
    library = FakeNvml(gpus=1)
    library.refused["nvmlDeviceGetCurrentClocksEventReasons"] = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
    source, _ = opened(library)
    assert source.read()[0].values["CLOCKS_EVENT_REASONS"] == 64


def test_an_old_driver_has_memory_without_version_2():
    library = FakeNvml(gpus=1)
    library.refused["nvmlDeviceGetMemoryInfo_v2"] = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
    source, _ = opened(library)
    assert source.read()[0].values["FB_USED"] == 41 * 2**30


def test_only_the_jobs_gpus():
    source, _ = opened(FakeNvml(gpus=4), CUDA_VISIBLE_DEVICES="2,GPU-gpu0", GIPFEL_NODE="n1")
    assert [(device.uuid, device.index, device.node) for device in source.devices] == [
        ("GPU-gpu0", 0, "n1"),
        ("GPU-gpu2", 2, "n1"),
    ]
    assert {sample.device for sample in source.read()} == {"GPU-gpu0", "GPU-gpu2"}


def test_mig_instances_are_read_through_their_gpu():
    library = FakeNvml(gpus=1, gpm=HOPPER, mig=2)
    source, clock = opened(library, CUDA_VISIBLE_DEVICES="MIG-gpu0-1")
    clock.now_ns = 10**9
    (sample,) = source.read()
    assert sample.device == "MIG-gpu0-1"
    assert sample.values["SM_ACTIVE"] == pytest.approx(0.875)
    assert sample.values["POWER_USAGE"] is None
    assert library.requests[0][0][:2] == ("gpu0", 8)


@pytest.mark.parametrize("environment", [{"CUDA_VISIBLE_DEVICES": ""}, {"CUDA_VISIBLE_DEVICES": "9"}])
def test_a_job_without_a_gpu_is_one_line_and_leaves_nml_closed(environment):
    library = FakeNvml()
    with pytest.raises(SourceError, match="no GPU"):
        opened(library, **environment)
    assert library.open == 0


def test_a_machine_without_a_driver_is_one_line():
    library = FakeNvml()
    library.refused["nvmlInit"] = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    with pytest.raises(SourceError, match="NVML can't be opened"):
        opened(library)


def test_closing_frees_everything():
    library = FakeNvml(gpm=HOPPER)
    source, _ = opened(library)
    assert len(library.samples) == 4
    source.close()
    assert (library.samples, library.open) == ({}, 0)


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
    command = [sys.executable, "-m", "gipfel_extension.telemetry.recorder", "--source", "auto"]
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
    last = {name: float(column[-1]) for name, column in table.of("GPU-0123-4567").items()}
    expected = {
        "SM_ACTIVE": 0.02,
        "PIPE_TENSOR_ACTIVE": 0.05,
        "DRAM_ACTIVE": 0.1,
        "NVLINK_TX_BYTES": 61 * MIB,
        "NVLINK_RX_BYTES": 60 * MIB,
        "GPU_UTIL": 0.87,
        "FB_USED": 40 * 2**30,
        "POWER_USAGE": 612.345,
        "PIPE_INT_ACTIVE": 0.04,
        "C2C_RX_ALL_BYTES": 101 * MIB,
    }
    # A segment keeps as many digits as the hardware knows.
    assert {name: last[name] for name in expected} == pytest.approx(expected, rel=1e-3)
    missing = [name for name, value in last.items() if value != value]
    assert missing == ["PIPE_FP64_ACTIVE", "PIPE_FP16_ACTIVE", "SM_CLOCK"]
    assert last["CLOCKS_EVENT_REASONS"] == 0x44
