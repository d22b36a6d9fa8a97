"""Reads, writes and open files of a job's processes, by rank and by directory and class of files.

``/proc/PID/io`` counts each process' calls and bytes. Its file descriptors are read every few seconds, which
is called a look: the positions in files (``/proc/PID/fdinfo``) distinguish sequential from random reading. A
file that is opened, read and closed between two looks is seen only by chance.
"""

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from ..telemetry.ranks import rank_of_environment, read_environment
from ..telemetry.sources.file_systems import MountTable, class_of, read_mounts

#: Limits: sibling directories before they are merged, files in all, new files per look, descriptors of a
#: process.
_MOST_BESIDE, _MOST_FILES, _MOST_NEW, _MOST_DESCRIPTORS = 3, 100_000, 400, 4000
#: Files count as small if their mean size is below this, and if there are at least this many.
SMALL_BYTES, _MANY = 1 << 20, 10
#: Bytes by which a file's position may differ from what a program has consumed, due to its own buffer.
_BUFFER_BYTES = 256 << 10
#: Minimum number of position changes to determine a pattern; share of random ones from which it is random,
#: and up to which it is sequential.
_MOVES, _RANDOM, _SEQUENTIAL = 3, 0.3, 0.1
_SHARED_MEMORY = "/dev/shm/"  # noqa: S108 - only compared
_NOT_FILES = ("/proc/", "/sys/", "/dev/")
#: The memory mappings of a process are read at every n-th look: they are long, and rarely change.
_MAPS_EVERY = 5


@dataclass
class RankIo:
    """Input and output of a rank's processes in a period.

    Parameters
    ----------
    read, written
        Bytes, including those from and to the page cache.
    storage_read, storage_written
        Bytes that came from or went to storage, where the kernel counts them.
    reads, writes
        Numbers of calls.
    blocked, looks
        Number of looks at the rank's processes, and in how many a process waited in the kernel (state D,
        mostly for storage).
    """

    rank: int | None
    read: int = 0
    written: int = 0
    storage_read: int = 0
    storage_written: int = 0
    reads: int = 0
    writes: int = 0
    blocked: int = 0
    looks: int = 0


