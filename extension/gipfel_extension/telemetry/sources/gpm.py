"""GPU performance monitoring (GPM): NVML's profiling metrics of Hopper and later, for unprivileged users.

Two GPM samples of one GPU enclose a window; NVML computes the metrics of that window. Ids and units follow
DCGM's own mapping to GPM, so that values agree with DCGM's fields of the same names.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from ..metric_table import DCGM_FIELDS, GPU_METRICS

#: GPM metric id, and factor from NVML's unit (percent, MiB/s) to a fraction or B/s, by metric.
ALL_METRICS: Mapping[str, tuple[int, float]] = {
    metric.name: (metric.gpm_id, metric.gpm_factor)
    for metric in DCGM_FIELDS.values()
    if metric.gpm_id is not None
}

#: The GPM metrics that are always read.
GPM_METRICS: Mapping[str, tuple[int, float]] = {
    metric: each for metric, each in ALL_METRICS.items() if metric in GPU_METRICS
}

#: Metrics that the first drivers with GPM do not know; they may refuse a whole request that contains one.
LATER_METRICS = frozenset({"C2C_TX_ALL_BYTES", "C2C_RX_ALL_BYTES"})

#: Shortest window: NVML needs 100 ms for valid values; a reading at this interval may come slightly early.
MIN_WINDOW_NS = 90_000_000


class GpmWindow:
    """The current GPM window of one GPU or MIG instance.

    Parameters
    ----------
    library
        The `pynvml` module.
    handle
        The GPU; for a MIG instance its parent GPU.
    instance
        Id of the MIG GPU instance, None for a whole GPU.
    extra
        Requested metrics in addition to those that are always read.

    Raises
    ------
    library.NVMLError
        The GPU has no GPM, or this user may not read it.
    """

    def __init__(
        self, library: Any, handle: Any, instance: int | None, now_ns: int, *, extra: Iterable[str] = ()
    ) -> None:
        self._nvml = library
        self._handle = handle
        self._instance = instance
        self._samples: list[Any] = []
        self._started_ns = now_ns
        requested = {name: ALL_METRICS[name] for name in extra if name in ALL_METRICS}
        self._metrics = {**GPM_METRICS, **requested}
        try:
            for _ in range(2):
                self._samples.append(library.nvmlGpmSampleAlloc())
            self._get_sample(self._samples[0])
        except library.NVMLError:
            self.close()
            raise

    def read(self, now_ns: int) -> dict[str, float | None]:
        """Return the metrics since the last read; an empty dictionary within the shortest window."""
        if now_ns - self._started_ns < MIN_WINDOW_NS:
            return {}
        first, second = self._samples
        self._get_sample(second)
        # The second sample starts the next window, even if this computation fails.
        self._samples.reverse()
        self._started_ns = now_ns
        try:
            return self._compare(first, second, self._metrics)
        except self._nvml.NVMLError:
            earlier = {
                name: each
                for name, each in self._metrics.items()
                if name in GPM_METRICS and name not in LATER_METRICS
            }
            values = self._compare(first, second, earlier)
            self._metrics = earlier
            return values

    def close(self) -> None:
        """Free the samples."""
        while self._samples:
            self._nvml.nvmlGpmSampleFree(self._samples.pop())

    def _compare(
        self, first: Any, second: Any, metrics: Mapping[str, tuple[int, float]]
    ) -> dict[str, float | None]:
        request = self._nvml.c_nvmlGpmMetricsGet_t()
        request.version = self._nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(metrics)
        request.sample1 = first
        request.sample2 = second
        for index, (number, _) in enumerate(metrics.values()):
            request.metrics[index].metricId = number
        self._nvml.nvmlGpmMetricsGet(request)
        return {
            name: self._value(request.metrics[index], factor)
            for index, (name, (_, factor)) in enumerate(metrics.items())
        }

    def _get_sample(self, sample: Any) -> None:
        if self._instance is None:
            self._nvml.nvmlGpmSampleGet(self._handle, sample)
        else:
            self._nvml.nvmlGpmMigSampleGet(self._handle, self._instance, sample)

    def _value(self, metric: Any, factor: float) -> float | None:
        if metric.nvmlReturn != self._nvml.NVML_SUCCESS:
            return None
        value = float(metric.value)
        return value * factor if math.isfinite(value) and value >= 0 else None
