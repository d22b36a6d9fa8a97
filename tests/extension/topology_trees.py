"""Made trees of sysfs and stand-ins of NVML and AMD SMI, from documented layouts of nodes."""

# ruff: noqa: N802 - the names are NVML's

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
from nvml_fake import FakeNvml

from gipfel_extension.topology import NodeTopology
from gipfel_extension.topology.collect import collect_node
from gipfel_extension.topology.collect.hardware import KfdTopology, NvmlTopology

_GH200 = tuple(f"{domain}9:01:00.0" for domain in ("000", "001", "002", "003"))
_HGX = ("18", "2a", "3a", "5d", "9a", "ab", "ba", "db")


def text(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{content}\n")


def device(system: Path, root: str, *bridges: str, numa: int) -> Path:
    """Make a PCI device below bridges; the last of them is the device."""
    folder = system.joinpath("devices", root, *bridges)
    text(folder / "numa_node", str(numa))
    link = system / "bus/pci/devices" / bridges[-1]
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(folder)
    return folder


def nic(system: Path, kind: str, name: str, at: Path, layer: str = "") -> None:
    folder = system / "class" / kind / name
    folder.mkdir(parents=True)
    (folder / "device").symlink_to(at)
    if layer:
        text(folder / "ports/1/link_layer", layer)


def numa(system: Path, *cores: str) -> None:
    for number, each in enumerate(cores):
        text(system / f"devices/system/node/node{number}/cpulist", each)


class FakeLinks(FakeNvml):
    """NVML of a node: GPUs at PCI addresses, with NVLinks to GPUs or to switches, and C2C."""

    def __init__(self, buses: tuple[str, ...], *, per_pair: int = 0, switched: int = 0, c2c: bool = False):
        super().__init__(len(buses))
        self.buses, self.per_pair, self.switched, self.c2c = buses, per_pair, switched, c2c
        self.fabric: tuple[bytes, int] | None = None

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return f"GPU-{self.buses[int(handle[3:])]}"

    def nvmlDeviceGetPciInfo(self, handle: str) -> Any:
        return SimpleNamespace(busId=f"0000{self.buses[int(handle[3:])].upper()}".encode())

    def _ends(self, handle: str) -> list[int | None]:
        others = [each for each in range(self.gpus) if each != int(handle[3:])]
        return [each for each in others for _ in range(self.per_pair)] or [None] * self.switched

    def nvmlDeviceGetNvLinkState(self, handle: str, link: int) -> int:
        if link >= len(self._ends(handle)):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return 1

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: str, link: int) -> int:
        end = self._ends(handle)[link]
        return pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH if end is None else pynvml.NVML_NVLINK_DEVICE_TYPE_GPU

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: str, link: int) -> Any:
        end = self._ends(handle)[link]
        assert end is not None
        return SimpleNamespace(busId=f"0000{self.buses[end]}".encode())

    def nvmlDeviceGetC2cModeInfoV(self, handle: str) -> Any:
        if not self.c2c:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(isC2cEnabled=1)

    def nvmlDeviceGetGpuFabricInfoV(self, handle: str, info: Any) -> int:
        if self.fabric is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        info.clusterUuid[:] = self.fabric[0]
        info.cliqueId, info.state = self.fabric[1], pynvml.NVML_GPU_FABRIC_STATE_COMPLETED
        return 0


def gh200(system: Path) -> FakeLinks:
    """Four superchips: a Grace with a Hopper by C2C and a Cassini NIC each; NVLinks between all pairs."""
    numa(system, *(f"{72 * each}-{72 * each + 71}" for each in range(4)))
    for number in range(4):
        # The memory of a Hopper is a NUMA node without cores.
        text(system / f"devices/system/node/node{4 + number}/cpulist", "")
        device(
            system,
            f"pci{_GH200[number][:4]}:00",
            f"{_GH200[number][:4]}:00:00.0",
            _GH200[number],
            numa=number,
        )
        at = f"00{number}1:01:00.0"
        folder = device(system, f"pci00{number}1:00", f"00{number}1:00:00.0", at, numa=number)
        nic(system, "cxi", f"cxi{number}", folder)
        nic(system, "net", f"hsn{number}", folder)
    (system / "class/net/lo").mkdir()
    return FakeLinks(_GH200, per_pair=6, c2c=True)


