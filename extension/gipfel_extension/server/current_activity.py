"""How busy the GPUs are at this moment, as one number for the lab's status bar."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from ..telemetry.sample import Device, SampleTable
from .activity import GPU_WORK

#: Seconds before now over which the share is a mean.
WINDOW_S = 10.0


def current_activity(table: SampleTable, devices: Iterable[Device], now_ns: int) -> dict[str, Any]:
    """Return the mean share of the GPUs' work in the last seconds, as `GpuActivity` declares it.

    It is of the most telling metric that any of them has; GPUs without a recent sample do not count.
    """
    gpus = [device for device in devices if device.kind == "gpu"]
    since_ns = now_ns - int(WINDOW_S * 1e9)
    found: dict[str, Any] = {"gpus": len(gpus), "share": None, "metric": ""}
    found["simulated"] = any(gpu.simulated for gpu in gpus)
    for metric in GPU_WORK:
        means = [mean for gpu in gpus if (mean := _mean(table, gpu.uuid, metric, since_ns)) is not None]
        if means:
            return {**found, "share": round(sum(means) / len(means), 3), "metric": metric}
    return found


def _mean(table: SampleTable, device: str, metric: str, since_ns: int) -> float | None:
    columns = table.of(device) if device in table else {}
    if metric not in columns:
        return None
    values = columns[metric][columns["time_ns"] > since_ns]
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else None
