"""AMD GPUs and their XGMI links from the kernel driver (KFD); UUIDs from AMD SMI where it is installed.

``/sys/class/kfd/kfd/topology/nodes/N/properties`` has a line per property; a node with ``simd_count 0`` is a
processor. ``io_links/M/properties`` names both ends by node number, with a type (11 is XGMI) and a weight: 15
for each XGMI hop (Linux, drivers/gpu/drm/amd/amdkfd/kfd_topology.c and kfd_crat.h).
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..model import Gpu, Link
from .system import GpuPart, bus_address, pci_device, short_text

log = logging.getLogger(__name__)
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
    """Reader of the GPUs that the kernel driver lists; other users' cgroups hide the properties of theirs.

    Parameters
    ----------
    system
        Mount point of sysfs.
    library
        AMD SMI's Python module, or one of the same functions; None imports it.
    """

    def __init__(self, system: Path, library: Any = None) -> None:
        self._system = system
        self._smi = library

    def read(self) -> GpuPart:
        """Return the GPUs and their links; without an AMD driver, nothing."""
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
        """Return the UUIDs that AMD SMI gives, by PCI address; samples use the same."""
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
        # Pairs over another GPU are listed too, with the weight of several hops.
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
