"""A fake NVML on the real module's structures, and a source that reads it."""

# ruff: noqa: N802 - the names are NVML's

import ctypes
import threading
from types import SimpleNamespace
from typing import Any

import pynvml

from gipfel_extension.telemetry.sources import SourceRequest
from gipfel_extension.telemetry.sources.nvml import NvmlSource

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

    def nvmlDeviceGetName(self, handle: str) -> str:
        return "NVIDIA H100"

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

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        self._check("nvmlDeviceGetTotalEnergyConsumption")
        return 7_654_321_000

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        return 61

    def nvmlDeviceGetMaxClockInfo(self, handle: str, kind: int) -> int:
        return 1980

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
    can_open: Any = None,
    **environment: str,
) -> tuple[NvmlSource, SetClock]:
    clock = SetClock()
    request = SourceRequest(interval, environment=environment, clock=clock, metrics=metrics)
    return NvmlSource(request, library=library, can_open=can_open or (lambda minor: True)), clock


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
