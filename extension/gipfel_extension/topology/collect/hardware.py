"""Hardware of a node: NUMA nodes, NICs and PCI paths from sysfs, and GPUs with their links.

NVIDIA's GPUs come from NVML, AMD's from the kernel driver (KFD).
"""

import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from .. import Gpu, Link, Nic, NicKind, NumaNode

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
    """Return the NUMA node of a device; None if the kernel reports none."""
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
    """Return the physical NICs: Slingshot, InfiniBand, RoCE, and Ethernet interfaces of other NICs."""
    found: dict[str, Nic] = {}
    for folder in _devices(system / "class/cxi"):
        found[folder.name] = _nic(folder, "slingshot")
    for folder in _devices(system / "class/infiniband"):
        layers = {short_text(port / "link_layer") for port in _devices(folder / "ports")}
        found[folder.name] = _nic(folder, "infiniband" if "InfiniBand" in layers else "roce")
    taken = {nic.bus for nic in found.values() if nic.bus}
    for folder in _devices(system / "class/net"):
        nic = _nic(folder, "ethernet")
        # Bridges and loopback have no device. A fast NIC's Ethernet interface is already listed as the NIC.
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
    """Reader of the GPUs of one vendor on this node; tests replace it."""

    def read(self) -> GpuPart:
        """Return the GPUs and their links; empty if the node has no GPU of this vendor."""
        ...


#: Number of 64-bit words in a mask of NUMA nodes: enough for 1024 nodes.
_MASK_WORDS = 16

log = logging.getLogger(__name__)
#: KFD's type of XGMI links, and the weight of a single hop; indirect connections have higher weights.
_XGMI, _HOP_WEIGHT = 11, 15
_MOST_NODES = 256


@dataclass(frozen=True)
class _Device:
    """A GPU in KFD's topology."""

    number: int
    bus: str
    unique: str
    name: str
    hive: str
    folder: Path


class KfdTopology:
    """Reader of the GPUs that AMD's kernel driver (KFD) lists and that the job's cgroup permits.

    Parameters
    ----------
    system
        Mount point of sysfs.
    library
        AMD SMI's Python module, or a substitute with the same functions; None imports it.
    """

    def __init__(self, system: Path, library: Any = None) -> None:
        self._system = system
        self._smi = library

    def read(self) -> GpuPart:
        """Return the GPUs and their links; empty without AMD's driver."""
        devices = self._devices()
        if not devices:
            return GpuPart()
        uuids = self._uuids()
        gpus: dict[int, Gpu] = {}
        for index, each in enumerate(devices):
            numa, path = pci_device(self._system, each.bus)
            uuid = uuids.get(each.bus) or f"GPU-{each.unique}"
            gpus[each.number] = Gpu(uuid, each.name, index, each.bus, numa, path, each.hive)
        links = [link for each in devices for link in _links(each, gpus)]
        return GpuPart(tuple(gpus.values()), tuple(links))

    def _devices(self) -> list[_Device]:
        found = []
        nodes = self._system / "class/kfd/kfd/topology/nodes"
        folders = sorted(
            (path for path in nodes.glob("[0-9]*") if path.name.isdecimal()), key=lambda path: int(path.name)
        )
        for folder in folders[:_MOST_NODES]:
            values = _properties(folder / "properties")
            if values.get("simd_count", 0) <= 0:
                continue
            found.append(
                _Device(
                    int(folder.name),
                    _bus(values.get("domain", 0), values.get("location_id", 0)),
                    f"{values.get('unique_id', 0):x}",
                    short_text(folder / "name") or "AMD GPU",
                    f"{values['hive_id']:x}" if values.get("hive_id") else "",
                    folder,
                )
            )
        return found

    def _uuids(self) -> dict[str, str]:
        """Return AMD SMI's UUIDs by PCI address; samples use the same UUIDs."""
        if self._smi is None:
            try:
                import amdsmi  # noqa: PLC0415
            except Exception as error:  # noqa: BLE001 - without ROCm the import raises other errors too
                log.info("No AMD SMI: %s", error)
                return {}
            self._smi = amdsmi
        smi = self._smi
        try:
            smi.amdsmi_init()
        except smi.AmdSmiException as error:
            log.info("AMD SMI can't be opened: %s", error)
            return {}
        found = {}
        try:
            for handle in smi.amdsmi_get_processor_handles():
                bus = bus_address(str(smi.amdsmi_get_gpu_device_bdf(handle)))
                uuid = str(smi.amdsmi_get_gpu_device_uuid(handle)).removeprefix("GPU-")
                found[bus] = f"GPU-{uuid}"
        except smi.AmdSmiException as error:
            log.info("AMD SMI can't list the GPUs: %s", error)
        finally:
            smi.amdsmi_shut_down()
        return found


def _links(device: _Device, gpus: Mapping[int, Gpu]) -> list[Link]:
    found = []
    for folder in sorted(device.folder.glob("io_links/[0-9]*"))[:_MOST_NODES]:
        values = _properties(folder / "properties")
        other = gpus.get(values.get("node_to", -1))
        # Indirect connections over another GPU are listed too, with the weight of several hops: skip them.
        direct = values.get("type") == _XGMI and values.get("weight", 0) <= _HOP_WEIGHT
        if direct and other is not None and values.get("node_to", -1) > device.number:
            found.append(Link(gpus[device.number].uuid, other.uuid, "xgmi", None))
    return found


