"""NVIDIA GPUs, their NVLinks, C2C links and NVLink domain, from NVML."""

import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..model import Gpu, Link
from .system import GpuPart, bus_address, pci_device

log = logging.getLogger(__name__)
#: Node masks of this many words hold 1024 NUMA nodes.
_MASK_WORDS = 16


class NvmlTopology:
    """Reader of the GPUs that NVML lists.

    Parameters
    ----------
    system
        Mount point of sysfs.
    library
        The module `pynvml`, or one of the same functions; None imports it.
    """

    def __init__(self, system: Path, library: Any = None) -> None:
        self._system = system
        self._nvml = library

    def read(self) -> GpuPart:
        """Return the GPUs and their links; without NVML or its driver, nothing."""
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
                # Both ends of a link name it.
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
        # nvmlDeviceGetNumaNodeId is the GPU's own memory, not the host's.
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
