"""Error counters, whose increases become events, and counters of a node's network traffic and energy."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..events import Event
from . import Clock

#: When a counter rises that did not rise for this long, that is a new event.
_QUIET_NS = 60 * 10**9
#: While a counter keeps rising, it causes one event per this time.
_AGAIN_NS = 600 * 10**9
#: Bytes per unit of the port counters of InfiniBand and RoCE (InfiniBand specification, PortCounters).
_WORD = 4.0


@dataclass
class _Counter:
    """A counter: its value, when it last rose, and value and time of the last reported event."""

    value: int
    read_ns: int
    rose_ns: int | None = None
    told_ns: int = 0
    told_value: int = 0


class RisingCounters:
    """Watch of counters that should not rise, such as error counters.

    Parameters
    ----------
    kind
        Kind of the events, a key of ``events.KINDS``.
    """

    def __init__(self, kind: str, node: str) -> None:
        self._kind = kind
        self._node = node
        self._known: dict[tuple[str, str], _Counter] = {}

    def check(
        self, device: str, text: str, value: int | None, time_ns: int, monotonic_ns: int
    ) -> list[Event]:
        """Return an event if a counter begins to rise, or has risen for ten minutes since its last event.

        The first reading is the baseline, whatever its value. A counter that falls was reset.

        Parameters
        ----------
        text
            Plural noun for what the counter counts, which begins the event's message.
        value
            None where it could not be read.
        """
        if value is None:
            return []
        known = self._known.get((device, text))
        if known is None or value < known.value:
            self._known[device, text] = _Counter(value, monotonic_ns)
            return []
        before, before_ns = known.value, known.read_ns
        known.value, known.read_ns = value, monotonic_ns
        if value == before:
            return []
        begins = known.rose_ns is None or monotonic_ns - known.rose_ns > _QUIET_NS
        known.rose_ns = monotonic_ns
        if begins:
            known.told_value, since_ns = before, before_ns
        elif monotonic_ns - known.told_ns >= _AGAIN_NS:
            since_ns = known.told_ns
        else:
            return []
        risen, seconds = value - known.told_value, (monotonic_ns - since_ns) / 1e9
        known.told_ns, known.told_value = monotonic_ns, value
        rate = f", {_amount(risen / seconds)} per second" if seconds > 0 else ""
        message = f"{text}: {risen} in {_amount(seconds)} s{rate} (counter: {value})."
        return [Event(time_ns, self._node, self._kind, device, message)]


def _amount(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


log = logging.getLogger(__name__)
#: Seconds between two readings: one takes 60 calls for a GPU with 18 NVLinks.
_EVERY_S = 10.0
#: NVML's error counters of a link (nvmlNvLinkErrorCounter_t).
_LINK_ERRORS = {
    0: "NVLink replays",
    1: "NVLink recoveries",
    2: "NVLink CRC errors of flits",
    3: "NVLink CRC errors of data",
}

Counters = Iterator[tuple[str, int | None]]


class GpuHealth:
    """Error counters of GPUs, read every 10 s.

    Parameters
    ----------
    gpus
        Function by UUID that yields, for each counter, what it counts and its value (None if unreadable).
    """

    def __init__(self, gpus: Mapping[str, Callable[[], Counters]], *, node: str, clock: Clock) -> None:
        self._gpus = dict(gpus)
        self._rising = RisingCounters("gpu_errors", node)
        self._clock = clock
        self._due_ns = 0

    def poll(self) -> list[Event]:
        """Return an event for each counter that rises; nothing if the next reading is not due yet."""
        now_ns = self._clock.monotonic_ns()
        if now_ns < self._due_ns:
            return []
        self._due_ns = now_ns + int(_EVERY_S * 1e9)
        time_ns = self._clock.time_ns()
        return [
            event
            for uuid, read in self._gpus.items()
            for text, value in read()
            for event in self._rising.check(uuid, text, value, time_ns, now_ns)
        ]


def nvml_counters(nvml: Any, handle: Any) -> Counters:
    """Yield the error counters of an NVIDIA GPU."""

    def query(name: str, *arguments: Any) -> Any:
        # Older drivers lack some functions.
        try:
            return getattr(nvml, name)(handle, *arguments)
        except (nvml.NVMLError, AttributeError) as error:
            log.debug("%s: %s", name, error)
            return None

    for kind, text in ((0, "Corrected memory errors (ECC)"), (1, "Uncorrected memory errors (ECC)")):
        yield text, query("nvmlDeviceGetTotalEccErrors", kind, 0)
    rows = query("nvmlDeviceGetRemappedRows")
    if rows is not None:
        yield "Memory rows remapped after corrected errors", int(rows[0])
        yield "Memory rows remapped after uncorrected errors", int(rows[1])
        yield "Failed remappings of memory rows", int(bool(rows[3]))
    yield "PCIe replays", query("nvmlDeviceGetPcieReplayCounter")
    links = 0
    while links < nvml.NVML_NVLINK_MAX_LINKS and query("nvmlDeviceGetNvLinkState", links) is not None:
        links += 1
    for counter, text in _LINK_ERRORS.items():
        counts = [query("nvmlDeviceGetNvLinkErrorCounter", link, counter) for link in range(links)]
        # A link that is unreadable once would look like a reset of the sum.
        complete = bool(counts) and all(count is not None for count in counts)
        yield text, sum(counts) if complete else None


def amd_counters(smi: Any, handle: Any) -> Counters:
    """Yield the error counters of an AMD GPU."""
    try:
        counts = smi.amdsmi_get_gpu_total_ecc_count(handle)
    except (smi.AmdSmiException, AttributeError) as error:
        log.debug("ECC counters: %s", error)
        return
    for key, text in (
        ("correctable_count", "Corrected memory errors (ECC)"),
        ("uncorrectable_count", "Uncorrected memory errors (ECC)"),
        ("deferred_count", "Deferred memory errors (ECC)"),
    ):
        value = counts.get(key) if isinstance(counts, dict) else None
        yield text, value if type(value) is int else None


def network_counters(proc: Path, system: Path) -> dict[str, float | None]:
    """Return the byte counters under the names of their rates; None where they are not available."""
    try:
        lines = (proc / "net/dev").read_text().splitlines()[2:]
    except OSError:
        return {"NET_RX_BYTES": None, "NET_TX_BYTES": None}
    fields = [line.replace(":", " ").split() for line in lines]
    infiniband, slingshot = list(_ports(system)), list(_cassini(system))
    # The ports' counters include IP over InfiniBand and Ethernet over Slingshot: don't count these twice.
    excluded = (
        "lo",
        *(("ib",) if any(ip for _, _, ip in infiniband) else ()),
        *(("hsn",) if slingshot else ()),
    )
    interfaces = [field for field in fields if len(field) > 9 and not field[0].startswith(excluded)]
    ports = [(received, sent) for received, sent, _ in infiniband] + slingshot
    return {
        "NET_RX_BYTES": sum(received for received, _ in ports) + sum(float(field[1]) for field in interfaces),
        "NET_TX_BYTES": sum(sent for _, sent in ports) + sum(float(field[9]) for field in interfaces),
    }


def _ports(system: Path) -> Iterator[tuple[float, float, bool]]:
    """Yield received and sent bytes of each RDMA port, and whether they include IP traffic."""
    for port in system.glob("class/infiniband/*/ports/*"):
        with suppress(OSError, ValueError):
            layer = (port / "link_layer").read_text().strip()
            received = _WORD * float((port / "counters/port_rcv_data").read_text())
            sent = _WORD * float((port / "counters/port_xmit_data").read_text())
            # A RoCE port counts only RDMA; its Ethernet interface counts other traffic.
            yield received, sent, layer == "InfiniBand"


def _cassini(system: Path) -> Iterator[tuple[float, float]]:
    """Yield received and sent bytes of each Slingshot NIC; its files hold ``value@time``."""
    for counters in system.glob("class/cxi/*/device/telemetry"):
        with suppress(OSError, ValueError):
            received = (counters / "hni_sts_rx_ok_octets").read_text().partition("@")[0]
            sent = (counters / "hni_sts_tx_ok_octets").read_text().partition("@")[0]
            yield float(received), float(sent)


_CRAY = ("cpu_energy", "memory_energy")
_MICROJOULES = 1e-6


class HostEnergy:
    """Counter of the joules that the node's processors and memory have used since the first reading.

    Parameters
    ----------
    root
        Directory in which ``sys`` is mounted.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._cray = root / "sys/cray/pm_counters"
        # The zone psys includes the others; core and uncore are parts of their package.
        zones = sorted((root / "sys/class/powercap").glob("intel-rapl:*"))
        self._zones = tuple(zone for zone in zones if _zone_name(zone).startswith(("package", "dram")))
        self._before: dict[Path, float] = {}
        self._total = 0.0

    def joules(self) -> float | None:
        """Return the counter in joules; None where none of the node's counters can be read."""
        if (cpu := _cray_joules(self._cray / _CRAY[0])) is not None:
            # On nodes without a file for memory, its energy is included in the processor's counter.
            return cpu + (_cray_joules(self._cray / _CRAY[1]) or 0.0)
        readings = {zone: number_in(zone / "energy_uj") for zone in self._zones}
        known = {zone: value for zone, value in readings.items() if value is not None}
        # A sum without some zones would look like a drop in power.
        if not known or len(known) < len(readings):
            self._before = {}
            return None
        for zone, value in known.items():
            step = value - self._before.get(zone, value)
            # The counters wrap around to 0, on busy servers every few minutes.
            step += (number_in(zone / "max_energy_range_uj") or 0.0) if step < 0 else 0.0
            self._total += max(0.0, step) * _MICROJOULES
        self._before = known
        return self._total


def _zone_name(zone: Path) -> str:
    with suppress(OSError):
        return (zone / "name").read_text().strip()
    return ""


def _cray_joules(path: Path) -> float | None:
    with suppress(OSError, ValueError, IndexError):
        value, unit = path.read_text().split()[:2]
        return float(value) if unit == "J" else None
    return None


def number_in(path: Path) -> float | None:
    """Return the number in a file; None where it can't be read, or is a word such as "max"."""
    with suppress(OSError, ValueError):
        return float(path.read_text())
    return None
