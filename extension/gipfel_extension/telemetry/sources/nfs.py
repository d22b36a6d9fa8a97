"""Bytes that NFS mounts read and wrote: ``/proc/self/mountstats``, readable by every process for itself.

The cgroup's I/O counters leave network file systems out. These count what the whole node does.
"""

from collections.abc import Iterable
from pathlib import Path

#: Places in a "bytes:" line, after the word: read from the server, written to it (Linux, fs/nfs/iostat.h).
_READ, _WRITTEN = 5, 6


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
                exports[device, line] = float(words[_READ]), float(words[_WRITTEN])
            except (ValueError, IndexError):
                continue
    if not exports:
        return {"NFS_READ_BYTES": None, "NFS_WRITE_BYTES": None}
    return {
        "NFS_READ_BYTES": sum(read for read, _ in exports.values()),
        "NFS_WRITE_BYTES": sum(written for _, written in exports.values()),
    }
