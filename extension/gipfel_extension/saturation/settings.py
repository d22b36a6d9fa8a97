"""Settings of the score: weights, thresholds, ceilings, and the failure rate for checkpoint intervals.

A ceiling is the rate that a resource of a GPU model can reach in practice; the score counts it as 100 %.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

#: The resources that can be the binding one.
RESOURCES = ("compute", "memory", "interconnect")

#: The losses, in the order in which they are listed.
LOSSES = (
    "idle",
    "input",
    "launch",
    "occupancy",
    "imbalance",
    "communication",
    "checkpoint",
    "capped",
    "start_up",
    "unexplained",
)


@dataclass(frozen=True)
class Weights:
    """Factors by which the resources' levels are multiplied before the highest is chosen, to at most 1."""

    compute: float = 1.0
    memory: float = 1.0
    interconnect: float = 1.0

    def of(self, resource: str) -> float:
        """Return the weight of ``compute``, ``memory`` or ``interconnect``."""
        return float(getattr(self, resource))


@dataclass(frozen=True)
class Thresholds:
    """Bounds from which a sample indicates a cause. All are estimates: see the README.

    Parameters
    ----------
    works
        Activity of engine or SMs from which a GPU counts as working.
    binding
        Level below which no resource is the binding one.
    workers
        CPU cores used per GPU, in addition to one for the thread that launches kernels, from which the host
        counts as loading input.
    launching
        CPU cores used per GPU from which a thread of the host counts as busy, such as launching kernels.
    pressure
        Share of the time stalled on I/O, or on CPU, that counts as waiting for storage, or for cores.
    read
        Bytes per second read by a host, from any file system, that count as loading.
    copies
        Level of a link from the host that counts as copying input while nothing runs.
    decoder
        Activity of a video decoder that counts as preparing input.
    link
        Level of a link between GPUs that counts as communication.
    network
        Bytes per second that a host both sends and receives, without those of its file systems, that count as
        communication.
    burst, burst_ratio
        Bytes per second written by a host that count as a checkpoint, if they are also at least `burst_ratio`
        times the run's median rate.
    wait
        Difference of the busiest GPU from the job's median in one sample, from which the others count as
        waiting.
    lag, lag_seconds
        The same for means over `lag_seconds` of levels relative to each GPU's typical level. This finds a
        rank that is always slightly slower.
    steady
        Relative spread of the engine's activity over one second below which gaps between kernels count as
        small.
    fine
        Seconds between samples up to which they show that spread.
    few_warps
        Occupancy per SM activity up to which SMs hold too few warps to hide latency.
    power
        Share of the power limit below which SMs that have work count as waiting.
    """

    works: float = 0.02
    binding: float = 0.05
    workers: float = 0.5
    launching: float = 0.5
    pressure: float = 0.1
    read: float = 100e6
    copies: float = 0.03
    decoder: float = 0.3
    link: float = 0.1
    network: float = 1e9
    burst: float = 100e6
    burst_ratio: float = 5.0
    wait: float = 0.25
    lag: float = 0.03
    lag_seconds: float = 5.0
    steady: float = 0.25
    fine: float = 0.25
    few_warps: float = 0.15
    power: float = 0.5


@dataclass(frozen=True)
class Settings:
    """Settings of a score.

    Parameters
    ----------
    gpu_hours_per_failure
        GPU hours after which to expect one interruption of a job, for checkpoint intervals. The default is
        what 16 384 H100s showed over 54 days: 419 unexpected interruptions (arXiv:2407.21783, table 5).
    """

    weights: Weights = field(default_factory=Weights)
    thresholds: Thresholds = field(default_factory=Thresholds)
    gpu_hours_per_failure: float = 54 * 24 * 16384 / 419


#: Metrics of the compute pipes.
PIPES = (
    "PIPE_TENSOR_ACTIVE",
    "PIPE_FP64_ACTIVE",
    "PIPE_FP32_ACTIVE",
    "PIPE_FP16_ACTIVE",
    "PIPE_INT_ACTIVE",
)

#: Link to the metrics of its two directions.
LINKS: Mapping[str, tuple[str, str]] = {
    "nvlink": ("NVLINK_TX_BYTES", "NVLINK_RX_BYTES"),
    "c2c": ("C2C_TX_ALL_BYTES", "C2C_RX_ALL_BYTES"),
    "pcie": ("PCIE_TX_BYTES", "PCIE_RX_BYTES"),
}

#: Links to the host, which carry input; the others are between GPUs.
HOST_LINKS = ("pcie", "c2c")

_GB = 1e9
#: DRAM_ACTIVE that a copy within the GPU's memory reaches; older notes of GPU Saturation Scorer say 0.8.
_MEMORY = 0.9
#: Reachable share of PCIe's peak: 55.6 of 64 GB/s from host to device in NVIDIA's example of nvbandwidth
#: (developer.nvidia.com/blog, 2025).
_PCIE_SHARE = 0.87


