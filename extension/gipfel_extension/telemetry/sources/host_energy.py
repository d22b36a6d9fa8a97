"""Energy of a node's processors and memory, from the counters that it lets its users read.

``/sys/cray/pm_counters`` of HPE Cray EX nodes is readable by all users; its files hold ``VALUE J TIME us``
(HPE, "User Access to Compute Node Power Data"). RAPL's zones below ``/sys/class/powercap`` are on Intel's and
AMD's processors; since Linux 5.10 only root may read them, unless the site permits it (CVE-2020-8694).
"""

from contextlib import suppress
from pathlib import Path

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
