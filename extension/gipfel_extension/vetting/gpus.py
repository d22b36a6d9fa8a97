"""Read the GPUs of a node through NVML (`pynvml`), as plain values.

A value that the driver or GPU does not report is None.
"""

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gipfel_cluster.messages import GipfelError

log = logging.getLogger(__name__)
_COMPUTE_MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}
#: Largest number of NVLinks of a GPU that are queried.
_MAX_LINKS = 36
#: NVML's errors for a link beyond the last: invalid argument, not supported.
_NO_SUCH_LINK = (2, 3)


class ReadingError(GipfelError):
    """GPUs can't be read: there is no driver, Python module or GPU."""


@dataclass(frozen=True)
class Process:
    """Process that holds memory of a GPU; `used_bytes` is None where NVML doesn't report it."""

    pid: int
    used_bytes: int | None = None


@dataclass(frozen=True)
class NvLink:
    """NVLink with its counters since the driver was loaded."""

    index: int
    active: bool | None = None
    replay_errors: int | None = None
    recovery_errors: int | None = None
    crc_errors: int | None = None


@dataclass(frozen=True)
class Remapped:
    """Counts of memory rows that were remapped to spare rows, and the state of remapping."""

    corrected: int
    uncorrected: int
    pending: bool
    failed: bool


@dataclass(frozen=True)
class GpuReading:
    """State of a GPU at one moment, in bytes, degrees Celsius, MHz and watts.

    Parameters
    ----------
    clock_reasons
        NVML's bit mask of clock-event reasons.
    power_limit_w, power_default_w
        The current limit, and the board's default.
    sm_clock_limit_mhz
        The configured application clock; None where NVML does not report it.
    recovery_action
        Action that the driver (570 or newer) recommends: 0 none, 1 reset, 2 reboot, 3 drain peer, 4 drain and
        reset.
    """

    uuid: str
    index: int
    name: str
    bus_id: str = ""
    memory_total: int | None = None
    memory_used: int | None = None
    processes: tuple[Process, ...] | None = None
    compute_mode: str | None = None
    temperature_c: float | None = None
    slowdown_temperature_c: float | None = None
    sm_clock_mhz: float | None = None
    sm_clock_limit_mhz: float | None = None
    sm_clock_max_mhz: float | None = None
    memory_clock_mhz: float | None = None
    memory_clock_max_mhz: float | None = None
    clock_reasons: int | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    ecc_enabled: bool | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    remapped: Remapped | None = None
    retired_pages: int | None = None
    nvlinks: tuple[NvLink, ...] = field(default=())
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_replays: int | None = None
    recovery_action: int | None = None


class Nvml:
    """Reader of this job's GPUs on this node through NVML.

    Parameters
    ----------
    environment
        Its ``CUDA_VISIBLE_DEVICES`` selects GPUs by index or UUID; unset, all GPUs that NVML lists are read.
        None for this process's environment.
    library
        The module `pynvml` or a fake; None imports it at the first reading.
    """

    def __init__(self, environment: Mapping[str, str] | None = None, library: Any = None) -> None:
        self._environment = os.environ if environment is None else environment
        self._library = library

    def read(self) -> tuple[GpuReading, ...]:
        """Return the current state of every GPU of this job on this node.

        Raises
        ------
        ReadingError
            NVML can't be used, or lists no GPU.
        """
        # Imported late, so that protocols and reports can be read without it.
        from gipfel_extension.telemetry.sources.job_gpus import select_uuids  # noqa: PLC0415

        nvml = self._library or _import()
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            fix = "Request GPUs for the job and the container, and check whether nvidia-smi works."
            raise ReadingError(f"NVML can't be initialized: {error}.", fix) from error
        try:
            count = nvml.nvmlDeviceGetCount()
            handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
            found = tuple(_reading(nvml, index, handle) for index, handle in enumerate(handles))
        except nvml.NVMLError as error:
            fix = "A GPU may have fallen off the bus. Use another node."
            raise ReadingError(f"NVML can't read the GPUs: {error}.", fix) from error
        finally:
            nvml.nvmlShutdown()
        if not found:
            raise ReadingError("No devices were found: NVML lists no GPU.", "Request GPUs for the job.")
        chosen = select_uuids([gpu.uuid for gpu in found], self._environment.get("CUDA_VISIBLE_DEVICES"))
        if not chosen:
            raise ReadingError(
                "This job has no GPU: CUDA_VISIBLE_DEVICES lists none.", "Request GPUs for the job."
            )
        return tuple(gpu for gpu in found if gpu.uuid in chosen)


