"""Tables of samples for the tests of the score: computed, not measured on a GPU."""

from collections.abc import Mapping, Sequence

import numpy as np

from gipfel_extension.telemetry.metric_table import GPU_METRICS, HOST_METRICS
from gipfel_extension.telemetry.sample import Device, SampleTable

H100 = "NVIDIA H100 80GB HBM3"
START_NS = 1_700_000_000 * 10**9


def gpu(index: int = 0, *, name: str = H100, node: str = "nid1") -> Device:
    return Device(f"GPU-{node}-{index}", "gpu", name, index, node=node)


def host(node: str = "nid1") -> Device:
    return Device(f"host:{node}", "host", node, None, node=node, scope="job cgroup")


def table(
    series: Mapping[Device, Mapping[str, Sequence[float] | float]], *, length: int, interval: float = 1.0
) -> SampleTable:
    """A row per interval; a number stands for all rows, what isn't named is missing."""
    columns = {}
    for device, values in series.items():
        metrics = GPU_METRICS if device.kind == "gpu" else HOST_METRICS
        own = {
            "time_ns": START_NS + (np.arange(length) * interval * 1e9).astype(np.int64),
            "monotonic_ns": (np.arange(length) * interval * 1e9).astype(np.int64),
        }
        for metric in dict.fromkeys((*metrics, *values)):
            given = values.get(metric, np.nan)
            own[metric] = np.broadcast_to(np.asarray(given, np.float64), length).copy()
        columns[device.uuid] = own
    return SampleTable(tuple(series), columns, "test", interval)


def busy(
    tensor: object = 0.6, dram: object = 0.3, active: object = 0.9, engine: object = 1.0, **more: object
):
    """A GPU's metrics, all that confidence counts; those of the links are quiet."""
    quiet = dict.fromkeys(
        (
            "PIPE_FP64_ACTIVE",
            "PIPE_FP32_ACTIVE",
            "PIPE_FP16_ACTIVE",
            "NVLINK_TX_BYTES",
            "NVLINK_RX_BYTES",
            "PCIE_TX_BYTES",
            "PCIE_RX_BYTES",
        ),
        0.0,
    )
    known = {
        "PIPE_TENSOR_ACTIVE": tensor,
        "DRAM_ACTIVE": dram,
        "SM_ACTIVE": active,
        "GR_ENGINE_ACTIVE": engine,
        "GPU_UTIL": 1.0,
    }
    return {**quiet, **known, **more}
