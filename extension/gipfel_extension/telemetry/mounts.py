"""Mounts of a process, the tier of storage behind each, and the class of a file.

Tiers are ``memory`` (tmpfs), ``local`` (disks of the node), ``shared`` (a file system of the cluster) and
``image`` (a packed file that is mounted).
"""

import os
import re
from collections.abc import Iterable
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
#: File systems of the kernel, which hold no files of a job.
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
#: Name of each class of files, for people.
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
        """``memory``, ``local``, ``shared`` or ``image``; other FUSE is shared, the rest ``unknown``."""
        for tier, kinds in _TIERS.items():
            if self.kind in kinds:
                return tier
        return "shared" if self.kind.startswith("fuse") else "unknown"


class MountTable:
    """Mounts by path; the last of several at one path is the visible one."""

    def __init__(self, mounts: Iterable[Mount]) -> None:
        self.mounts = tuple({each.path: each for each in mounts}.values())
        self._by_path = {each.path: each for each in self.mounts}
        self._by_device = {each.device: each for each in reversed(self.mounts)}

    def of_path(self, path: str) -> Mount | None:
        """Return the mount that holds an absolute path."""
        for folder in (path, *map(str, PurePosixPath(path).parents)):
            if folder in self._by_path:
                return self._by_path[folder]
        return None

    def of_device(self, device: int) -> Mount | None:
        """Return the mount of a device as ``os.stat`` numbers it; btrfs has several numbers for one mount."""
        return self._by_device.get((os.major(device), os.minor(device)))


def read_mounts(process: Path = Path("/proc/self")) -> MountTable:
    """Return the mounts of a process, without those of the kernel; empty where they can't be read."""
    with suppress(OSError):
        return parse_mountinfo((process / "mountinfo").read_text(errors="surrogateescape"))
    return MountTable(())


def parse_mountinfo(text: str) -> MountTable:
    """Return the mounts in the text of a ``mountinfo`` file (proc_pid_mountinfo(5)); skip damaged lines."""
    found = []
    for line in text.splitlines():
        left, separator, right = line.partition(" - ")
        fields, kinds = left.split(" "), right.split(" ")
        with suppress(ValueError, IndexError):
            major, minor = map(int, fields[2].split(":"))
            if separator and kinds[0] not in _NO_FILES:
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
