"""The rows of the activity figure: which device is drawn where, with which lines."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..sample import Device, SampleTable


@dataclass(frozen=True)
class Line:
    """How one metric is drawn: colours that the colour-blind can tell apart, and a dash for everybody else.

    ``factor`` leads from the metric's unit to ``unit``; ``of`` is the metric that is 100 %.
    """

    metric: str
    label: str
    light: str
    dark: str
    dash: str
    unit: str
    factor: float = 100.0
    of: str = ""


GPU_LINES = (
    Line("GPU_UTIL", "utilization", "#767676", "#a3a3a3", "dash", "%"),
    Line("SM_ACTIVE", "SM active", "#0072b2", "#56b4e9", "solid", "%"),
    Line("PIPE_TENSOR_ACTIVE", "tensor active", "#d55e00", "#f28e2b", "dot", "%"),
    Line("DRAM_ACTIVE", "DRAM active", "#009e73", "#2fd0a0", "dashdot", "%"),
)
#: Drawn only where an advice is based on them.
FURTHER_LINES = (
    Line("GR_ENGINE_ACTIVE", "engine active", "#aa4499", "#e5a3c8", "dash", "%"),
    Line("SM_OCCUPANCY", "SM occupancy", "#a6761d", "#d9b36c", "dot", "%"),
    Line("PIPE_FP32_ACTIVE", "FP32 active", "#117733", "#88ccaa", "dashdot", "%"),
)
HOST_LINES = (
    Line("CPU_UTIL", "CPU", "#0072b2", "#56b4e9", "solid", "%"),
    Line("MEMORY_USED", "memory", "#cc79a7", "#e5a3c8", "dash", "%", of="MEMORY_TOTAL"),
)
IO_LINES = (
    Line("IO_READ_BYTES", "read", "#0072b2", "#56b4e9", "solid", "MB/s", 1e-6),
    Line("IO_WRITE_BYTES", "write", "#d55e00", "#f28e2b", "dot", "MB/s", 1e-6),
)
LINK_LINES = (
    Line("NVLINK_RX_BYTES", "NVLink in", "#0072b2", "#56b4e9", "solid", "GB/s", 1e-9),
    Line("NVLINK_TX_BYTES", "NVLink out", "#d55e00", "#f28e2b", "dot", "GB/s", 1e-9),
    Line("PCIE_RX_BYTES", "PCIe in", "#009e73", "#2fd0a0", "dashdot", "GB/s", 1e-9),
    Line("PCIE_TX_BYTES", "PCIe out", "#767676", "#a3a3a3", "dash", "GB/s", 1e-9),
    Line("C2C_RX_ALL_BYTES", "C2C in", "#aa4499", "#e5a3c8", "solid", "GB/s", 1e-9),
    Line("C2C_TX_ALL_BYTES", "C2C out", "#a6761d", "#d9b36c", "dot", "GB/s", 1e-9),
)
CLOCK_LINES = (Line("SM_CLOCK", "SM clock", "#0072b2", "#56b4e9", "solid", "MHz", 1.0),)
POWER_LINES = (Line("POWER_USAGE", "power", "#d55e00", "#f28e2b", "solid", "W", 1.0),)
#: The line of each metric that the activity figure draws.
LINES: Mapping[str, Line] = {line.metric: line for line in (*GPU_LINES, *HOST_LINES, *IO_LINES)}
#: The same for the figure of one GPU.
DETAIL_LINES: Mapping[str, Line] = {
    line.metric: line for line in (*GPU_LINES, *LINK_LINES, *CLOCK_LINES, *POWER_LINES)
}


@dataclass(frozen=True)
class Row:
    """One plot of the stack."""

    title: str
    device: Device
    lines: tuple[Line, ...]
    percent: bool


def rows_of(table: SampleTable) -> list[Row]:
    """A row per GPU, then two per host: CPU and memory, I/O."""
    several = len({device.node for device in table.devices}) > 1
    rows = [
        Row(_gpu_title(device, place, several=several), device, GPU_LINES, percent=True)
        for place, device in enumerate(table.gpus)
    ]
    for host in table.hosts:
        node = f" {host.node}" if several else ""
        mark = " · simulated" if host.simulated else ""
        rows.append(Row(f"Host{node}{mark}", host, HOST_LINES, percent=True))
        rows.append(Row(f"I/O{node}, MB/s{mark}", host, IO_LINES, percent=False))
    return rows


def _gpu_title(device: Device, place: int, *, several: bool) -> str:
    number = place if device.index is None else device.index
    name = device.name.removeprefix("NVIDIA ")
    node = f"{device.node} · " if several and device.node else ""
    mark = " · simulated" if device.simulated and "simulated" not in name else ""
    return f"{node}GPU {number} · {name}{mark}"
