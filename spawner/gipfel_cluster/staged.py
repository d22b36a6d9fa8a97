"""Staged data: copies of shared files on this node's disk or in its memory, for use in containers.

A store is a directory of one user (0700) on a file system of the node. It has one directory per distinct
content; paths that are known to have the same data share it:

=================  ==============================================================================
``<key>/data``     the copy; until it is complete and checked, ``<key>/part``
``<key>/*.json``   a `StagedPath` for each path that has this content
=================  ==============================================================================

``<key>`` is the digest of the content in the data's summary or, without a summary, one of the path, its size
and its version. `path_file` names the ``.json`` files.

A process that uses a content holds a shared lock on ``<key>``, a process that writes it an exclusive lock.
The kernel releases locks when their process ends, so a content without a lock is not needed, and `sweep`
removes it.

Only the standard library is imported, because Slurm runs this file as a script when a task has ended, even if
the task was killed (``srun --task-epilog``): `epilog_script` returns the program.
"""

import fcntl
import hashlib
import json
import os
import pwd
import shlex
import shutil
import stat
import string
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

#: Name of the EDF annotation that lists the data to stage, and prefix of those with options, such as
#: ``com.gipfel.stage.to``.
ANNOTATION = "com.gipfel.stage"
#: Prefix of the addresses of S3 objects.
OBJECTS = "s3://"
MEMORY = Path("/dev/shm")  # noqa: S108 - the store in it is accessible to its owner alone
_MAX_BYTES = 64 << 10
_SWEEP_S, _SWEEP_POLL_S = 2.0, 0.05
_MOUNTINFO = Path("/proc/self/mountinfo")
_LOCAL_TYPES = frozenset(("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs"))


class StagedPath(NamedTuple):
    """A path of the shared file system or the address of an S3 object, and its copy on this node.

    ``size`` (in bytes) and ``mtime_ns`` are those of the original when it was copied; ``job`` is the ID
    of the job that staged it; ``copy`` is the path of the copy.
    """

    path: str
    size: int
    mtime_ns: int
    job: str
    copy: str

    @property
    def in_containers(self) -> str:
        """Return the path in containers: the same, or one below ``/s3`` for an S3 object."""
        return f"/s3/{self.path.removeprefix(OBJECTS)}" if self.path.startswith(OBJECTS) else self.path

    def is_current(self) -> bool:
        """Return whether the original still has the size and modification time that it had when copied.

        An S3 object counts as unchanged for as long as its copy exists.
        """
        if self.path.startswith(OBJECTS):
            return True
        try:
            found = Path(self.path).stat()
        except OSError:
            return False
        return (found.st_size, found.st_mtime_ns) == (self.size, self.mtime_ns)


def stores(disk: Path | None) -> dict[str, Path]:
    """Return the user's stores on this node, by tier: ``nvme`` in `disk`, ``memory`` in ``/dev/shm``."""
    name = f"gipfel-staged-{os.geteuid()}"
    return {**({"nvme": disk / name} if disk else {}), "memory": MEMORY / name}


def resolve_directory(template: str, environment: Mapping[str, str]) -> Path:
    """Return the path of a configured directory, in which ``~`` and variables are replaced.

    Raises
    ------
    ValueError
        A variable is not set, or the result is not an absolute path.
    """
    home = environment.get("HOME") or os.path.expanduser("~")  # noqa: PTH111 - as a text
    text = home + template[1:] if template == "~" or template.startswith("~/") else template
    user = pwd.getpwuid(os.geteuid()).pw_name if "USER" not in environment and "USER" in text else ""
    try:
        found = string.Template(text).substitute({"USER": user, **environment})
    except KeyError as error:
        raise ValueError(f"${error.args[0]} is not set") from error
    except ValueError as error:
        raise ValueError("a $ in it does not begin a variable") from error
    if not found.startswith("/"):
        raise ValueError(f"{found} is not an absolute path")
    return Path(found)


def local_directory(environment: Mapping[str, str]) -> Path | None:
    """Return the first of ``$SLURM_TMPDIR``, ``$TMPDIR`` and ``/tmp`` that is on a local disk; else None."""
    for name in ("SLURM_TMPDIR", "TMPDIR"):
        given = environment.get(name, "")
        if given.startswith("/") and file_system_type(Path(given)) in _LOCAL_TYPES:
            return Path(given)
    temporary = Path("/tmp")  # noqa: S108 - as above
    return temporary if file_system_type(temporary) in _LOCAL_TYPES else None


def file_system_type(path: Path) -> str:
    """Return the type of the file system of a directory, such as ``ext4``; empty if it is unknown."""
    best, found = -1, ""
    with suppress(OSError):
        real = os.path.realpath(path)
        for line in _MOUNTINFO.read_text(errors="replace").splitlines():
            before, _, after = line.partition(" - ")
            point = before.split()[4].encode().decode("unicode_escape")
            inside = real == point or real.startswith(point.rstrip("/") + "/")
            # The last of several mounts at one path is the visible one.
            if inside and len(point) >= best:
                best, found = len(point), after.split()[0]
    return found