@dataclass
class FileGroup:
    """Files of one class (`kind`) in a directory, or below it if there are many directories.

    Parameters
    ----------
    tier, mount, filesystem
        Tier, path and type of their mount; see ``telemetry.sources.file_systems.Mount``.
    files, bytes
        Number of different files that were seen, and their total size.
    sequential, random, mapped
        Numbers of sequential and random changes of positions in files, and of mapped files that were seen.
    """

    directory: str
    kind: str
    tier: str
    mount: str
    filesystem: str
    ranks: set[int] = field(default_factory=set)
    files: int = 0
    bytes: int = 0
    largest: int = 0
    largest_path: str = ""
    written: bool = False
    sequential: int = 0
    random: int = 0
    mapped: int = 0

    @property
    def pattern(self) -> str:
        """``small files``, ``random``, ``sequential``, ``mixed``, ``mapped`` or ``unknown``."""
        if self.files >= _MANY and self.bytes / self.files < SMALL_BYTES:
            return "small files"
        moves = self.sequential + self.random
        if moves >= _MOVES:
            share = self.random / moves
            return "random" if share >= _RANDOM else "sequential" if share <= _SEQUENTIAL else "mixed"
        return "mapped" if self.mapped else "unknown"

    def absorb(self, other: "FileGroup") -> None:
        """Add the files of another group."""
        self.ranks |= other.ranks
        for name in ("files", "bytes", "sequential", "random", "mapped"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        if other.largest > self.largest:
            self.largest, self.largest_path = other.largest, other.largest_path
        self.written |= other.written


@dataclass
class _Process:
    started: str
    rank: int | None
    mounts: MountTable
    io: dict[str, int] = field(default_factory=dict)
    #: Target and position of each descriptor at the last look.
    files: dict[str, tuple[str, int]] = field(default_factory=dict)
    looks: int = 0


class JobFiles:
    """Watch of a job's processes; not safe for several threads.

    Parameters
    ----------
    proc
        The mount point of procfs.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._processes: dict[int, _Process] = {}
        self._ranks: dict[int | None, RankIo] = {}
        self._groups: dict[tuple[str, str], FileGroup] = {}
        self._seen: set[tuple[int, int, str]] = set()
        self._sizes: dict[int, int] = {}
        self._new = 0
        #: Directories with files that the job has read, as this process can open them.
        self.directories: dict[str, str] = {}
        #: A file on each mount that the job has read, as this process can open it.
        self.examples: dict[str, tuple[str, Path]] = {}
        #: Mounts of the job's processes.
        self.mounts = MountTable(())

    def look(self, pids: Iterable[int]) -> None:
        """Read the processes' counters and open files; what a process does after its last look is lost."""
        known, self._processes, self._new = self._processes, {}, 0
        for pid in pids:
            with suppress(OSError, ValueError, IndexError):
                folder = self._proc / str(pid)
                fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
                before = known.get(pid)
                if before is None or before.started != fields[19]:
                    before = _Process(
                        fields[19], rank_of_environment(read_environment(folder)), read_mounts(folder)
                    )
                self._processes[pid] = before
                self._look_at(folder, before, state=fields[0])

    def take_ranks(self) -> list[RankIo]:
        """Return the ranks' input and output since the last call."""
        # Launchers and shells are not ranks, and do nothing most of the time.
        found = [each for each in self._ranks.values() if each.rank is not None or each.read or each.written]
        self._ranks = {}
        return sorted(found, key=lambda each: (each.rank is None, each.rank or 0))

    def groups(self) -> list[FileGroup]:
        """Return all groups of files seen so far, without empty ones: by size, groups of programs last."""
        found = (each for each in self._groups.values() if each.bytes)
        return sorted(found, key=lambda each: (each.kind == "program", -each.bytes, each.directory))

    def _look_at(self, folder: Path, process: _Process, *, state: str) -> None:
        rank = self._ranks.setdefault(process.rank, RankIo(process.rank))
        rank.looks += 1
        rank.blocked += state == "D"
        read = self._add_io(folder, process, rank)
        if process.looks == 0 and process.mounts.mounts:
            self.mounts = process.mounts
        positions: dict[str, tuple[str, int]] = {}
        for name, target in _open_files(folder):
            flags, position = _descriptor(folder / "fdinfo" / name)
            positions[name] = (target, position)
            group = self._see(folder, process, target, f"fd/{name}", written=bool(flags & 3))
            before = process.files.get(name)
            if group is not None and before is not None and before[0] == target and not flags & 3:
                _add_move(group, position - before[1], position, read, self._sizes.get(hash(target), 0))
        process.files = positions
        if process.looks % _MAPS_EVERY == 0:
            for target in _mapped_files(folder):
                group = self._see(folder, process, target, f"root{target}", written=False)
                if group is not None:
                    group.mapped += 1
        process.looks += 1

    def _add_io(self, folder: Path, process: _Process, rank: RankIo) -> int:
        """Add what a process read and wrote since the last look; return the bytes that it read."""
        with suppress(OSError, ValueError):
            lines = (folder / "io").read_text().splitlines()
            now = {name: int(value) for name, _, value in (line.partition(": ") for line in lines)}
            steps = {name: max(0, value - process.io.get(name, value)) for name, value in now.items()}
            process.io = now
            for ours, theirs in (
                ("read", "rchar"), ("written", "wchar"), ("storage_read", "read_bytes"),
                ("storage_written", "write_bytes"), ("reads", "syscr"), ("writes", "syscw"),
            ):  # fmt: skip
                setattr(rank, ours, getattr(rank, ours) + steps.get(theirs, 0))
            return steps.get("rchar", 0)
        return 0

    def _see(
        self, folder: Path, process: _Process, target: str, entry: str, *, written: bool
    ) -> FileGroup | None:
        """Return the group of a file; None for what is not a file of the job."""
        mount = process.mounts.of_path(target)
        parent, kind = str(PurePosixPath(target).parent), class_of(target)
        group = self._groups.get((parent, kind)) or self._group_above(parent, kind)
        rank = -1 if process.rank is None else process.rank
        if mount is None:
            return None
        if (hash(target), rank, kind) in self._seen:
            return group
        if self._new >= _MOST_NEW or len(self._seen) >= _MOST_FILES:
            return group
        self._new += 1
        # A link of procfs leads to the open file, also in another mount namespace and after a rename.
        about = (folder / entry).stat()
        if not stat.S_ISREG(about.st_mode):
            return None
        if group is None:
            group = FileGroup(parent, kind, mount.tier, mount.path, mount.kind)
            self._groups[parent, kind] = group
        self._sizes[hash(target)] = about.st_size
        first = not any((hash(target), other, kind) in self._seen for other in group.ranks)
        self._seen.add((hash(target), rank, kind))
        group.ranks.add(rank)
        group.written |= written
        if first:
            group.files += 1
            group.bytes += about.st_size
        if about.st_size > group.largest:
            group.largest, group.largest_path = about.st_size, target
        if kind != "program" and not written:
            self.directories[parent] = f"{folder}/root{parent}"
            if mount.tier == "shared" and about.st_size:
                self.examples[mount.path] = (target, Path(f"{folder}/root{target}"))
        return self._merged(parent, kind, group)

    def _group_above(self, parent: str, kind: str) -> FileGroup | None:
        """Return the merged group of a parent directory for files of this class; None if there is none."""
        for above in PurePosixPath(parent).parents:
            group = self._groups.get((f"{above}/*", kind))
            if group is not None:
                return group
        return None

    def _merged(self, parent: str, kind: str, group: FileGroup) -> FileGroup:
        """Merge a group with those of sibling directories if there are many, and return the result."""
        above = str(PurePosixPath(parent.removesuffix("/*")).parent)
        beside = [
            key for key in self._groups
            if key[1] == kind and str(PurePosixPath(key[0].removesuffix("/*")).parent) == above
        ]  # fmt: skip
        if len(beside) <= _MOST_BESIDE or above == "/":
            return group
        merged = FileGroup(f"{above}/*", kind, group.tier, group.mount, group.filesystem)
        for key in beside:
            merged.absorb(self._groups.pop(key))
        self._groups[merged.directory, kind] = merged
        return self._merged(merged.directory, kind, merged)


def _add_move(group: FileGroup, step: int, position: int, read: int, size: int) -> None:
    """Count the change of a file's position between two looks, as sequential or random.

    Parameters
    ----------
    step, position
        Change of the position in bytes, and the new position.
    read
        Bytes that the process has read from any file in the meantime.
    size
        Size of the file.
    """
    reach = read + _BUFFER_BYTES
    if reach > size / 2:
        # The process may have read the whole file, or other files: this says nothing about the pattern.
        return
    # A step back to near the beginning is the next pass over the file, not random access.
    if (step < 0 and position > reach) or step > reach:
        group.random += 1
    elif step > 0:
        group.sequential += 1


def _open_files(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield number and path of each descriptor of a file that still has a name."""
    for count, entry in enumerate(os.scandir(folder / "fd")):
        if count >= _MOST_DESCRIPTORS:
            return
        with suppress(OSError):
            target = str(Path(entry.path).readlink())
            if _is_file_path(target):
                yield entry.name, target


def _mapped_files(folder: Path) -> Iterator[str]:
    """Yield the paths of mapped shards and models, each once."""
    found: set[str] = set()
    with suppress(OSError):
        for line in (folder / "maps").read_text(errors="surrogateescape").splitlines():
            path = line.split(maxsplit=5)[5:]
            # Programs also map their own files and libraries, which can't be recognized by name: skip others.
            if path and path[0] not in found and _is_file_path(path[0]):
                found.add(path[0])
                if class_of(path[0]) in ("checkpoint", "shard"):
                    yield path[0]


def _is_file_path(path: str) -> bool:
    if not path.startswith("/") or path.endswith(" (deleted)"):
        return False
    return path.startswith(_SHARED_MEMORY) or not path.startswith(_NOT_FILES)


def _descriptor(information: Path) -> tuple[int, int]:
    """Return flags and position of a descriptor."""
    flags = position = 0
    with suppress(OSError, ValueError):
        for line in information.read_text().splitlines():
            if line.startswith("pos:"):
                position = int(line[4:])
            elif line.startswith("flags:"):
                flags = int(line[6:], 8)
    return flags, position
