"""Counters of the whole node: network, Lustre and NFS, which are a job's where it has the node to itself.

``/proc/net/dev`` counts what passes the kernel's network stack. RDMA networks bypass it: InfiniBand and
RoCE count in ``/sys/class/infiniband``, Slingshot (Cassini) in ``/sys/class/cxi``. Lustre's clients count
in ``llite/*/stats`` below ``/proc/fs/lustre`` or debugfs, NFS mounts in ``/proc/self/mountstats``, which
every process can read for itself; the cgroup's I/O counters leave both out.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

#: Ports of InfiniBand and RoCE count in words of four bytes (InfiniBand specification, PortCounters).
_WORD = 4.0
#: Operations that a metadata server answers.
_LUSTRE_METADATA = frozenset(
    (
        "open", "close", "mknod", "link", "unlink", "symlink", "mkdir", "rmdir", "rename", "readdir",
        "getattr", "setattr", "statfs", "getxattr", "setxattr", "removexattr", "listxattr",
        "inode_permission",
    )
)  # fmt: skip

_LUSTRE_FOLDERS = ("proc/fs/lustre/llite", "sys/kernel/debug/lustre/llite", "sys/fs/lustre/llite")
#: Places in a "bytes:" line, after the word: read from the server, written to it (Linux, fs/nfs/iostat.h).
_NFS_READ, _NFS_WRITTEN = 5, 6


def network_counters(proc: Path, system: Path) -> dict[str, float | None]:
    """Return bytes so far, under the names of their rates; None where the kernel doesn't give them."""
    try:
        lines = (proc / "net/dev").read_text().splitlines()[2:]
    except OSError:
        return {"NET_RX_BYTES": None, "NET_TX_BYTES": None}
    fields = [line.replace(":", " ").split() for line in lines]
    infiniband, slingshot = list(_ports(system)), list(_cassini(system))
    # IP over InfiniBand and Ethernet over Slingshot are counted by the port already.
    barred = (
        "lo",
        *(("ib",) if any(ip for _, _, ip in infiniband) else ()),
        *(("hsn",) if slingshot else ()),
    )
    real = [field for field in fields if len(field) > 9 and not field[0].startswith(barred)]
    ports = [(received, sent) for received, sent, _ in infiniband] + slingshot
    return {
        "NET_RX_BYTES": sum(received for received, _ in ports) + sum(float(field[1]) for field in real),
        "NET_TX_BYTES": sum(sent for _, sent in ports) + sum(float(field[9]) for field in real),
    }


def _ports(system: Path) -> Iterator[tuple[float, float, bool]]:
    """Yield received and sent bytes of each RDMA port, and whether IP over it is counted too."""
    for port in system.glob("class/infiniband/*/ports/*"):
        with suppress(OSError, ValueError):
            layer = (port / "link_layer").read_text().strip()
            received = _WORD * float((port / "counters/port_rcv_data").read_text())
            sent = _WORD * float((port / "counters/port_xmit_data").read_text())
            # A port of RoCE counts RDMA alone; its Ethernet interface counts the rest.
            yield received, sent, layer == "InfiniBand"


def _cassini(system: Path) -> Iterator[tuple[float, float]]:
    """Yield received and sent bytes of each Slingshot NIC; its files hold ``value@time``."""
    for counters in system.glob("class/cxi/*/device/telemetry"):
        with suppress(OSError, ValueError):
            received = (counters / "hni_sts_rx_ok_octets").read_text().partition("@")[0]
            sent = (counters / "hni_sts_tx_ok_octets").read_text().partition("@")[0]
            yield float(received), float(sent)


def lustre_counters(root: Path = Path("/")) -> dict[str, float | None]:
    """Return bytes and operations so far, under the names of their rates; None without a readable Lustre."""
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


def parse_stats(lines: Iterable[str]) -> dict[str, float]:
    """Return bytes read and written, and metadata operations, of one file system's ``stats``."""
    read = written = operations = 0.0
    for line in lines:
        # name, count, "samples", [unit], least, most, sum, sum of squares
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
        # No Lustre, or debugfs, which is root's.
        return []


def _read_stats(path: Path) -> dict[str, float] | None:
    try:
        return parse_stats(path.read_text(errors="replace").splitlines())
    except OSError:
        return None


def nfs_counters(proc: Path = Path("/proc")) -> dict[str, float | None]:
    """Return bytes so far, under the names of their rates; None without an NFS mount."""
    try:
        text = (proc / "self/mountstats").read_text(errors="replace")
    except OSError:
        text = ""
    return parse_mountstats(text.splitlines())


def parse_mountstats(lines: Iterable[str]) -> dict[str, float | None]:
    """Return the bytes of all NFS servers' exports; one that is mounted at several places counts once."""
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