def hgx(system: Path) -> FakeLinks:
    """Eight H100 on NVSwitches, each on a PCIe switch with a ConnectX-7; one more NIC for storage."""
    numa(system, "0-51", "52-103")
    for number, bus in enumerate(_HGX):
        root, switch = f"pci0000:{bus}", f"0000:{bus}:01.0"
        gpu = f"0000:{int(bus, 16) + 3:02x}:00.0"
        device(system, root, switch, f"0000:{int(bus, 16) + 1:02x}:02.0", gpu, numa=number // 4)
        at = f"0000:{int(bus, 16) + 4:02x}:00.0"
        folder = device(system, root, switch, f"0000:{int(bus, 16) + 1:02x}:03.0", at, numa=number // 4)
        nic(system, "infiniband", f"mlx5_{number}", folder, "InfiniBand")
    storage = device(system, "pci0000:c0", "0000:c0:01.0", "0000:c1:00.0", numa=1)
    nic(system, "infiniband", "mlx5_8", storage, "Ethernet")
    management = device(system, "pci0000:00", "0000:00:1f.0", "0000:01:00.0", numa=0)
    nic(system, "net", "eth0", management)
    return FakeLinks(tuple(f"0000:{int(bus, 16) + 3:02x}:00.0" for bus in _HGX), switched=18)


def kfd(system: Path, weights: tuple[tuple[int, ...], ...]) -> None:
    """AMD's topology: two processors, then GPUs with XGMI weights to each other."""
    numa(system, "0-95", "96-191")
    nodes = system / "class/kfd/kfd/topology/nodes"
    for number in range(2):
        text(nodes / f"{number}/properties", "cpu_cores_count 96\nsimd_count 0")
    for number, row in enumerate(weights):
        bus = 0x05 + 0x10 * number
        folder = nodes / str(2 + number)
        text(folder / "name", "aqua_vanjaram")
        text(
            folder / "properties",
            f"cpu_cores_count 0\nsimd_count 1216\nlocation_id {bus << 8}\ndomain 0\n"
            f"hive_id 11601489732184387\nunique_id {0xABC0 + number}",
        )
        text(folder / "io_links/0/properties", f"type 2\nnode_from {2 + number}\nnode_to 0\nweight 20")
        for place, weight in enumerate(row):
            if place != number:
                link = f"type 11\nnode_from {2 + number}\nnode_to {2 + place}\nweight {weight}"
                text(folder / f"io_links/{place + 1}/properties", link)
        device(system, f"pci0000:{bus - 5:02x}", f"0000:{bus:02x}:00.0", numa=number // 4)


class FakeSmi:
    """AMD SMI's names of the GPUs of :func:`kfd`."""

    class AmdSmiException(Exception):  # noqa: N818 - AMD's name
        """AMD SMI's error."""

    def amdsmi_init(self) -> None:
        """Do nothing."""

    def amdsmi_shut_down(self) -> None:
        """Do nothing."""

    def amdsmi_get_processor_handles(self) -> list[int]:
        return list(range(8))

    def amdsmi_get_gpu_device_bdf(self, handle: int) -> str:
        return f"0000:{0x05 + 0x10 * handle:02X}:00.0"

    def amdsmi_get_gpu_device_uuid(self, handle: int) -> str:
        return f"{handle}dff74a1-0000-1000-8000-000000000000"


def collected(system: Path, nvml: FakeLinks, node: str = "n0", **environment: str) -> NodeTopology:
    readers = (NvmlTopology(system, nvml), KfdTopology(system))
    return collect_node(node, environment, 1, system=system, xname_file=system / "xname", readers=readers)
