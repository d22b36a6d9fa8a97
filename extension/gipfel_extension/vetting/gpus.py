"""GPUs of a node as plain values, read through NVML (`pynvml`).

Whatever a driver or a GPU refuses is None. Checks depend on `GpuReader`; `Nvml` is the real one.
"""

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

log = logging.getLogger(__name__)
_COMPUTE_MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}
#: Links that NVML may be asked for; the first one that it doesn't know ends the list.
_MOST_LINKS = 36
#: NVML's errors for a link beyond the last: invalid argument, not supported.
_NO_SUCH_LINK = (2, 3)


class ReadingError(Exception):
    """No reading is possible: no driver, no module, no GPU.

    Parameters
    ----------
    problem
        One sentence.
    fix
        What to do.
    """

    def __init__(self, problem: str, fix: str = "") -> None:
        super().__init__(problem)
        self.problem, self.fix = problem, fix


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
    """Rows of memory that were replaced."""

    corrected: int
    uncorrected: int
    pending: bool
    failed: bool


@dataclass(frozen=True)
class GpuReading:
    """GPU at one moment: bytes, degrees Celsius, MHz and watts.

    Parameters
    ----------
    clock_reasons
        NVML's bit mask of clock-event reasons.
    power_limit_w, power_default_w
        The limit that is set, and the one that the board comes with.
    sm_clock_limit_mhz
        The application clock that is set; None where it can't be asked.
    recovery_action
        What the driver asks for (570 or newer): 0 none, 1 reset, 2 reboot, 3 drain peer, 4 drain and reset.
    """

    uuid: str
    index: int
    name: str
    bus_id: str = ""
    mig: bool | None = None
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


class GpuReader(Protocol):
    """Reader of GPUs: NVML, or a fake made of recorded readings."""

    def read(self) -> tuple[GpuReading, ...]:
        """Return every GPU of this job on this node, now.

        Raises
        ------
        ReadingError
            NVML can't be asked, or shows no GPU.
        """


class Nvml:
    """GPUs of this job on this node, by NVML.

    Parameters
    ----------
    environment
        ``CUDA_VISIBLE_DEVICES``: indices or UUIDs; unset means every GPU that NVML shows. None takes this
        process's own.
    library
        NVML as `pynvml` gives it; None imports it when first asked.
    """

    def __init__(self, environment: Mapping[str, str] | None = None, library: Any = None) -> None:
        self._environment = os.environ if environment is None else environment
        self._library = library

    def read(self) -> tuple[GpuReading, ...]:
        """Return every GPU of this job on this node, now."""
        # Protocols and reports are read without the sources of telemetry.
        from gipfel_extension.telemetry.sources.own_gpus import visible  # noqa: PLC0415

        nvml = self._library or _import()
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            fix = "Ask for GPUs in the job, and for them in the container; see whether nvidia-smi works."
            raise ReadingError(f"NVML can't be opened: {error}.", fix) from error
        try:
            count = nvml.nvmlDeviceGetCount()
            handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
            found = tuple(_reading(nvml, index, handle) for index, handle in enumerate(handles))
        except nvml.NVMLError as error:
            fix = "A GPU may have fallen off the bus: take another node."
            raise ReadingError(f"NVML can't read the GPUs: {error}.", fix) from error
        finally:
            nvml.nvmlShutdown()
        if not found:
            raise ReadingError("No devices were found: NVML shows no GPU.", "Ask for GPUs in the job.")
        chosen = visible([gpu.uuid for gpu in found], self._environment.get("CUDA_VISIBLE_DEVICES"))
        if not chosen:
            raise ReadingError(
                "This job has no GPU: CUDA_VISIBLE_DEVICES names none.", "Ask for GPUs in the job."
            )
        return tuple(gpu for gpu in found if gpu.uuid in chosen)


