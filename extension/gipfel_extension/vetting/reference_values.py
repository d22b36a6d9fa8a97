"""Reference values: the best published measurements for a GPU model or a network, with their sources."""

from collections.abc import Mapping
from dataclasses import dataclass

#: Share of a data sheet's bandwidth that copies reach: 3.02 of 3.35 TB/s (H100 SXM), 3.57 of 3.94 (NVL).
_MEMORY_SHARE = 0.90
#: 55.6 of 64 GB/s, host to device, in NVIDIA's example of nvbandwidth (developer.nvidia.com/blog, 2025).
_PCIE_SHARE = 0.87
_MAMF = "largest matmul rate found, MAMF table of stas00/ml-engineering"
_C2C = "Fusco et al. 2024, Understanding Data Movement in Tightly Coupled Heterogeneous Systems"
#: Share of its line rate that one adapter reaches in each direction, and the source.
_NETWORKS: Mapping[str, tuple[float, str]] = {
    # 23.8 of 25 GB/s from one rank to another node.
    "slingshot": (23.8 / 25, "23.8 GB/s an adapter, healthy nodes of Alps (swiss-ai/nodes_test)"),
    "infiniband": (0.9, "360 of 400 Gbit/s, Azure/azurehpc-health-checks, ND H200 v5"),
    "roce": (0.9, "90 % of the port's rate, as InfiniBand"),
}
#: An all-reduce that adds up within each node first sends half the bytes of a ring, so its rate may double.
_HIERARCHICAL_GAIN = 2.0


@dataclass(frozen=True)
class ReferenceValue:
    """Reference value in base units, and its source.

    Parameters
    ----------
    peak
        Theoretical maximum of the hardware; 0 if it is unknown.
    """

    value: float
    source: str
    peak: float = 0.0

    @property
    def implausible_above(self) -> float:
        """Return the value above which a measurement must be wrong."""
        return 1.1 * max(self.value, self.peak)


def _reference_values(
    data_sheet: str,
    memory: float,
    matmul: float,
    link: float,
    *,
    measured_matmul: bool = False,
    c2c: bool = False,
) -> dict[str, ReferenceValue]:
    """Return reference values by check type.

    Parameters
    ----------
    memory, matmul, link
        Memory in GB/s, bf16 in TFLOP/s, and the host link in GB/s in one direction.
    measured_matmul
        Whether `matmul` is measured (the MAMF table), not of the data sheet.
    c2c
        Whether the host link is NVLink-C2C, whose value is measured.
    """
    rate = (
        ReferenceValue(matmul * 1e12, _MAMF)
        if measured_matmul
        else ReferenceValue(matmul * 0.8e12, f"{data_sheet}, 80 % of it", peak=matmul * 1e12)
    )
    pcie = ReferenceValue(link * 1e9 * _PCIE_SHARE, f"{data_sheet}, 87 % of the link", peak=link * 1e9)
    copies = memory * 1e9 * _MEMORY_SHARE
    return {
        "memory_bandwidth": ReferenceValue(copies, f"{data_sheet}, 90 % of it", peak=memory * 1e9),
        "matmul": rate,
        "host_copy": ReferenceValue(link * 1e9, _C2C) if c2c else pcie,
    }


#: Words of a GPU's name to reference values by check type. The first entry whose words all occur applies:
#: special models come before general ones.
_GPU_MODELS: Mapping[tuple[str, ...], Mapping[str, ReferenceValue]] = {
    ("GB200",): _reference_values("NVIDIA GB200 NVL72 data sheet", 8000, 2500, 375, c2c=True),
    ("B200",): _reference_values("NVIDIA HGX B200 data sheet", 8000, 1745.0, 64, measured_matmul=True),
    ("GH200", "144G"): _reference_values(
        "NVIDIA GH200 data sheet", 4900, 821.0, 375, measured_matmul=True, c2c=True
    ),
    ("GH200",): _reference_values(
        "NVIDIA GH200 data sheet", 4000, 821.0, 375, measured_matmul=True, c2c=True
    ),
    ("H200",): _reference_values("NVIDIA H200 data sheet", 4800, 794.5, 64, measured_matmul=True),
    ("H100", "PCIE"): _reference_values("NVIDIA H100 data sheet", 2000, 756, 64),
    ("H100", "NVL"): _reference_values("NVIDIA H100 data sheet", 3938, 835, 64),
    ("H100",): _reference_values("NVIDIA H100 data sheet", 3350, 794.5, 64, measured_matmul=True),
    ("A100", "PCIE"): _reference_values("NVIDIA A100 data sheet", 1935, 256.4, 32, measured_matmul=True),
    ("A100", "40GB"): _reference_values("NVIDIA A100 data sheet", 1555, 267.9, 32, measured_matmul=True),
    ("A100",): _reference_values("NVIDIA A100 data sheet", 2039, 267.9, 32, measured_matmul=True),
    ("L40S",): _reference_values("NVIDIA L40S data sheet", 864, 362, 32),
    ("L4 ",): _reference_values("NVIDIA L4 data sheet", 300, 121, 32),
}


def gpu_reference(check_type: str, model: str) -> ReferenceValue | None:
    """Return the reference value of a check for a device by its NVML name; None if none is known."""
    words = model.upper() + " "
    values = (each for names, each in _GPU_MODELS.items() if all(name in words for name in names))
    return next(values, {}).get(check_type)


def network_reference(fabric: str, rate: float, adapters: int) -> ReferenceValue | None:
    """Return the reference value of a transfer or an all-reduce between two nodes.

    Parameters
    ----------
    fabric
        "slingshot", "infiniband" or "roce".
    rate
        Line rate of one adapter, in bits per second.
    adapters
        Number of adapters that take part.

    Returns
    -------
    None for a network without a reference value.
    """
    if fabric not in _NETWORKS or rate <= 0 or adapters < 1:
        return None
    share, source = _NETWORKS[fabric]
    line = rate / 8 * adapters
    return ReferenceValue(line * share, source, peak=_HIERARCHICAL_GAIN * line)
