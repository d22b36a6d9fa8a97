"""What NVML knows of one GPU, as a plain value; what it refuses is None."""

from dataclasses import dataclass, field
from typing import Protocol


class ReadingError(Exception):
    """There is no reading: no driver, no module, no GPU.

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
    """A process that holds memory of a GPU; `used_bytes` is None where NVML doesn't say."""

    pid: int
    used_bytes: int | None = None


@dataclass(frozen=True)
class NvLink:
    """One NVLink: its counters since the driver was loaded."""

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
    """One GPU at one moment: bytes, degrees Celsius, MHz and watts.

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
    """NVML, or a fake made of recorded readings."""

    def read(self) -> tuple[GpuReading, ...]:
        """Every GPU of this job on this node, now.

        Raises
        ------
        ReadingError
            NVML can't be asked, or shows no GPU.
        """
