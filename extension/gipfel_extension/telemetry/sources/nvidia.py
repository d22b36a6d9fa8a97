"""NVIDIA GPUs beyond NVML's plain readings: profiling metrics (GPM), XIDs and lost GPUs."""

import ctypes
import math
from collections.abc import Iterable, Mapping
from typing import Any

from ..events import Event
from ..metric_table import DCGM_FIELDS, GPU_METRICS
from . import Clock, attempt, log

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

#: Metrics that were added to GPM later: an older driver may refuse the whole request because of one of them.
LATER_METRICS = frozenset({"C2C_TX_ALL_BYTES", "C2C_RX_ALL_BYTES"})

#: Shortest GPM window: NVML needs 100 ms for valid values, and a reading may come slightly early.
MIN_WINDOW_NS = 90_000_000

#: Maximum number of XIDs that one poll reads: a broken GPU may report very many.
_MAX_AT_ONCE = 32
#: Descriptions of the most common XIDs by number. Source: NVIDIA's "XID errors".
_XIDS: Mapping[int, str] = {
    13: "a program's error, such as an access out of bounds",
    31: "a program's access to memory that it may not access",
    43: "a program's error that reset its channel",
    45: "a program was terminated while its work was running",
    48: "an uncorrectable memory error",
    61: "a fault of the GPU's microcontroller",
    62: "a fault of the GPU's microcontroller",
    63: "a memory row is being remapped",
    64: "a memory row could not be remapped",
    74: "a fault of NVLink",
    79: "the GPU fell off the bus",
    92: "many correctable memory errors",
    94: "an uncorrectable memory error that terminated one program",
    95: "an uncorrectable memory error that affects every program",
    119: "the GPU system processor (GSP) does not respond",
    120: "a fault of the GPU system processor (GSP)",
    145: "a fault of NVLink",
    149: "a fault of NVLink",
}


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
        # Before the computation, which may fail: the second sample starts the next window in any case.
        self._samples.reverse()
        self._started_ns = now_ns
        try:
            return self._compare(first, second, self._metrics)
        except self._nvml.NVMLError:
            # The error does not name the metric that the driver refuses, so requested ones are left out, too.
            basic = {
                name: each
                for name, each in self._metrics.items()
                if name in GPM_METRICS and name not in LATER_METRICS
            }
            values = self._compare(first, second, basic)
            # Not if this request fails as well: then the error has another cause.
            self._metrics = basic
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


class NvmlEvents:
    """Collector of events: XIDs from an NVML event set, and lost GPUs, recognized by errors of NVML calls.

    Parameters
    ----------
    library
        The `pynvml` module.
    gpus
        GPU handles by UUID of each GPU or MIG instance.
    """

    def __init__(self, library: Any, gpus: Mapping[str, Any], *, node: str, clock: Clock) -> None:
        self._nvml = library
        self._gpus = dict(gpus)
        self._node = node
        self._clock = clock
        self._lost: set[str] = set()
        self._waiting: list[Event] = []
        self._set = self._create_event_set()

    def poll(self) -> list[Event]:
        """Return, without waiting, the events since the last call."""
        found, self._waiting = self._waiting, []
        for _ in range(_MAX_AT_ONCE if self._set is not None else 0):
            try:
                data = self._nvml.nvmlEventSetWait_v2(self._set, 0)
            except self._nvml.NVMLError as error:
                if error.value == self._nvml.NVML_ERROR_GPU_IS_LOST:
                    found += [event for uuid in self._gpus for event in self._loss(uuid)]
                break
            found += self._xid(data)
        return found

    def on_error(self, uuid: str, error: Any) -> None:
        """Add an event if the error of an NVML call means that the GPU is lost."""
        if error.value == self._nvml.NVML_ERROR_GPU_IS_LOST:
            self._waiting += self._loss(uuid)

    def close(self) -> None:
        """Free the event set."""
        events, self._set = self._set, None
        if events is not None:
            attempt(self._nvml.NVMLError, self._nvml.nvmlEventSetFree, events)

    def _create_event_set(self) -> Any:
        nvml = self._nvml
        try:
            events = nvml.nvmlEventSetCreate()
        except (nvml.NVMLError, AttributeError) as error:
            log.debug("No event set: %s", error)
            return None
        kind = nvml.nvmlEventTypeXidCriticalError
        for handle in self._gpus.values():
            attempt(nvml.NVMLError, nvml.nvmlDeviceRegisterEvents, handle, kind, events)
        return events

    def _xid(self, data: Any) -> list[Event]:
        if data.eventType != self._nvml.nvmlEventTypeXidCriticalError:
            return []
        number = int(data.eventData)
        text = f": {_XIDS[number]}" if number in _XIDS else ""
        address = _address(data.device)
        # An XID of a GPU affects all its MIG instances.
        uuids = [uuid for uuid, handle in self._gpus.items() if _address(handle) == address]
        return [self._event("xid", uuid, f"The driver reports XID {number}{text}.") for uuid in uuids]

    def _loss(self, uuid: str) -> list[Event]:
        if uuid in self._lost:
            return []
        self._lost.add(uuid)
        return [self._event("gpu_lost", uuid, "The GPU is lost: the driver can no longer access it.")]

    def _event(self, kind: str, uuid: str, message: str) -> Event:
        return Event(self._clock.time_ns(), self._node, kind, uuid, message)


def _address(handle: Any) -> Any:
    """Return the address that a handle points to, since ctypes pointers compare by identity."""
    try:
        return ctypes.cast(handle, ctypes.c_void_p).value
    except (ctypes.ArgumentError, TypeError):
        return handle
