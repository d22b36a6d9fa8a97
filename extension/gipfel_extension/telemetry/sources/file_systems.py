"""File systems of a node: mounts, the tier of storage behind each, and counters of Lustre and NFS.

Tiers are ``memory`` (tmpfs), ``local`` (disks of the node), ``shared`` (a file system of the cluster) and
``image`` (a packed file that is mounted).

NFS counters are in ``/proc/self/mountstats``, which every process can read: bytes of each mount, and for each
operation its count, bytes, and milliseconds in the queue, from request to reply, and in all (Linux,
net/sunrpc/stats.c). Lustre's ``llite/*/stats`` moved to debugfs in version 2.12, which only root can read.
Where counters can't be read, `ClientCounters.why` has the reason. The I/O counters of cgroups include neither
NFS nor Lustre.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_TIERS = {
    "memory": {"tmpfs", "ramfs", "hugetlbfs"},
    "local": {
        "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "overlay", "fuse.fuse-overlayfs",
        "vfat",
    },
    "image": {
        "squashfs", "erofs", "iso9660", "fuse.squashfuse", "fuse.squashfuse_ll", "fuse.erofsfuse",
        "fuse.dwarfs",
    },
    "shared": {
        "nfs", "nfs4", "lustre", "gpfs", "beegfs", "beegfs_nodev", "ceph", "cephfs", "fuse.ceph",
        "fuse.sshfs", "wekafs", "pvfs2", "orangefs", "panfs", "cifs", "smb3", "9p", "virtiofs", "afs", "dvs",
        "fuse.glusterfs", "fuse.s3fs", "fuse.mount-s3", "fuse.dfuse", "fuse.juicefs", "fuse.rclone",
    },
}  # fmt: skip
#: Virtual file systems of the kernel, which hold no files of a job.
_NO_FILES = {
    "proc", "sysfs", "devtmpfs", "devpts", "cgroup", "cgroup2", "mqueue", "securityfs", "debugfs", "tracefs",
    "bpf", "pstore", "configfs", "fusectl", "autofs", "binfmt_misc", "nsfs", "efivarfs", "rpc_pipefs",
}  # fmt: skip
_ESCAPED = re.compile(r"\\([0-7]{3})")
_PROGRAM = re.compile(
    r"\.(?:py|pyc|pyi|so|a|h|whl|egg)$|\.so\.[0-9.]+$|/(?:site|dist)-packages/|/conda-meta/"
)
_CHECKPOINT = re.compile(r"\.(?:pt|pth|ckpt|distcp|safetensors|bin)(?:\.tmp)?$|/\.metadata(?:\.tmp)?$")
_SHARD = re.compile(
    r"\.(?:tar|tfrecords?|parquet|arrow|mds|sqsh|squashfs|h5|hdf5|npy|npz|lmdb|mdb|rec|idx|zip)$"
)
_LOG = re.compile(r"\.(?:log|out|err|jsonl|txt|csv)$|\.tfevents\.")
#: Displayed name of each class of files.
CLASSES = {
    "program": "programs",
    "checkpoint": "models and checkpoints",
    "shard": "shards and images",
    "log": "logs",
    "data": "data files",
}


@dataclass(frozen=True)
class Mount:
    """A mounted file system.

    Parameters
    ----------
    device
        Major and minor number, as in ``os.stat``: ``(8, 1)``.
    kind
        Type of the file system, such as ``nfs4`` or ``fuse.sshfs``.
    """

    path: str
    kind: str
    source: str
    device: tuple[int, int]

    @property
    def tier(self) -> str:
        """``memory``, ``local``, ``shared`` (also any other FUSE), ``image``, or ``unknown``."""
        for tier, kinds in _TIERS.items():
            if self.kind in kinds:
                return tier
        return "shared" if self.kind.startswith("fuse") else "unknown"


class MountTable:
    """Mounts by path; of several mounts at one path, the last one is visible."""

    def __init__(self, mounts: Iterable[Mount]) -> None:
        self.mounts = tuple({each.path: each for each in mounts}.values())
        self._by_path = {each.path: each for each in self.mounts}

    def of_path(self, path: str) -> Mount | None:
        """Return the mount that holds an absolute path."""
        for folder in (path, *map(str, PurePosixPath(path).parents)):
            if folder in self._by_path:
                return self._by_path[folder]
        return None


def read_mounts(process: Path = Path("/proc/self")) -> MountTable:
    """Return the mounts of a process, without virtual file systems; empty where they can't be read."""
    with suppress(OSError):
        return parse_mountinfo((process / "mountinfo").read_text(errors="surrogateescape"))
    return MountTable(())


