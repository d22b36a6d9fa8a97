"""Ceilings: what a resource of each GPU model can reach in practice, which the score counts as 100 %."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

#: Metric of a compute pipe.
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
#: DRAM_ACTIVE of a device copy; older notes of GPU Saturation Scorer say 0.8.
_MEMORY = 0.9
#: 55.6 of 64 GB/s, host to device, in NVIDIA's own example of nvbandwidth (developer.nvidia.com/blog, 2025).
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
        Default power limit; 0 where the system's vendor configures it.
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

    def pipe(self, metric: str) -> float:
        """Return the ceiling of a pipe's activity."""
        return self.pipes.get(metric, 1.0)


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


def ceilings_of(name: str) -> Ceilings:
    """Return the ceilings of a device by its NVML name; `UNKNOWN`, without links, for an unknown model."""
    # The space at the end lets entries such as "H20 " match a whole word.
    padded = name.upper() + " "
    return next((entry for entry in TABLE if all(part in padded for part in entry.names)), UNKNOWN)


def slice_of(name: str) -> float:
    """Return the share of a GPU that a device has: compute slices of a MIG instance over seven, else 1."""
    found = re.search(r"MIG (\d)g\.", name)
    return int(found[1]) / 7 if found else 1.0
