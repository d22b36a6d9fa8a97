"""NUMA nodes, NICs and PCI paths from sysfs; the protocol of readers of GPUs."""

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..model import Gpu, Link, Nic, NicKind, NumaNode

_MOST_BYTES = 4096
_MOST_DEVICES = 512
_BUS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", re.IGNORECASE)


def short_text(path: Path) -> str:
    """Return a sysfs file as text; empty where it can't be read."""
    with suppress(OSError, ValueError), path.open(encoding="ascii", errors="replace") as file:
        return file.read(_MOST_BYTES).strip()
    return ""


def bus_address(text: str) -> str:
    """Return a PCI address in the kernel's form, with four digits of the domain; empty for another text."""
    found = _BUS.fullmatch(text.strip())
    return f"{int(found[1] or '0', 16):04x}:{found[2].lower()}" if found else ""


def numa_nodes(system: Path) -> tuple[NumaNode, ...]:
    """Return the NUMA nodes that have cores; on Grace-Hopper each GPU is a NUMA node without any."""
    found = []
    for folder in sorted((system / "devices/system/node").glob("node[0-9]*"))[:_MOST_DEVICES]:
        number = folder.name.removeprefix("node")
        cores = short_text(folder / "cpulist")
        if number.isdecimal() and cores:
            found.append(NumaNode(int(number), cores))
    return tuple(sorted(found, key=lambda node: node.number))


def numa_of(device: Path) -> int | None:
    """Return the NUMA node of a device; None where the kernel knows none."""
    text = short_text(device / "numa_node")
    return int(text) if text.isdecimal() else None


def pci_path(device: Path) -> tuple[str, ...]:
    """Return the PCI bridges and the address of a device, from the root; empty for another bus."""
    with suppress(OSError, RuntimeError):
        parts = device.resolve(strict=True).parts
        first = next((place for place, part in enumerate(parts) if part.startswith("pci")), None)
        if first is not None:
            return tuple(part for part in parts[first:] if part.startswith("pci") or _BUS.fullmatch(part))
    return ()


def pci_device(system: Path, bus: str) -> tuple[int | None, tuple[str, ...]]:
    """Return the NUMA node and the PCI path of an address."""
    device = system / "bus/pci/devices" / bus
    return (numa_of(device), pci_path(device)) if bus else (None, ())


def nics_of(system: Path) -> tuple[Nic, ...]:
    """Return the physical NICs: Slingshot, InfiniBand, RoCE, and Ethernet interfaces of no such NIC."""
    found: dict[str, Nic] = {}
    for folder in _devices(system / "class/cxi"):
        found[folder.name] = _nic(folder, "slingshot")
    for folder in _devices(system / "class/infiniband"):
        layers = {short_text(port / "link_layer") for port in _devices(folder / "ports")}
        found[folder.name] = _nic(folder, "infiniband" if "InfiniBand" in layers else "roce")
    taken = {nic.bus for nic in found.values() if nic.bus}
    for folder in _devices(system / "class/net"):
        nic = _nic(folder, "ethernet")
        # Bridges and loopback have no device. A fast NIC's own interface counts once, as the NIC.
        if nic.bus and nic.bus not in taken:
            found.setdefault(nic.name, nic)
    return tuple(found.values())


def _devices(folder: Path) -> list[Path]:
    with suppress(OSError):
        return sorted(folder.iterdir(), key=lambda path: (len(path.name), path.name))[:_MOST_DEVICES]
    return []


def _nic(folder: Path, kind: NicKind) -> Nic:
    device = folder / "device"
    path = pci_path(device)
    return Nic(folder.name, kind, path[-1] if path else "", numa_of(device), path)


@dataclass(frozen=True)
class GpuPart:
    """GPUs of a node and the links between them."""

    gpus: tuple[Gpu, ...] = ()
    links: tuple[Link, ...] = ()
    problems: tuple[str, ...] = ()


class GpuTopologyReader(Protocol):
    """Reader of the GPUs of one maker on this node; tests replace it."""

    def read(self) -> GpuPart:
        """Return the GPUs; nothing where the node has none of this maker."""
        ...