def parse_mountinfo(text: str, *, virtual: bool = False) -> MountTable:
    """Return the mounts in the text of a ``mountinfo`` file (proc_pid_mountinfo(5)); skip damaged lines.

    Virtual file systems, such as proc, are only included if `virtual` is true.
    """
    found = []
    # Other line breaks may be part of a path; the kernel escapes only this one.
    for line in text.split("\n"):
        left, separator, right = line.partition(" - ")
        fields, kinds = left.split(" "), right.split(" ")
        with suppress(ValueError, IndexError):
            major, minor = map(int, fields[2].split(":"))
            if separator and (virtual or kinds[0] not in _NO_FILES):
                found.append(Mount(_plain(fields[4]), kinds[0], _plain(kinds[1]), (major, minor)))
    return MountTable(found)


def class_of(path: str) -> str:
    """Return the class of a file by its name, a key of :data:`CLASSES`."""
    for name, pattern in (
        ("program", _PROGRAM),
        ("checkpoint", _CHECKPOINT),
        ("shard", _SHARD),
        ("log", _LOG),
    ):
        if pattern.search(path):
            return name
    return "data"


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), text)


#: Operations of NFS 3 and 4 on names and attributes (metadata).
_NFS_METADATA = frozenset(
    (
        "GETATTR", "SETATTR", "LOOKUP", "LOOKUPP", "ACCESS", "CREATE", "MKDIR", "REMOVE", "RMDIR", "RENAME",
        "LINK", "SYMLINK", "READDIR", "READDIRPLUS", "FSSTAT", "FSINFO", "PATHCONF", "OPEN", "OPEN_CONFIRM",
        "OPEN_NOATTR", "CLOSE", "LOOKUP_ROOT", "STATFS", "MKNOD",
    )
)  # fmt: skip
_NFS_OPENS = ("OPEN:", "OPEN_NOATTR:")
#: Operations that Lustre's metadata servers handle.
_LUSTRE_METADATA = frozenset(
    (
        "open", "close", "mknod", "link", "unlink", "symlink", "mkdir", "rmdir", "rename", "readdir",
        "getattr", "setattr", "statfs", "getxattr", "setxattr", "removexattr", "listxattr",
        "inode_permission", "lookup",
    )
)  # fmt: skip
_LUSTRE_DIRECTORIES = ("proc/fs/lustre/llite", "sys/kernel/debug/lustre/llite", "sys/fs/lustre/llite")
_ONLY_ROOT = "Only root reads /sys/kernel/debug, where Lustre has its statistics since version 2.12."
#: Indices in an operation's line: its count, and milliseconds from request to reply.
_NFS_COUNT, _NFS_RTT = 1, 7
#: Indices in a "bytes:" line: bytes read from the server and written to it (Linux, fs/nfs/iostat.h).
_NFS_READ, _NFS_WRITTEN = 5, 6
_MICROSECONDS = ("[usec]", "[usecs]")
#: Field of `ClientCounters`, and the metric that is its sum over all mounts.
_LUSTRE_SUMS = {
    "read_bytes": "LUSTRE_READ_BYTES",
    "written_bytes": "LUSTRE_WRITE_BYTES",
    "metadata": "LUSTRE_METADATA_OPS",
}
_NFS_SUMS = {"read_bytes": "NFS_READ_BYTES", "written_bytes": "NFS_WRITE_BYTES"}


