"""gssr 0.4.0: one JSON file per process, ``{"metadata": …, "data": {<gpu>: {<metric>: […]}}}``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..files import read_json
from ..sample import Device, SampleTable
from .dcgm_names import MIB, number_of
from .recording import Recording, gpu_columns

_MOST_BYTES = 512 << 20
#: What nanoseconds since 1970 can say.
_LATEST_S = 9e9
#: gssr's names; ``gpu_utilization`` is a percentage, the profiling metrics beside it are fractions.
_METRICS: Mapping[str, tuple[str, float]] = {
    "gpu_utilization": ("GPU_UTIL", 0.01),
    "sm_active": ("SM_ACTIVE", 1.0),
    "sm_occupancy": ("SM_OCCUPANCY", 1.0),
    "dram_active": ("DRAM_ACTIVE", 1.0),
    "tensor_active": ("PIPE_TENSOR_ACTIVE", 1.0),
    "fp64_active": ("PIPE_FP64_ACTIVE", 1.0),
    "fp32_active": ("PIPE_FP32_ACTIVE", 1.0),
    "fp16_active": ("PIPE_FP16_ACTIVE", 1.0),
    "pcie_tx_bytes": ("PCIE_TX_BYTES", 1.0),
    "pcie_rx_bytes": ("PCIE_RX_BYTES", 1.0),
    "nvlink_tx_bytes": ("NVLINK_TX_BYTES", 1.0),
    "nvlink_rx_bytes": ("NVLINK_RX_BYTES", 1.0),
    "fb_used": ("FB_USED", MIB),
    "fb_total": ("FB_TOTAL", MIB),
}


def read_gssr_json(path: Path) -> Recording:
    """One process's file.

    Raises
    ------
    ValueError
        Not JSON, or not gssr's.
    """
    try:
        content = read_json(path, _MOST_BYTES, follow=True)
        return _recording(path.name, dict(content["metadata"]), dict(content["data"]))
    except (LookupError, TypeError, AttributeError, ArithmeticError, ValueError) as error:
        raise ValueError(f"it is not a JSON file of gssr ({error!r})") from error


def _recording(name: str, about: Mapping[str, Any], data: Mapping[str, Any]) -> Recording:
    node, process = str(about.get("hostname", "")), int(number_or(about.get("proc_id"), 0))
    devices, columns, interval = [], {}, 0.0
    for gpu, series in data.items():
        uuid = f"{node}:{gpu}"
        index = int(gpu) if str(gpu).isdigit() else None
        devices.append(Device(uuid, "gpu", "", index, node=node))
        length = max((len(values) for values in series.values()), default=0)
        times, interval = _times(about, length)
        values = {
            _METRICS[each][0]: _padded(series[each], length) * _METRICS[each][1]
            for each in series
            if each in _METRICS
        }
        columns[uuid] = gpu_columns(times, values)
    label = f"job {about.get('job_id', '?')} step {about.get('step_id', '?')}"
    table = SampleTable(tuple(devices), columns, f"gssr {name}", interval)
    return Recording(table, label, _notes(about, len(data)), {process: [device.uuid for device in devices]})


def number_or(text: object, fallback: float) -> float:
    """A number as it was written, else the fallback."""
    value = number_of(text)
    return fallback if np.isnan(value) else value


def _times(about: Mapping[str, Any], length: int) -> tuple[np.typing.NDArray[np.int64], float]:
    """Times spread evenly up to the end, which is known, and seconds between them."""
    nominal = number_or(about.get("sampling_time"), 500.0) / 1000.0
    start, end = (number_or(about.get(name), 0.0) for name in ("start_time", "end_time"))
    if not all(0 <= each < _LATEST_S for each in (nominal, start, end)):
        raise ValueError("its times are not seconds since 1970")
    interval = max(nominal, (end - start) / length) if length and end > start else nominal
    end = end or start + interval * length
    steps = np.arange(length - 1, -1, -1, dtype=np.float64)
    return ((end - steps * interval) * 1e9).astype(np.int64), interval


def _padded(values: list[object], length: int) -> np.typing.NDArray[np.float64]:
    """The last values of a series that is shorter than others are the ones that are aligned."""
    numbers = [number_of(value) for value in values]
    return np.array([float("nan")] * (length - len(numbers)) + numbers, np.float64)


def _notes(about: Mapping[str, Any], held: int) -> tuple[str, ...]:
    notes = [
        "gssr writes no time per sample: they are spread evenly between start and end.",
        "gssr records neither GR_ENGINE_ACTIVE nor the host: waiting for input looks idle.",
        "gssr keeps samples in memory until the end: of a run that was killed there is nothing.",
    ]
    gpus = int(number_or(about.get("n_gpus"), held))
    if gpus > held:
        notes.insert(0, f"gssr wrote {held} of the {gpus} GPUs of its process: the others are lost.")
    return tuple(notes)
