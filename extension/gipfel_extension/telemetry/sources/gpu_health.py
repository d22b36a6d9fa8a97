"""Health of GPUs over a run: ECC errors, remapped rows, NVLink and PCIe errors, as events when they rise.

Counters are those since the driver was loaded. A GPU with many errors from before is healthy now; one whose
counters rise is not. Clock throttling is an event of the recorder (``ThrottleWatch``).
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..events import Event
from . import Clock
from .rising_counters import RisingCounters

log = logging.getLogger(__name__)
#: Seconds between two readings: with 18 NVLinks they are 60 calls per GPU.
_EVERY_S = 10.0
#: NVML's error counters of a link (nvmlNvLinkErrorCounter_t).
_LINK_ERRORS = {
    0: "NVLink replays",
    1: "NVLink recoveries",
    2: "NVLink CRC errors of flits",
    3: "NVLink CRC errors of data",
}

Counters = Iterator[tuple[str, int | None]]


class GpuHealth:
    """Error counters of GPUs, read every 10 s.

    Parameters
    ----------
    gpus
        By UUID, a function that yields what each counter counts, and its value; None where it can't be read.
    """

    def __init__(self, gpus: Mapping[str, Callable[[], Counters]], *, node: str, clock: Clock) -> None:
        self._gpus = dict(gpus)
        self._rising = RisingCounters("gpu_errors", node)
        self._clock = clock
        self._due_ns = 0

    def poll(self) -> list[Event]:
        """Return an event for each counter that rises; nothing between two readings."""
        now_ns = self._clock.monotonic_ns()
        if now_ns < self._due_ns:
            return []
        self._due_ns = now_ns + int(_EVERY_S * 1e9)
        time_ns = self._clock.time_ns()
        return [
            event
            for uuid, read in self._gpus.items()
            for text, value in read()
            for event in self._rising.check(uuid, text, value, time_ns, now_ns)
        ]


def nvml_counters(nvml: Any, handle: Any) -> Counters:
    """Yield the error counters of an NVIDIA GPU."""

    def query(name: str, *arguments: Any) -> Any:
        # Older modules and drivers lack some functions.
        function = getattr(nvml, name, None)
        if function is None:
            return None
        try:
            return function(handle, *arguments)
        except (nvml.NVMLError, AttributeError) as error:
            log.debug("%s: %s", name, error)
            return None

    for kind, text in ((0, "Corrected memory errors (ECC)"), (1, "Uncorrected memory errors (ECC)")):
        yield text, query("nvmlDeviceGetTotalEccErrors", kind, 0)
    rows = query("nvmlDeviceGetRemappedRows")
    if rows is not None:
        yield "Memory rows remapped after corrected errors", int(rows[0])
        yield "Memory rows remapped after uncorrected errors", int(rows[1])
        yield "Failed remappings of memory rows", int(bool(rows[3]))
    yield "PCIe replays", query("nvmlDeviceGetPcieReplayCounter")
    links = 0
    while links < nvml.NVML_NVLINK_MAX_LINKS and query("nvmlDeviceGetNvLinkState", links) is not None:
        links += 1
    for counter, text in _LINK_ERRORS.items():
        counts = [query("nvmlDeviceGetNvLinkErrorCounter", link, counter) for link in range(links)]
        # A link that is unreadable once would look like a reset of the sum.
        complete = bool(counts) and all(count is not None for count in counts)
        yield text, sum(counts) if complete else None


def amd_counters(smi: Any, handle: Any) -> Counters:
    """Yield the error counters of an AMD GPU."""
    try:
        counts = smi.amdsmi_get_gpu_total_ecc_count(handle)
    except (smi.AmdSmiException, AttributeError) as error:
        log.debug("ECC counters: %s", error)
        return
    for key, text in (
        ("correctable_count", "Corrected memory errors (ECC)"),
        ("uncorrectable_count", "Uncorrected memory errors (ECC)"),
        ("deferred_count", "Deferred memory errors (ECC)"),
    ):
        value = counts.get(key) if isinstance(counts, dict) else None
        yield text, value if type(value) is int else None
