"""What a resource can reach in practice, by GPU model: the 100 % of the score."""

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
        Words that a device's name must hold, all of them, for this entry.
    links
        Link to bytes per second in one direction that a bandwidth test reaches.
    pipes
        Metric to the activity that a large kernel reaches; 1.0 where nobody has measured it, which makes the
        score a lower bound.
    source
        Where the links' peaks come from.
    """

    model: str = ""
    names: tuple[str, ...] = ()
    links: Mapping[str, float] = field(default_factory=dict)
    pipes: Mapping[str, float] = field(default_factory=dict)
    memory: float = _MEMORY
    source: str = ""

    def pipe(self, metric: str) -> float:
        """The ceiling of a pipe's activity."""
        return self.pipes.get(metric, 1.0)


def _links(nvlink: float = 0.0, pcie: float = 0.0, c2c: float = 0.0) -> dict[str, float]:
    """Bytes per second that are reached, of peaks in GB/s and one direction; a link of 0 is not there."""
    # Nobody has measured NVLink and C2C for this table: there the peak itself is the ceiling.
    reached = {"nvlink": nvlink * _GB, "c2c": c2c * _GB, "pcie": pcie * _GB * _PCIE_SHARE}
    return {link: rate for link, rate in reached.items() if rate}


#: The first entry whose names all occur in a device's name is taken: special ones stand before general ones.
TABLE: tuple[Ceilings, ...] = (
    Ceilings("GB200", ("GB200",), _links(900, 64, 450), source="NVIDIA GB200 NVL72 data sheet"),
    Ceilings("B200", ("B200",), _links(900, 64), source="NVIDIA HGX B200 data sheet"),
    Ceilings("GH200", ("GH200",), _links(450, 64, 450), source="NVIDIA GH200 data sheet"),
    Ceilings("H200", ("H200",), _links(450, 64), source="NVIDIA H200 data sheet"),
    Ceilings("H100 PCIe", ("H100", "PCIE"), _links(300, 64), source="NVIDIA H100 data sheet"),
    Ceilings("H100 NVL", ("H100", "NVL"), _links(300, 64), source="NVIDIA H100 data sheet"),
    Ceilings("H100", ("H100",), _links(450, 64), source="NVIDIA H100 data sheet"),
    Ceilings("A100", ("A100",), _links(300, 32), source="NVIDIA A100 data sheet"),
    Ceilings("V100 PCIe", ("V100", "PCIE"), _links(0, 16), source="NVIDIA V100 data sheet"),
    Ceilings("V100", ("V100",), _links(150, 16), source="NVIDIA V100 data sheet"),
    Ceilings("L40S", ("L40S",), _links(0, 32), source="NVIDIA L40S data sheet"),
    Ceilings("L4", ("L4 ",), _links(0, 32), source="NVIDIA L4 data sheet"),
    Ceilings("A40", ("A40",), _links(56.25, 32), source="NVIDIA A40 data sheet"),
)

UNKNOWN = Ceilings()


def ceilings_of(name: str) -> Ceilings:
    """The ceilings of a device by its name as NVML gives it; without links for a model that isn't known."""
    # The space lets a name end where a word of the table ends.
    words = name.upper() + " "
    return next((entry for entry in TABLE if all(part in words for part in entry.names)), UNKNOWN)