@dataclass(frozen=True)
class Ceilings:
    """Practical ceilings of one GPU model.

    Parameters
    ----------
    model
        The model's name; empty for a GPU that is not in the table.
    names
        Strings that must all occur in the name of a device for this entry to apply.
    links
        Link to bytes per second in one direction that a bandwidth test reaches.
    pipes
        Metric to the activity that a large kernel reaches; 1.0 where it was not measured, which makes the
        score a lower bound.
    clock
        Maximum SM clock in MHz, used where the driver reports none; 0 where the data sheet has none either.
    watts
        Default power limit in watts; 0 if the system's vendor configures it.
    source
        Where links, clock and power come from.
    """

    model: str = ""
    names: tuple[str, ...] = ()
    links: Mapping[str, float] = field(default_factory=dict)
    pipes: Mapping[str, float] = field(default_factory=dict)
    memory: float = _MEMORY
    clock: float = 0.0
    watts: float = 0.0
    source: str = ""


def _links(nvlink: float = 0.0, pcie: float = 0.0, c2c: float = 0.0) -> dict[str, float]:
    """Return the ceilings of links in bytes per second, from peaks in GB/s per direction; 0: no link."""
    # NVLink and C2C were not measured for this table: their peak is the ceiling.
    reached = {"nvlink": nvlink * _GB, "c2c": c2c * _GB, "pcie": pcie * _GB * _PCIE_SHARE}
    return {link: rate for link, rate in reached.items() if rate}


def _sheet(
    model: str,
    *names: str,
    links: Mapping[str, float],
    clock: float = 0.0,
    watts: float = 0.0,
    maker: str = "NVIDIA",
) -> Ceilings:
    return Ceilings(
        model,
        names or (model.upper(),),
        links,
        clock=clock,
        watts=watts,
        source=f"{maker} {model} data sheet",
    )


#: The first entry whose names all occur in a device's name applies, so special ones precede general ones.
#: For AMD's models, ``nvlink`` is Infinity Fabric: all links of one GPU, one direction.
TABLE: tuple[Ceilings, ...] = (
    _sheet("GB200", links=_links(900, 64, 450), watts=1200),
    _sheet("GB300", links=_links(900, 64, 450), watts=1400),
    _sheet("B300", links=_links(900, 128)),
    _sheet("B200", links=_links(900, 64), watts=1000),
    _sheet("GH200", links=_links(450, 64, 450)),
    _sheet("H200", links=_links(450, 64), clock=1980, watts=700),
    _sheet("H20", "H20 ", links=_links(450, 64), clock=1980, watts=400),
    _sheet("H800 PCIe", "H800", "PCIE", links=_links(200, 64), watts=350),
    _sheet("H800", links=_links(200, 64), clock=1980, watts=700),
    _sheet("H100 PCIe", "H100", "PCIE", links=_links(300, 64), clock=1755, watts=350),
    _sheet("H100 NVL", "H100", "NVL", links=_links(300, 64), watts=400),
    _sheet("H100", links=_links(450, 64), clock=1980, watts=700),
    _sheet("A800", links=_links(200, 32), clock=1410),
    _sheet("A100 PCIe", "A100", "PCIE", links=_links(300, 32), clock=1410),
    _sheet("A100", links=_links(300, 32), clock=1410, watts=400),
    _sheet("V100 PCIe", "V100", "PCIE", links=_links(0, 16), clock=1380, watts=250),
    _sheet("V100", links=_links(150, 16), clock=1530, watts=300),
    _sheet("L40S", links=_links(0, 32), clock=2520, watts=350),
    _sheet("L4", "L4 ", links=_links(0, 32), clock=2040, watts=72),
    _sheet("A40", links=_links(56.25, 32), clock=1740, watts=300),
    _sheet("A30", links=_links(100, 32), clock=1440, watts=165),
    _sheet("A10", "A10 ", links=_links(0, 32), clock=1695, watts=150),
    _sheet("T4", "T4 ", links=_links(0, 16), clock=1590, watts=70),
    _sheet("MI325X", links=_links(448, 64), clock=2100, watts=1000, maker="AMD"),
    _sheet("MI300X", links=_links(448, 64), clock=2100, watts=750, maker="AMD"),
    _sheet("MI250X", links=_links(400, 32), clock=1700, watts=560, maker="AMD"),
)

UNKNOWN = Ceilings()


@lru_cache(maxsize=256)
def ceilings_of(name: str) -> Ceilings:
    """Return the ceilings of a device by its NVML name; `UNKNOWN`, without links, for an unknown model."""
    # The space at the end lets entries such as "H20 " match a whole word.
    padded = name.upper() + " "
    return next((entry for entry in TABLE if all(part in padded for part in entry.names)), UNKNOWN)


def slice_of(name: str) -> float:
    """Return the share of a GPU that a device has: compute slices of a MIG instance over seven, else 1."""
    found = re.search(r"MIG (\d)g\.", name)
    return int(found[1]) / 7 if found else 1.0
