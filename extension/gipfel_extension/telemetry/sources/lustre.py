"""Counters of a node's Lustre clients: ``llite/*/stats`` below ``/proc/fs/lustre`` or debugfs.

They count what the whole node does, which is the job's where it has the node to itself.
"""

from collections.abc import Iterable
from pathlib import Path

#: Operations that a metadata server answers.
_METADATA = frozenset(
    (
        "open", "close", "mknod", "link", "unlink", "symlink", "mkdir", "rmdir", "rename", "readdir",
        "getattr", "setattr", "statfs", "getxattr", "setxattr", "removexattr", "listxattr",
        "inode_permission",
    )
)  # fmt: skip
_FOLDERS = ("proc/fs/lustre/llite", "sys/kernel/debug/lustre/llite", "sys/fs/lustre/llite")


def lustre_counters(root: Path = Path("/")) -> dict[str, float | None]:
    """Bytes and operations so far, under the names of their rates; None without a readable Lustre."""
    totals: dict[str, float | None] = dict.fromkeys(
        ("LUSTRE_READ_BYTES", "LUSTRE_WRITE_BYTES", "LUSTRE_METADATA_OPS")
    )
    for name in _FOLDERS:
        found = [
            parsed for folder in _folders(root / name) if (parsed := _read(folder / "stats")) is not None
        ]
        if found:
            return {metric: sum(each[metric] for each in found) for metric in totals}
    return totals


def _folders(clients: Path) -> list[Path]:
    try:
        return list(clients.iterdir())
    except OSError:
        # No Lustre, or debugfs, which is root's.
        return []


def _read(path: Path) -> dict[str, float] | None:
    try:
        return parse_stats(path.read_text(errors="replace").splitlines())
    except OSError:
        return None


def parse_stats(lines: Iterable[str]) -> dict[str, float]:
    """One file system's ``stats``: bytes read and written, and metadata operations."""
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
            elif words[0] in _METADATA:
                operations += float(words[1])
        except (ValueError, IndexError):
            continue
    return {"LUSTRE_READ_BYTES": read, "LUSTRE_WRITE_BYTES": written, "LUSTRE_METADATA_OPS": operations}