@dataclass(frozen=True)
class ClientCounters:
    """Counters of one mount since it was mounted; None for a number that is not counted.

    Parameters
    ----------
    kind
        Type of the file system, such as ``nfs4`` or ``lustre``.
    source
        What is mounted: ``server:/export`` for NFS, the name of llite's directory for Lustre.
    opens, metadata
        Numbers of opened files and of metadata operations.
    metadata_ms
        Milliseconds that all metadata operations took together.
    why
        Why there are no counters; empty if there are.
    """

    path: str
    kind: str
    source: str = ""
    read_bytes: float | None = None
    written_bytes: float | None = None
    opens: float | None = None
    metadata: float | None = None
    metadata_ms: float | None = None
    why: str = ""


@dataclass(frozen=True)
class ClientRates:
    """Operations and bytes of a mount's client between two readings, per second; None where it is unknown.

    Parameters
    ----------
    metadata_ms
        Mean milliseconds per metadata operation; None without any operation.
    """

    read_bytes: float | None
    written_bytes: float | None
    opens: float | None
    metadata: float | None
    metadata_ms: float | None


def read_clients(mounts: MountTable, root: Path = Path("/")) -> list[ClientCounters]:
    """Return the counters of each NFS and Lustre mount, or why there are none."""
    found: list[ClientCounters] = []
    nfs = [each for each in mounts.mounts if each.kind in ("nfs", "nfs4")]
    if nfs:
        text, why = _read(root / "proc/self/mountstats")
        known = {each.path: each for each in parse_nfs(text.splitlines())}
        why = why or "mountstats does not list this mount."
        found += [known.get(each.path) or ClientCounters(each.path, each.kind, why=why) for each in nfs]
    lustre = [each for each in mounts.mounts if each.kind == "lustre"]
    if lustre:
        clients, why = _lustre_clients(root)
        for mount in lustre:
            # llite's directories are named after the file system: "scratch-ffff8c0d" of "mgs@tcp:/scratch".
            name = mount.source.rpartition("/")[2]
            own = next((each for each in clients if each.name.startswith(f"{name}-")), None)
            if own is None:
                found.append(
                    ClientCounters(mount.path, "lustre", why=why or "llite does not list this mount.")
                )
                continue
            text, why_not = _read(own / "stats")
            parsed = parse_lustre(text.splitlines(), path=mount.path, source=own.name)
            found.append(ClientCounters(mount.path, "lustre", why=why_not) if why_not else parsed)
    return found


def rates_of(before: ClientCounters, now: ClientCounters, seconds: float) -> ClientRates:
    """Return the rates between two readings; None for a counter that fell: it was reset or it wrapped."""

    def step(name: str) -> float | None:
        first, last = getattr(before, name), getattr(now, name)
        return None if first is None or last is None or last < first or seconds <= 0 else last - first

    def rate(name: str) -> float | None:
        value = step(name)
        return None if value is None else value / seconds

    count, milliseconds = step("metadata"), step("metadata_ms")
    mean = milliseconds / count if count and milliseconds is not None else None
    return ClientRates(rate("read_bytes"), rate("written_bytes"), rate("opens"), rate("metadata"), mean)


def lustre_counters(root: Path = Path("/")) -> dict[str, float | None]:
    """Return sums of bytes and operations under the names of their rates; None where unavailable."""
    clients, _ = _lustre_clients(root)
    texts = (_read(each / "stats") for each in clients)
    return _sums([parse_lustre(text.splitlines()) for text, why in texts if not why], _LUSTRE_SUMS)


def nfs_counters(proc: Path = Path("/proc")) -> dict[str, float | None]:
    """Return sums of bytes of all exports under the names of their rates; None without NFS mounts.

    An export that is mounted several times is counted once.
    """
    text, _ = _read(proc / "self/mountstats")
    exports = {
        (each.source, each.read_bytes, each.written_bytes): each for each in parse_nfs(text.splitlines())
    }
    return _sums([each for each in exports.values() if each.read_bytes is not None], _NFS_SUMS)