def _reading(nvml: Any, index: int, handle: Any) -> GpuReading:
    def ask(name: str, *arguments: Any) -> Any:
        return _ask(nvml, getattr(nvml, name, None), handle, *arguments)

    # Version 2 counts what the driver reserves apart from what is used.
    memory = ask("nvmlDeviceGetMemoryInfo", getattr(nvml, "nvmlMemory_v2", 2)) or ask(
        "nvmlDeviceGetMemoryInfo"
    )
    running = [ask("nvmlDeviceGetComputeRunningProcesses"), ask("nvmlDeviceGetGraphicsRunningProcesses")]
    mig, ecc, bus = ask("nvmlDeviceGetMigMode"), ask("nvmlDeviceGetEccMode"), ask("nvmlDeviceGetPciInfo")
    # The first name is known since driver 535.
    reasons = ask("nvmlDeviceGetCurrentClocksEventReasons")
    reasons = reasons if reasons is not None else ask("nvmlDeviceGetCurrentClocksThrottleReasons")
    return GpuReading(
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        index=index,
        name=_text(nvml.nvmlDeviceGetName(handle)),
        bus_id=_text(bus.busId) if bus is not None else "",
        mig=bool(mig[0]) if mig else None,
        memory_total=int(memory.total) if memory is not None else None,
        memory_used=int(memory.used) if memory is not None else None,
        processes=_processes(running),
        compute_mode=_COMPUTE_MODES.get(ask("nvmlDeviceGetComputeMode")),
        temperature_c=ask("nvmlDeviceGetTemperature", 0),
        slowdown_temperature_c=ask("nvmlDeviceGetTemperatureThreshold", 1),
        sm_clock_mhz=ask("nvmlDeviceGetClockInfo", 1),
        sm_clock_limit_mhz=ask("nvmlDeviceGetApplicationsClock", 1),
        sm_clock_max_mhz=ask("nvmlDeviceGetMaxClockInfo", 1),
        memory_clock_mhz=ask("nvmlDeviceGetClockInfo", 2),
        memory_clock_max_mhz=ask("nvmlDeviceGetMaxClockInfo", 2),
        clock_reasons=reasons,
        power_limit_w=_thousandth(ask("nvmlDeviceGetPowerManagementLimit")),
        power_default_w=_thousandth(ask("nvmlDeviceGetPowerManagementDefaultLimit")),
        ecc_enabled=bool(ecc[0]) if ecc else None,
        ecc_corrected=ask("nvmlDeviceGetTotalEccErrors", 0, 0),
        ecc_uncorrected=ask("nvmlDeviceGetTotalEccErrors", 1, 0),
        remapped=_remapped(ask("nvmlDeviceGetRemappedRows")),
        retired_pages=_retired(ask),
        nvlinks=_links(nvml, handle, ask),
        pcie_width=ask("nvmlDeviceGetCurrPcieLinkWidth"),
        pcie_width_max=ask("nvmlDeviceGetMaxPcieLinkWidth"),
        pcie_generation=ask("nvmlDeviceGetCurrPcieLinkGeneration"),
        pcie_generation_max=ask("nvmlDeviceGetMaxPcieLinkGeneration"),
        pcie_replays=ask("nvmlDeviceGetPcieReplayCounter"),
        recovery_action=_field(nvml, ask, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION"),
    )


def _ask(nvml: Any, function: Callable[..., Any] | None, *arguments: Any) -> Any:
    if function is None:
        return None
    try:
        return function(*arguments)
    # Besides NVML's own, an older module raises what Python does for a symbol or an argument it hasn't.
    except (nvml.NVMLError, AttributeError, TypeError, ValueError) as error:
        log.debug("%s: %s", getattr(function, "__name__", function), error)
        return None


def _processes(lists: list[Any]) -> tuple[Process, ...] | None:
    if all(each is None for each in lists):
        return None
    found = {each.pid: getattr(each, "usedGpuMemory", None) for listed in lists for each in listed or ()}
    return tuple(Process(pid, used) for pid, used in sorted(found.items()))


def _remapped(rows: Any) -> Remapped | None:
    return Remapped(int(rows[0]), int(rows[1]), bool(rows[2]), bool(rows[3])) if rows is not None else None


def _retired(ask: Callable[..., Any]) -> int | None:
    # 0: more than one single-bit error, 1: a double-bit error. GPUs with remapped rows don't know pages.
    counts = [ask("nvmlDeviceGetRetiredPages", cause) for cause in (0, 1)]
    known = [len(each) for each in counts if each is not None]
    return sum(known) if known else None


def _links(nvml: Any, handle: Any, ask: Callable[..., Any]) -> tuple[NvLink, ...]:
    """Return the links up to the first that the GPU does not have; the state of one that errs is None."""
    links: list[NvLink] = []
    state_of = getattr(nvml, "nvmlDeviceGetNvLinkState", None)
    if state_of is None:
        return ()
    for index in range(_MOST_LINKS):
        try:
            state = state_of(handle, index)
        except nvml.NVMLError as error:
            if getattr(error, "value", None) in _NO_SUCH_LINK:
                break
            links.append(NvLink(index))
            continue
        replay, recovery, flit = (
            ask("nvmlDeviceGetNvLinkErrorCounter", index, counter) for counter in (0, 1, 2)
        )
        links.append(NvLink(index, bool(state), replay, recovery, flit))
    return tuple(links)


def _field(nvml: Any, ask: Callable[..., Any], name: str) -> int | None:
    # Older modules don't name every field.
    field = getattr(nvml, name, None)
    values = ask("nvmlDeviceGetFieldValues", [field]) if field is not None else None
    if not values or values[0].nvmlReturn != getattr(nvml, "NVML_SUCCESS", 0):
        return None
    return int(values[0].value.uiVal)


def _thousandth(value: float | None) -> float | None:
    return value / 1000 if value is not None else None


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _import() -> Any:
    try:
        import pynvml  # noqa: PLC0415
    except ImportError as error:
        raise ReadingError("NVML's Python module is not installed.", "Install nvidia-ml-py.") from error
    return pynvml
