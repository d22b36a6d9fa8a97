"""Events of the NVIDIA driver beside its metrics: XIDs, and lost GPUs."""

import ctypes
import logging
from collections.abc import Mapping
from typing import Any

from ..events import Event
from . import Clock

log = logging.getLogger(__name__)

#: A broken GPU reports in floods.
_MOST_AT_ONCE = 32
#: Descriptions of the commonest XIDs. Source: NVIDIA's "XID errors", by number.
_XIDS: Mapping[int, str] = {
    13: "a program's error, such as an access out of bounds",
    31: "a program's access to memory that isn't its own",
    43: "a program's error that reset its channel",
    45: "a program was ended while its work ran",
    48: "an uncorrectable error of its memory",
    61: "a fault of its microcontroller",
    62: "a fault of its microcontroller",
    63: "a row of its memory is being replaced",
    64: "a row of its memory could not be replaced",
    74: "a fault of NVLink",
    79: "it fell off the bus",
    92: "many correctable errors of its memory",
    94: "an uncorrectable error of its memory that ended one program",
    95: "an uncorrectable error of its memory that concerns every program",
    119: "its system processor doesn't answer",
    120: "a fault of its system processor",
    145: "a fault of NVLink",
    149: "a fault of NVLink",
}


class NvmlEvents:
    """XIDs from an event set, and losses from the error of a refused call.

    Parameters
    ----------
    library
        NVML as `pynvml` gives it.
    gpus
        UUID of each GPU or MIG instance to the handle of its GPU.
    """

    def __init__(self, library: Any, gpus: Mapping[str, Any], *, node: str, clock: Clock) -> None:
        self._nvml = library
        self._gpus = dict(gpus)
        self._node = node
        self._clock = clock
        self._lost: set[str] = set()
        self._waiting: list[Event] = []
        self._set = self._registered()

    def poll(self) -> list[Event]:
        """Return what happened since the last call; never waits."""
        found, self._waiting = self._waiting, []
        for _ in range(_MOST_AT_ONCE if self._set is not None else 0):
            try:
                data = self._nvml.nvmlEventSetWait_v2(self._set, 0)
            except self._nvml.NVMLError as error:
                if error.value == self._nvml.NVML_ERROR_GPU_IS_LOST:
                    found += [event for uuid in self._gpus for event in self._loss(uuid)]
                break
            found += self._xid(data)
        return found

    def refused(self, uuid: str, error: Any) -> None:
        """Take note that NVML refused to read a GPU."""
        if error.value == self._nvml.NVML_ERROR_GPU_IS_LOST:
            self._waiting += self._loss(uuid)

    def close(self) -> None:
        """Free the event set."""
        events, self._set = self._set, None
        if events is not None:
            try:
                self._nvml.nvmlEventSetFree(events)
            except self._nvml.NVMLError as error:
                log.debug("The event set can't be freed: %s", error)

    def _registered(self) -> Any:
        nvml = self._nvml
        try:
            events = nvml.nvmlEventSetCreate()
        except (nvml.NVMLError, AttributeError) as error:
            log.debug("No event set: %s", error)
            return None
        for uuid, handle in self._gpus.items():
            try:
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
            except nvml.NVMLError as error:
                log.debug("No events of %s: %s", uuid, error)
        return events

    def _xid(self, data: Any) -> list[Event]:
        if data.eventType != self._nvml.nvmlEventTypeXidCriticalError:
            return []
        number = int(data.eventData)
        text = f": {_XIDS[number]}" if number in _XIDS else ""
        where = _address(data.device)
        # Of a GPU that is cut into instances every instance is concerned.
        of = [uuid for uuid, handle in self._gpus.items() if _address(handle) == where]
        return [self._event("xid", uuid, f"The driver reports XID {number}{text}.") for uuid in of]

    def _loss(self, uuid: str) -> list[Event]:
        if uuid in self._lost:
            return []
        self._lost.add(uuid)
        return [self._event("gpu_lost", uuid, "The GPU is lost: the driver can't reach it any more.")]

    def _event(self, kind: str, uuid: str, message: str) -> Event:
        return Event(self._clock.time_ns(), self._node, kind, uuid, message)


def _address(handle: Any) -> Any:
    """Return what two handles of one GPU share: pointers compare by identity, not by address."""
    try:
        return ctypes.cast(handle, ctypes.c_void_p).value
    except (ctypes.ArgumentError, TypeError):
        return handle
