"""NVIDIA GPUs through NVML, with GPM's profiling metrics where the GPU supports them."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..events import Event
from ..metric_table import GPU_METRICS
from ..sample import Device, Sample, SourceError
from . import Source, SourceRequest, attempt, import_library, log
from .counters import GpuHealth, nvml_counters
from .job_gpus import can_open_nvidia, job_gpus
from .nvidia import GpmWindow, NvmlEvents

_Reading = Callable[[Any, Any], float]

#: A PCIe measurement blocks for 20 ms per direction; it may take at most this share of an interval.
_PCIE_SHARE = 0.25
#: Duration of a measurement of both directions.
_PCIE_SECONDS = 0.040


@dataclass(frozen=True)
class _Gpu:
    device: Device
    handle: Any
    parent: Any
    instance: int | None


class NvmlSource(Source):
    """The job's GPUs, or its MIG instances, by UUID.

    In the environment of the request, ``CUDA_VISIBLE_DEVICES`` selects GPUs by index or UUID; empty selects
    none. If it is unset, the job's GPUs are those of ``SLURM_STEP_GPUS``, else every GPU that the job's
    cgroup permits.

    Parameters
    ----------
    library
        The `pynvml` module; None imports it.
    can_open
        Function that returns whether the device file with a minor number can be opened.

    Raises
    ------
    SourceError
        The NVIDIA driver is not installed, or the job has no GPU.
    """

    def __init__(
        self,
        request: SourceRequest,
        *,
        library: Any = None,
        can_open: Callable[[int], bool] = can_open_nvidia,
    ) -> None:
        self._clock = clock = request.clock
        self._max_clocks: dict[str, float | None] = {}
        self._metrics = request.metrics
        self._nvml = library or import_library(
            "pynvml", "NVML's Python module is not installed.", "Install nvidia-ml-py."
        )
        self._try = partial(attempt, self._nvml.NVMLError)
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            raise SourceError(
                f"NVML can't be opened: {error}.",
                "Request a GPU, or check that nvidia-smi works on this node.",
            ) from error
        self._node = request.environment.get("GIPFEL_NODE", "")
        try:
            self._gpus = self._choose(request.environment, can_open)
        except BaseException:
            self._nvml.nvmlShutdown()
            raise
        self.devices: tuple[Device, ...] = tuple(gpu.device for gpu in self._gpus)
        self._windows = {gpu.device.uuid: self._window(gpu) for gpu in self._gpus}
        self._reads_pcie = _PCIE_SECONDS * len(self._gpus) <= _PCIE_SHARE * request.interval
        #: True where any of the GPUs supports the driver's profiling (GPM), so that ten samples a second are
        #: cheap and useful.
        self.fine = any(window is not None for window in self._windows.values())
        self.name = "nvml+gpm" if self.fine else "nvml"
        self._events = NvmlEvents(
            self._nvml, {gpu.device.uuid: gpu.parent for gpu in self._gpus}, node=self._node, clock=clock
        )
        self._health = GpuHealth(
            {gpu.device.uuid: partial(nvml_counters, self._nvml, gpu.parent) for gpu in self._gpus},
            node=self._node,
            clock=clock,
        )

    def read(self) -> list[Sample]:
        """Return one sample per GPU; values that NVML cannot read are None."""
        samples = []
        for gpu in self._gpus:
            time_ns, monotonic_ns = self._clock.time_ns(), self._clock.monotonic_ns()
            values: dict[str, float | None] = dict.fromkeys(GPU_METRICS)
            values.update(self._plain(gpu))
            values.update(self._profiled(gpu, monotonic_ns))
            if self._metrics:
                values.update(read_extra(self._nvml, gpu.handle, self._metrics, values))
            samples.append(Sample(time_ns, monotonic_ns, gpu.device.uuid, values))
        return samples

    def events(self) -> list[Event]:
        """Return XIDs, lost GPUs and rising error counters since the last call."""
        return [*self._events.poll(), *self._health.poll()]

    def processes(self) -> list[tuple[int, str]]:
        """Return the compute processes on the job's GPUs that the driver shows to this user."""
        found = []
        for gpu in self._gpus:
            # Explicit versions: drivers before 510 only support the second, and the unversioned name raises.
            running = self._try(self._nvml.nvmlDeviceGetComputeRunningProcesses_v3, gpu.handle)
            if running is None:
                running = self._try(self._nvml.nvmlDeviceGetComputeRunningProcesses_v2, gpu.handle) or ()
            found += [(int(each.pid), gpu.device.uuid) for each in running]
        return found

    def close(self) -> None:
        """Free GPM's samples and shut down NVML."""
        self._events.close()
        for window in self._windows.values():
            if window is not None:
                window.close()
        self._windows = {}
        self._nvml.nvmlShutdown()

    def _choose(self, environment: Mapping[str, str], can_open: Callable[[int], bool]) -> tuple[_Gpu, ...]:
        nvml = self._nvml
        try:
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            raise SourceError(
                f"NVML can't list the GPUs: {error}.", "Check that nvidia-smi works on this node."
            ) from error
        # A GPU that the cgroup does not permit has no handle.
        whole = [(index, self._try(nvml.nvmlDeviceGetHandleByIndex, index)) for index in range(count)]
        found = [gpu for index, handle in whole if handle is not None for gpu in self._parts(index, handle)]
        minors = {gpu.device.uuid: self._try(nvml.nvmlDeviceGetMinorNumber, gpu.parent) for gpu in found}
        selected = job_gpus(minors, environment, can_open=can_open)
        if not selected:
            raise SourceError("This job has no GPU.", "Request a GPU when you start the job.")
        return tuple(gpu for gpu in found if gpu.device.uuid in selected)

    def _parts(self, index: int, handle: Any) -> list[_Gpu]:
        """Return the GPU, or its MIG instances where MIG is enabled."""
        nvml = self._nvml
        mode = self._try(nvml.nvmlDeviceGetMigMode, handle)
        if not mode or not mode[0]:
            return [_Gpu(self._describe(index, handle), handle, handle, None)]
        parts = []
        for instance_index in range(self._try(nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
            part = self._try(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, instance_index)
            if part is not None:
                instance = self._try(nvml.nvmlDeviceGetGpuInstanceId, part)
                parts.append(_Gpu(self._describe(index, part), part, handle, instance))
        return parts

    def _describe(self, index: int, handle: Any) -> Device:
        uuid, name = self._nvml.nvmlDeviceGetUUID(handle), self._nvml.nvmlDeviceGetName(handle)
        return Device(uuid, "gpu", name, index, node=self._node)

    def _window(self, gpu: _Gpu) -> GpmWindow | None:
        nvml = self._nvml
        try:
            if not nvml.nvmlGpmQueryDeviceSupport(gpu.parent).isSupportedDevice:
                return None
            return GpmWindow(nvml, gpu.parent, gpu.instance, self._clock.monotonic_ns(), extra=self._metrics)
        except nvml.NVMLError as error:
            log.info("No GPM on %s: %s", gpu.device.uuid, error)
            return None

    def _plain(self, gpu: _Gpu) -> dict[str, float | None]:
        nvml, handle, uuid = self._nvml, gpu.handle, gpu.device.uuid
        try:
            rates = nvml.nvmlDeviceGetUtilizationRates(handle)
        except nvml.NVMLError as error:
            rates = None
            self._events.on_error(uuid, error)
        # Version 2 separates reserved from used memory, as nvidia-smi does.
        memory = self._try(nvml.nvmlDeviceGetMemoryInfo, handle, nvml.nvmlMemory_v2)
        memory = memory if memory is not None else self._try(nvml.nvmlDeviceGetMemoryInfo, handle)
        values: dict[str, float | None] = {
            "GPU_UTIL": rates.gpu / 100 if rates is not None else None,
            "FB_USED": float(memory.used) if memory is not None else None,
            "FB_TOTAL": float(memory.total) if memory is not None else None,
        }
        if gpu.instance is not None:
            # Power, clocks and links of the whole GPU cannot be attributed to an instance.
            return values
        if uuid not in self._max_clocks:
            # The maximum clock never changes: one call is enough.
            self._max_clocks[uuid] = self._number(nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM)
        reasons = self._number(nvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
        if reasons is None:
            # The name in drivers before 535.
            reasons = self._number(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
        values |= {
            "POWER_USAGE": self._number(nvml.nvmlDeviceGetPowerUsage, handle, per_unit=1000),
            # Volta and later GPUs count their energy since the driver was loaded; unlike power, the counter
            # misses nothing between samples.
            "TOTAL_ENERGY": self._number(nvml.nvmlDeviceGetTotalEnergyConsumption, handle, per_unit=1000),
            "GPU_TEMP": self._number(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            "SM_CLOCK": self._number(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
            "MAX_SM_CLOCK": self._max_clocks[uuid],
            "CLOCKS_EVENT_REASONS": reasons,
        }
        if self._windows[uuid] is None and self._reads_pcie:
            for name, counter in (
                ("PCIE_TX_BYTES", nvml.NVML_PCIE_UTIL_TX_BYTES),
                ("PCIE_RX_BYTES", nvml.NVML_PCIE_UTIL_RX_BYTES),
            ):
                # NVML counts KiB.
                values[name] = self._number(
                    nvml.nvmlDeviceGetPcieThroughput, handle, counter, per_unit=1 / 1024
                )
        return values

    def _number(self, function: Callable[..., Any], *arguments: Any, per_unit: float = 1.0) -> float | None:
        """Return a reading in units of `per_unit`; None where NVML cannot read it."""
        value = self._try(function, *arguments)
        return None if value is None else value / per_unit

    def _profiled(self, gpu: _Gpu, now_ns: int) -> dict[str, float | None]:
        window = self._windows[gpu.device.uuid]
        if window is None:
            return {}
        try:
            return window.read(now_ns)
        except self._nvml.NVMLError as error:
            self._events.on_error(gpu.device.uuid, error)
            log.debug("GPM of %s: %s", gpu.device.uuid, error)
            return {}


def read_extra(
    nvml: Any, gpu: Any, metrics: tuple[str, ...], known: Mapping[str, float | None]
) -> dict[str, float | None]:
    """Return the requested metrics that GPM did not return; values that NVML cannot read are None."""
    values: dict[str, float | None] = {}
    for metric in metrics:
        if known.get(metric) is not None:
            continue
        values[metric] = None
        if metric in _READINGS:
            with suppress(nvml.NVMLError, LookupError, AttributeError):
                values[metric] = float(_READINGS[metric](nvml, gpu))
    return values


def _field_value(nvml: Any, gpu: Any, field_id: int) -> float:
    (value,) = nvml.nvmlDeviceGetFieldValues(gpu, [field_id])
    if value.nvmlReturn != nvml.NVML_SUCCESS:
        raise LookupError(field_id)
    return float(value.value.uiVal)


_READINGS: Mapping[str, _Reading] = {
    "MEM_COPY_UTIL": lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).memory / 100,
    "ENC_UTIL": lambda nvml, gpu: nvml.nvmlDeviceGetEncoderUtilization(gpu)[0] / 100,
    "DEC_UTIL": lambda nvml, gpu: nvml.nvmlDeviceGetDecoderUtilization(gpu)[0] / 100,
    "FB_FREE": lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu, nvml.nvmlMemory_v2).free,
    "FB_RESERVED": lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu, nvml.nvmlMemory_v2).reserved,
    "MEM_CLOCK": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),
    "MEMORY_TEMP": lambda nvml, gpu: _field_value(nvml, gpu, nvml.NVML_FI_DEV_MEMORY_TEMP),
}