def _reading(nvml: Any, index: int, handle: Any) -> GpuReading:
    def query(name: str, *arguments: Any) -> Any:
        return _query(nvml, name, handle, *arguments)

    # Version 2 does not count memory that the driver reserves as used.
    memory = query("nvmlDeviceGetMemoryInfo", getattr(nvml, "nvmlMemory_v2", 2)) or query(
        "nvmlDeviceGetMemoryInfo"
    )
    running = [query("nvmlDeviceGetComputeRunningProcesses"), query("nvmlDeviceGetGraphicsRunningProcesses")]
    ecc, bus = query("nvmlDeviceGetEccMode"), query("nvmlDeviceGetPciInfo")
    # The first name exists since driver 535.
    reasons = query("nvmlDeviceGetCurrentClocksEventReasons")
    reasons = reasons if reasons is not None else query("nvmlDeviceGetCurrentClocksThrottleReasons")
    return GpuReading(
        uuid=nvml.nvmlDeviceGetUUID(handle),
        index=index,
        name=nvml.nvmlDeviceGetName(handle),
        bus_id=bus.busId if bus is not None else "",
        memory_total=int(memory.total) if memory is not None else None,
        memory_used=int(memory.used) if memory is not None else None,
        processes=_processes(running),
        compute_mode=_COMPUTE_MODES.get(query("nvmlDeviceGetComputeMode")),
        temperature_c=query("nvmlDeviceGetTemperature", 0),
        slowdown_temperature_c=query("nvmlDeviceGetTemperatureThreshold", 1),
        sm_clock_mhz=query("nvmlDeviceGetClockInfo", 1),
        sm_clock_limit_mhz=query("nvmlDeviceGetApplicationsClock", 1),
        sm_clock_max_mhz=query("nvmlDeviceGetMaxClockInfo", 1),
        memory_clock_mhz=query("nvmlDeviceGetClockInfo", 2),
        memory_clock_max_mhz=query("nvmlDeviceGetMaxClockInfo", 2),
        clock_reasons=reasons,
        power_limit_w=_from_milli(query("nvmlDeviceGetPowerManagementLimit")),
        power_default_w=_from_milli(query("nvmlDeviceGetPowerManagementDefaultLimit")),
        ecc_enabled=bool(ecc[0]) if ecc else None,
        ecc_corrected=query("nvmlDeviceGetTotalEccErrors", 0, 0),
        ecc_uncorrected=query("nvmlDeviceGetTotalEccErrors", 1, 0),
        remapped=_remapped(query("nvmlDeviceGetRemappedRows")),
        retired_pages=_retired_pages(query),
        nvlinks=_links(nvml, handle, query),
        pcie_width=query("nvmlDeviceGetCurrPcieLinkWidth"),
        pcie_width_max=query("nvmlDeviceGetMaxPcieLinkWidth"),
        pcie_generation=query("nvmlDeviceGetCurrPcieLinkGeneration"),
        pcie_generation_max=query("nvmlDeviceGetMaxPcieLinkGeneration"),
        pcie_replays=query("nvmlDeviceGetPcieReplayCounter"),
        recovery_action=_field(nvml, query, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION"),
    )


def _query(nvml: Any, name: str, *arguments: Any) -> Any:
    try:
        return getattr(nvml, name)(*arguments)
    # An older pynvml raises Python's errors for a symbol or an argument that it does not know.
    except (nvml.NVMLError, AttributeError, TypeError, ValueError) as error:
        log.debug("%s: %s", name, error)
        return None


def _processes(lists: list[Any]) -> tuple[Process, ...] | None:
    if all(each is None for each in lists):
        return None
    found = {each.pid: getattr(each, "usedGpuMemory", None) for listed in lists for each in listed or ()}
    return tuple(Process(pid, used) for pid, used in sorted(found.items()))


def _remapped(rows: Any) -> Remapped | None:
    return Remapped(int(rows[0]), int(rows[1]), bool(rows[2]), bool(rows[3])) if rows is not None else None


def _retired_pages(query: Callable[..., Any]) -> int | None:
    # 0: more than one single-bit error, 1: a double-bit error. GPUs with row remapping retire no pages.
    counts = [query("nvmlDeviceGetRetiredPages", cause) for cause in (0, 1)]
    known = [len(each) for each in counts if each is not None]
    return sum(known) if known else None


def _links(nvml: Any, handle: Any, query: Callable[..., Any]) -> tuple[NvLink, ...]:
    """Return the links up to the first that the GPU does not have; an unreadable state is None."""
    links: list[NvLink] = []
    for index in range(_MAX_LINKS):
        try:
            is_up = bool(nvml.nvmlDeviceGetNvLinkState(handle, index))
        except nvml.NVMLError as error:
            if getattr(error, "value", None) in _NO_SUCH_LINK:
                break
            links.append(NvLink(index))
        else:
            errors = (query("nvmlDeviceGetNvLinkErrorCounter", index, counter) for counter in (0, 1, 2))
            links.append(NvLink(index, is_up, *errors))
    return tuple(links)


def _field(nvml: Any, query: Callable[..., Any], name: str) -> int | None:
    # Older versions of pynvml lack some fields.
    field = getattr(nvml, name, None)
    values = query("nvmlDeviceGetFieldValues", [field]) if field is not None else None
    if not values or values[0].nvmlReturn != getattr(nvml, "NVML_SUCCESS", 0):
        return None
    return int(values[0].value.uiVal)


def _from_milli(value: float | None) -> float | None:
    return value / 1000 if value is not None else None


def _import() -> Any:
    try:
        import pynvml  # noqa: PLC0415
    except ImportError as error:
        raise ReadingError("NVML's Python module is not installed.", "Install nvidia-ml-py.") from error
    return pynvml