def _properties(path: Path) -> dict[str, int]:
    found = {}
    for line in short_text(path).splitlines():
        name, _, value = line.partition(" ")
        if value.strip().isdecimal():
            found[name] = int(value)
    return found


def _bus(domain: int, location: int) -> str:
    """Return the PCI address of KFD's ``location_id``: bus from bit 8, device from bit 3, function."""
    return bus_address(f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}")


class NvmlTopology:
    """Reader of the GPUs that NVML lists.

    Parameters
    ----------
    system
        Mount point of sysfs.
    library
        The module `pynvml`, or a substitute with the same functions; None imports it.
    """

    def __init__(self, system: Path, library: Any = None) -> None:
        self._system = system
        self._nvml = library

    def read(self) -> GpuPart:
        """Return the GPUs and their links; empty without NVML or its driver."""
        if self._nvml is None:
            try:
                import pynvml  # noqa: PLC0415
            except ImportError:
                return GpuPart()
            self._nvml = pynvml
        nvml = self._nvml
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            log.info("NVML can't be opened: %s", error)
            return GpuPart()
        try:
            return self._part()
        except nvml.NVMLError as error:
            return GpuPart(problems=(f"NVML can't list the GPUs: {error}.",))
        finally:
            nvml.nvmlShutdown()

    def _part(self) -> GpuPart:
        nvml = self._nvml
        handles = [
            (index, handle)
            for index in range(nvml.nvmlDeviceGetCount())
            # A GPU that the cgroup does not permit has no handle.
            if (handle := self._try("nvmlDeviceGetHandleByIndex", index)) is not None
        ]
        gpus = [(self._gpu(index, handle), handle) for index, handle in handles]
        by_bus = {gpu.bus: gpu.uuid for gpu, _ in gpus if gpu.bus}
        links: dict[tuple[str, str], Link] = {}
        for gpu, handle in gpus:
            for link in (*self._nvlinks(gpu, handle, by_bus), *self._c2c(gpu, handle)):
                # A link is listed at both ends: keep it once.
                links.setdefault((min(link.first, link.second), max(link.first, link.second)), link)
        return GpuPart(tuple(gpu for gpu, _ in gpus), tuple(links.values()))

    def _gpu(self, index: int, handle: Any) -> Gpu:
        pci = self._try("nvmlDeviceGetPciInfo", handle)
        bus = bus_address(_text(pci.busId)) if pci is not None else ""
        numa, path = pci_device(self._system, bus)
        return Gpu(
            _text(self._nvml.nvmlDeviceGetUUID(handle)),
            _text(self._try("nvmlDeviceGetName", handle) or "NVIDIA GPU"),
            index,
            bus,
            self._numa(handle) if numa is None else numa,
            path,
            self._fabric(handle),
        )

    def _numa(self, handle: Any) -> int | None:
        # nvmlDeviceGetNumaNodeId returns the NUMA node of the GPU's own memory, not of the host's.
        words = self._try("nvmlDeviceGetMemoryAffinity", handle, _MASK_WORDS, 0)
        nodes = [
            64 * place + bit for place, word in enumerate(words or ()) for bit in range(64) if word >> bit & 1
        ]
        return nodes[0] if len(nodes) == 1 else None

    def _fabric(self, handle: Any) -> str:
        nvml = self._nvml
        if not hasattr(nvml, "c_nvmlGpuFabricInfo_v3_t"):
            return ""
        info = nvml.c_nvmlGpuFabricInfo_v3_t()
        if self._try("nvmlDeviceGetGpuFabricInfoV", handle, info) is None:
            return ""
        cluster = bytes(info.clusterUuid).hex()
        if info.state != nvml.NVML_GPU_FABRIC_STATE_COMPLETED or not cluster.strip("0"):
            return ""
        return f"{cluster}/{info.cliqueId}"

    def _nvlinks(self, gpu: Gpu, handle: Any, by_bus: dict[str, str]) -> list[Link]:
        nvml = self._nvml
        ends: Counter[str] = Counter()
        for number in range(nvml.NVML_NVLINK_MAX_LINKS):
            state = self._try("nvmlDeviceGetNvLinkState", handle, number)
            if state is None:
                break
            if not state:
                continue
            kind = self._try("nvmlDeviceGetNvLinkRemoteDeviceType", handle, number)
            if kind == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
                ends["nvswitch"] += 1
            elif (remote := self._try("nvmlDeviceGetNvLinkRemotePciInfo", handle, number)) is not None:
                other = by_bus.get(bus_address(_text(remote.busId)), "")
                if other:
                    ends[other] += 1
        return [
            Link(gpu.uuid, end, "nvswitch" if end == "nvswitch" else "nvlink", count)
            for end, count in ends.items()
        ]

    def _c2c(self, gpu: Gpu, handle: Any) -> list[Link]:
        mode = self._try("nvmlDeviceGetC2cModeInfoV", handle)
        if mode is None or not mode.isC2cEnabled or gpu.numa is None:
            return []
        return [Link(gpu.uuid, f"numa:{gpu.numa}", "c2c", None)]

    def _try(self, name: str, *arguments: Any) -> Any:
        # Older modules and drivers lack some functions.
        function: Callable[..., Any] | None = getattr(self._nvml, name, None)
        if function is None:
            return None
        try:
            return function(*arguments)
        except (self._nvml.NVMLError, AttributeError) as error:
            log.debug("%s: %s", name, error)
            return None


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