def available_memory(own: Path = Path("/proc/self/cgroup"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes of memory that this process may still use: what node and control groups leave.

    Slurm limits a job with a control group (version 1 or 2) above the groups of its processes. The page cache
    of files counts as available, but that of tmpfs does not.
    """
    available = 0
    for line in Path("/proc/meminfo").read_text(errors="replace").splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
    with suppress(OSError):
        for line in own.read_text(errors="replace").splitlines():
            number, controllers, name = line.split(":", 2)
            if number == "0":
                top, files = groups, ("memory.max", "memory.current", "")
            elif "memory" in controllers.split(","):
                top, files = groups / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
            else:
                continue
            group = top / name.strip("/")
            for each in (group, *group.parents):
                if each.is_relative_to(top):
                    available = min(available, _left_in(each, *files))
    return max(0, available)


def _left_in(group: Path, limit: str, current: str, prefix: str) -> int:
    try:
        texts = [(group / name).read_text() for name in (limit, current, "memory.stat")]
        counters = dict(line.split(maxsplit=1) for line in texts[2].splitlines())
        cached = counters.get(f"{prefix}cache" if prefix else "file", "0")
        memory_files = counters.get(f"{prefix}shmem", "0")
        return int(texts[0]) - int(texts[1]) + int(cached) - int(memory_files)
    except (OSError, ValueError):
        # The group has no limit if a file is missing, or if the limit is ``max``.
        return sys.maxsize


def open_store(store: Path) -> None:
    """Create a store, or check that it is a directory which only this user can enter.

    Raises
    ------
    OSError
        It can't be created, or it belongs to another user.
    """
    with suppress(FileExistsError):
        store.mkdir(mode=0o700)
    found = store.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(1, "it is not a directory of this user alone", str(store))


def lock_content(content: Path, *, exclusive: bool) -> int | None:
    """Return a descriptor with a lock on a content's directory; None if another process's lock excludes it.

    Raises
    ------
    OSError
        The directory does not exist, or the file system has no locks.
    """
    while True:
        descriptor = os.open(content, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
            # Another process may have removed and recreated the directory between the two calls.
            if os.path.samestat(os.fstat(descriptor), content.stat()):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def share_content(lock: int) -> bool:
    """Turn an exclusive lock into a shared one; return whether the content still exists.

    It may not, since the kernel releases the first lock before it grants the second one.
    """
    fcntl.flock(lock, fcntl.LOCK_SH)
    return os.fstat(lock).st_nlink > 0


def sweep(store: Path) -> int:
    """Remove contents that no process uses, and then the store if it is empty; return the bytes freed."""
    freed = 0
    with suppress(OSError):
        open_existing(store)
        for content in sorted(store.iterdir()):
            with suppress(OSError):
                freed += _remove_unused(content)
        store.rmdir()
    return freed


def open_existing(store: Path) -> None:
    """Check a store like `open_store`, but do not create it.

    Raises
    ------
    OSError
        It does not exist, or it belongs to another user.
    """
    store.lstat()
    open_store(store)


def _remove_unused(content: Path) -> int:
    descriptor = lock_content(content, exclusive=True)
    if descriptor is None:
        return 0
    try:
        size = sum(each.lstat().st_blocks * 512 for each in content.iterdir())
        shutil.rmtree(content)
    finally:
        os.close(descriptor)
    return size


def path_file(content: Path, path: str) -> Path:
    """Return the ``.json`` file in a content's directory that describes a path with this content."""
    return content / f"{hashlib.sha256(path.encode(errors='surrogateescape')).hexdigest()[:32]}.json"


def describe_path(content: Path, path: str, size: int, mtime_ns: int, job: str) -> None:
    """Write the file which says that a path, or the address of an S3 object, has this content."""
    file = path_file(content, path)
    part = file.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps({"path": path, "size": size, "mtime_ns": mtime_ns, "job": job}))
    part.replace(file)


def staged_paths(node_stores: Mapping[str, Path]) -> Iterator[tuple[str, StagedPath]]:
    """Yield the tier and `StagedPath` of each complete copy in `node_stores`, which `stores` returned."""
    for tier, store in node_stores.items():
        with suppress(OSError):
            open_existing(store)
            for file in sorted(store.glob("*/*.json")):
                found = _read(file)
                if found is not None:
                    yield tier, found


def _read(file: Path) -> StagedPath | None:
    copy = file.parent / "data"
    try:
        with file.open("rb") as opened:
            about = json.loads(opened.read(_MAX_BYTES))
        found = StagedPath(
            str(about["path"]), int(about["size"]), int(about["mtime_ns"]), str(about["job"]), str(copy)
        )
        complete = stat.S_ISREG(copy.lstat().st_mode) and copy.lstat().st_size == found.size
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if complete else None


def epilog_script(fast: str) -> str:
    """Return a shell script that removes what a killed task left in the stores of its node.

    ``fast`` is the directory that is configured for the storage class ``fast`` (node-local disk); empty for
    that of `local_directory`.
    """
    words = (sys.executable, "-I", "-S", __file__, fast)
    return f"#!/bin/sh\nexec {shlex.join(words)}\n"


def main(fast: str, environment: Mapping[str, str]) -> None:
    """Sweep this node's stores repeatedly, for up to two seconds.

    Children of a killed task hold their locks until they end.
    """
    end = time.monotonic() + _SWEEP_S
    disk = resolve_directory(fast, environment) if fast else local_directory(environment)
    present = [each for each in stores(disk).values() if each.exists()]
    while present and time.monotonic() < end:
        for store in present:
            sweep(store)
        present = [each for each in present if each.exists()]
        time.sleep(_SWEEP_POLL_S if present else 0)


if __name__ == "__main__":
    main(sys.argv[1], os.environ)
