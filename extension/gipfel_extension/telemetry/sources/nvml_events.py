"""Events of the NVIDIA driver: XIDs and lost GPUs."""

import ctypes
import logging
from collections.abc import Mapping
from typing import Any

from ..events import Event
from . import Clock

log = logging.getLogger(__name__)

#: Maximum number of events per poll: a broken GPU may report very many.
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


class NvmlEvents:
    """Collector of XIDs from an NVML event set, and of lost GPUs from the errors of NVML calls.

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
        """Return the events since the last call without waiting."""
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
            try:
                self._nvml.nvmlEventSetFree(events)
            except self._nvml.NVMLError as error:
                log.debug("The event set can't be freed: %s", error)

    def _create_event_set(self) -> Any:
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
    """Return the address in a handle: ctypes pointers compare by identity, not by address."""
    try:
        return ctypes.cast(handle, ctypes.c_void_p).value
    except (ctypes.ArgumentError, TypeError):
        return handle
