"""Counters of the whole node: network, Lustre, NFS and energy; on exclusive nodes they are those of the job.

``/proc/net/dev`` has the traffic of the kernel's network stack. RDMA networks bypass it: counters of
InfiniBand and RoCE are in ``/sys/class/infiniband``, those of Slingshot (Cassini) in ``/sys/class/cxi``.
Counters of Lustre clients are in ``llite/*/stats`` below ``/proc/fs/lustre`` or debugfs, those of NFS
mounts in ``/proc/self/mountstats``. The I/O counters of cgroups include neither Lustre nor NFS.

``/sys/cray/pm_counters`` of HPE Cray EX nodes, the energy of processors and memory, is readable by all
users; its files hold ``VALUE J TIME us`` (HPE, "User Access to Compute Node Power Data"). RAPL's zones
below ``/sys/class/powercap`` are on Intel's and AMD's processors; since Linux 5.10 only root may read them,
unless the site permits it (CVE-2020-8694).
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

#: Port counters of InfiniBand and RoCE are in words of four bytes (InfiniBand specification, PortCounters).
_WORD = 4.0
#: Operations of the metadata server.
_LUSTRE_METADATA = frozenset(
    (
        "open", "close", "mknod", "link", "unlink", "symlink", "mkdir", "rmdir", "rename", "readdir",
        "getattr", "setattr", "statfs", "getxattr", "setxattr", "removexattr", "listxattr",
        "inode_permission",
    )
)  # fmt: skip

_LUSTRE_FOLDERS = ("proc/fs/lustre/llite", "sys/kernel/debug/lustre/llite", "sys/fs/lustre/llite")
#: Indices in a "bytes:" line: bytes read from the server and written to it (Linux, fs/nfs/iostat.h).
_NFS_READ, _NFS_WRITTEN = 5, 6


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


def lustre_counters(root: Path = Path("/")) -> dict[str, float | None]:
    """Return counters of bytes and operations under the names of their rates; None where unavailable."""
    totals: dict[str, float | None] = dict.fromkeys(
        ("LUSTRE_READ_BYTES", "LUSTRE_WRITE_BYTES", "LUSTRE_METADATA_OPS")
    )
    for name in _LUSTRE_FOLDERS:
        found = [
            parsed
            for folder in _lustre_clients(root / name)
            if (parsed := _read_stats(folder / "stats")) is not None
        ]
        if found:
            return {metric: sum(each[metric] for each in found) for metric in totals}
    return totals


def parse_lustre_stats(lines: Iterable[str]) -> dict[str, float]:
    """Return bytes read and written, and metadata operations, from a file system's ``stats`` file."""
    read = written = operations = 0.0
    for line in lines:
        # name, count, "samples", [unit], minimum, maximum, sum, sum of squares
        words = line.split()
        if len(words) < 3 or words[2] != "samples":
            continue
        try:
            if words[0] == "read_bytes":
                read += float(words[6])
            elif words[0] == "write_bytes":
                written += float(words[6])
            elif words[0] in _LUSTRE_METADATA:
                operations += float(words[1])
        except (ValueError, IndexError):
            continue
    return {"LUSTRE_READ_BYTES": read, "LUSTRE_WRITE_BYTES": written, "LUSTRE_METADATA_OPS": operations}


def _lustre_clients(clients: Path) -> list[Path]:
    try:
        return list(clients.iterdir())
    except OSError:
        # Lustre is not mounted, or only root may read debugfs.
        return []


def _read_stats(path: Path) -> dict[str, float] | None:
    try:
        return parse_lustre_stats(path.read_text(errors="replace").splitlines())
    except OSError:
        return None


def nfs_counters(proc: Path = Path("/proc")) -> dict[str, float | None]:
    """Return the byte counters under the names of their rates; None without NFS mounts."""
    try:
        text = (proc / "self/mountstats").read_text(errors="replace")
    except OSError:
        text = ""
    return parse_mountstats(text.splitlines())


def parse_mountstats(lines: Iterable[str]) -> dict[str, float | None]:
    """Return the bytes of all NFS exports; an export that is mounted several times is counted once."""
    exports: dict[tuple[str, str], tuple[float, float]] = {}
    device = ""
    for line in lines:
        words = line.split()
        if words[:1] == ["device"]:
            kind = words[words.index("fstype") + 1] if "fstype" in words[:-1] else ""
            device = words[1] if kind in ("nfs", "nfs4") else ""
        elif device and words[:1] == ["bytes:"]:
            try:
                exports[device, line] = float(words[_NFS_READ]), float(words[_NFS_WRITTEN])
            except (ValueError, IndexError):
                continue
    if not exports:
        return {"NFS_READ_BYTES": None, "NFS_WRITE_BYTES": None}
    return {
        "NFS_READ_BYTES": sum(read for read, _ in exports.values()),
        "NFS_WRITE_BYTES": sum(written for _, written in exports.values()),
    }


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
