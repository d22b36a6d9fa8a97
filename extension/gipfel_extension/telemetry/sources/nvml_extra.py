"""Metrics of plain NVML that are read on request alone."""

from collections.abc import Callable, Mapping
from typing import Any

_Reading = Callable[[Any, Any], float]

_READINGS: Mapping[str, _Reading] = {
    "MEM_COPY_UTIL": lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).memory / 100,
    "ENC_UTIL": lambda nvml, gpu: nvml.nvmlDeviceGetEncoderUtilization(gpu)[0] / 100,
    "DEC_UTIL": lambda nvml, gpu: nvml.nvmlDeviceGetDecoderUtilization(gpu)[0] / 100,
    "FB_FREE": lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu, nvml.nvmlMemory_v2).free,
    "FB_RESERVED": lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu, nvml.nvmlMemory_v2).reserved,
    "MEM_CLOCK": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),
    "TOTAL_ENERGY": lambda nvml, gpu: nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1000,
    "MEMORY_TEMP": lambda nvml, gpu: _field(nvml, gpu, nvml.NVML_FI_DEV_MEMORY_TEMP),
}


def read_extra(
    nvml: Any, gpu: Any, metrics: tuple[str, ...], known: Mapping[str, float | None]
) -> dict[str, float | None]:
    """The metrics that were asked for and that GPM did not give; None for what NVML refuses."""
    values: dict[str, float | None] = {}
    for metric in metrics:
        if known.get(metric) is not None:
            continue
        values[metric] = None
        if metric in _READINGS:
            try:
                values[metric] = float(_READINGS[metric](nvml, gpu))
            except (nvml.NVMLError, LookupError, AttributeError):
                continue
    return values


def _field(nvml: Any, gpu: Any, number: int) -> float:
    (value,) = nvml.nvmlDeviceGetFieldValues(gpu, [number])
    if value.nvmlReturn != nvml.NVML_SUCCESS:
        raise LookupError(number)
    return float(value.value.uiVal)