def parse_nfs(lines: Iterable[str]) -> list[ClientCounters]:
    """Return the counters of the NFS mounts in the lines of a ``mountstats`` file; skip damaged lines."""
    return [_nfs_mount(head, own) for head, own in _nfs_sections(lines)]


def parse_lustre(lines: Iterable[str], *, path: str = "", source: str = "") -> ClientCounters:
    """Return the counters in the lines of a ``stats`` file of llite; skip damaged lines.

    A line holds the name, the count, "samples", the unit in brackets, and minimum, maximum and sum of what is
    measured in this unit.
    """
    found: dict[str, float] = {}

    def add(name: str, value: float) -> None:
        found[name] = found.get(name, 0.0) + value

    for line in lines:
        words = line.split()
        if len(words) < 3 or words[2] != "samples":
            continue
        with suppress(ValueError, IndexError):
            if words[0] in ("read_bytes", "write_bytes"):
                add("read_bytes" if words[0] == "read_bytes" else "written_bytes", float(words[6]))
            elif words[0] in _LUSTRE_METADATA:
                add("metadata", float(words[1]))
                if words[0] == "open":
                    add("opens", float(words[1]))
                if words[3] in _MICROSECONDS:
                    add("metadata_ms", float(words[6]) / 1000)
    why = "" if found else "The statistics of llite are empty."
    return ClientCounters(path, "lustre", source, **found, why=why)


def _nfs_mount(head: list[str], lines: Iterable[str]) -> ClientCounters:
    found: dict[str, float] = {}

    def add(name: str, value: float) -> None:
        found[name] = found.get(name, 0.0) + value

    for line in lines:
        words = line.split()
        with suppress(ValueError, IndexError):
            if words[0] == "bytes:":
                read, written = float(words[_NFS_READ]), float(words[_NFS_WRITTEN])
                found |= {"read_bytes": read, "written_bytes": written}
            elif words[0].endswith(":") and words[0][:-1] in _NFS_METADATA:
                count, milliseconds = float(words[_NFS_COUNT]), float(words[_NFS_RTT])
                add("metadata", count)
                add("metadata_ms", milliseconds)
                if words[0] in _NFS_OPENS:
                    add("opens", count)
    why = "" if found else "mountstats has no counters of this mount."
    path, kind = head[head.index("on") + 1], head[head.index("fstype") + 1]
    return ClientCounters(path, kind, head[1], **found, why=why)


def _nfs_sections(lines: Iterable[str]) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the words of the first line and the other lines of each NFS mount."""
    head: list[str] = []
    own: list[str] = []
    for line in lines:
        words = line.split()
        if words[:1] != ["device"]:
            own.append(line)
            continue
        if head:
            yield head, own
        known = "fstype" in words[:-1] and words[words.index("fstype") + 1] in ("nfs", "nfs4")
        head, own = (words if known and "on" in words[:-1] else []), []
    if head:
        yield head, own


def _lustre_clients(root: Path) -> tuple[list[Path], str]:
    """Return the directories of Lustre's clients, or why they can't be listed."""
    why = "Lustre's client has no statistics here."
    for name in _LUSTRE_DIRECTORIES:
        try:
            found = sorted((root / name).iterdir())
        except PermissionError:
            why = _ONLY_ROOT
        except OSError:
            continue
        else:
            if found:
                return found, ""
    return [], why


def _sums(found: list[ClientCounters], names: Mapping[str, str]) -> dict[str, float | None]:
    if not found:
        return dict.fromkeys(names.values())
    return {metric: sum(getattr(each, counter) or 0.0 for each in found) for counter, metric in names.items()}


def _read(path: Path) -> tuple[str, str]:
    """Return a file's text, or why it can't be read."""
    try:
        return path.read_text(errors="replace"), ""
    except OSError as error:
        return "", f"/{path.relative_to(path.anchor)} can't be read: {error.strerror or error}."
