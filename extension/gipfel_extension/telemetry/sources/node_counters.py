"""Counters of the whole node: network and energy; on exclusive nodes they are those of the job.

``/proc/net/dev`` has the traffic of the kernel's network stack. RDMA networks bypass it: counters of
InfiniBand and RoCE are in ``/sys/class/infiniband``, those of Slingshot (Cassini) in ``/sys/class/cxi``.

``/sys/cray/pm_counters`` of HPE Cray EX nodes, the energy of processors and memory, is readable by all
users; its files hold ``VALUE J TIME us`` (HPE, "User Access to Compute Node Power Data"). RAPL's zones
below ``/sys/class/powercap`` are on Intel's and AMD's processors; since Linux 5.10 only root may read them,
unless the site permits it (CVE-2020-8694).
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

#: Port counters of InfiniBand and RoCE are in words of four bytes (InfiniBand specification, PortCounters).
_WORD = 4.0


def network_counters(proc: Path, system: Path) -> dict[str, float | None]:
    """Return the byte counters under the names of their rates; None where they are not available."""
    try:
        lines = (proc / "net/dev").read_text().splitlines()[2:]
    except OSError:
        return {"NET_RX_BYTES": None, "NET_TX_BYTES": None}
    fields = [line.replace(":", " ").split() for line in lines]
    infiniband, slingshot = list(_ports(system)), list(_cassini(system))
    # The ports' counters include IP over InfiniBand and Ethernet over Slingshot.
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
        # psys covers the other zones; core and uncore are parts of their package.
        zones = sorted((root / "sys/class/powercap").glob("intel-rapl:*"))
        self._zones = tuple(zone for zone in zones if _zone_name(zone).startswith(("package", "dram")))
        self._before: dict[Path, float] = {}
        self._total = 0.0

    def joules(self) -> float | None:
        """Return the counter in joules; None where none of the node's counters can be read."""
        if (cpu := _cray_joules(self._cray / _CRAY[0])) is not None:
            # Nodes without this file count the memory's energy with the processor's.
            return cpu + (_cray_joules(self._cray / _CRAY[1]) or 0.0)
        readings = {zone: _number(zone / "energy_uj") for zone in self._zones}
        known = {zone: value for zone, value in readings.items() if value is not None}
        # The sum of only some zones would look like less power.
        if not known or len(known) < len(readings):
            self._before = {}
            return None
        for zone, value in known.items():
            step = value - self._before.get(zone, value)
            # The counters start again at 0, on busy servers every few minutes.
            step += (_number(zone / "max_energy_range_uj") or 0.0) if step < 0 else 0.0
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


def _number(path: Path) -> float | None:
    with suppress(OSError, ValueError):
        return float(path.read_text())
    return None
