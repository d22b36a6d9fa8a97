"""Process and GPU of each rank, stored in ``telemetry/<node>-<recorder>.ranks.json``.

A recorder searches the processes of its node (:class:`RankFinder`); :func:`read_ranks` reads the files.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from .events import file_name
from .files import read_json, replace_file

#: Ending of the files that hold the locations of ranks.
SUFFIX = ".ranks.json"
_MAX_BYTES = 16 << 20
_SEARCH_INTERVAL_NS = 10 * 10**9
_MAX_ENVIRONMENT_BYTES = 1 << 20
#: Slurm's step IDs from this number on are special steps: the batch script, an allocation's shell and others.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0


@dataclass(frozen=True)
class RankLocation:
    """One rank of the job on one GPU.

    Parameters
    ----------
    pid
        Process id on its node.
    gpu_uuid
        The GPU or MIG instance that the process uses; None where it uses none.
    name
        Name of the process.
    numa
        The NUMA node to which all cores belong that the process may use; None where there are several.
    """

    rank: int
    node: str
    pid: int
    gpu_uuid: str | None
    name: str
    numa: int | None = None

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "RankLocation":
        """Return the location in a dictionary; ignore keys of later versions.

        Raises
        ------
        ValueError
            The dictionary is not a rank's location.
        """
        try:
            gpu, numa = content["gpu_uuid"], content.get("numa")
            return cls(
                int(content["rank"]),
                str(content["node"]),
                int(content["pid"]),
                None if gpu is None else str(gpu),
                str(content["name"]),
                None if numa is None else int(numa),
            )
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"not a rank's location: {error!r}") from error


def read_ranks(telemetry: Path) -> tuple[RankLocation, ...]:
    """Return the locations of a run's ranks, sorted by rank and GPU; skip damaged files."""
    found: dict[tuple[int, str, str | None], RankLocation] = {}
    for path in sorted(telemetry.glob(f"*{SUFFIX}")):
        with suppress(OSError, ValueError, TypeError):
            for location in [RankLocation.from_json(each) for each in read_json(path, _MAX_BYTES)]:
                found.setdefault((location.rank, location.node, location.gpu_uuid), location)
    return tuple(
        sorted(found.values(), key=lambda location: (location.rank, location.node, location.gpu_uuid or ""))
    )


def gpu_uuids_by_rank(locations: Iterable[RankLocation]) -> dict[int, list[str]]:
    """Return the GPU UUIDs of each rank that has a GPU."""
    found: dict[int, list[str]] = {}
    for location in locations:
        if location.gpu_uuid is not None:
            found.setdefault(location.rank, []).append(location.gpu_uuid)
    return found


def ranks_file(telemetry: Path, node: str, recorder: str) -> Path:
    """Return the path of the file with the locations of a node's ranks."""
    return telemetry / f"{file_name(node) or 'node'}-{file_name(recorder)}{SUFFIX}"


def ranks_json(locations: Iterable[RankLocation]) -> str:
    """Return the content of a ranks file."""
    return json.dumps([asdict(location) for location in locations]) + "\n"


class RankFinder:
    """Finder of a node's ranks; keeps the ranks file of one recorder up to date.

    Ranks are processes of the recorder's Slurm job. Outside of Slurm, they are processes in whose environment
    ``GIPFEL_RUN`` is this run's folder, as launches, labs and ``gipfel record`` set it: other work of the
    user on the same machine may have ranks too.

    Parameters
    ----------
    path
        The file, from :func:`ranks_file`.
    environment
        The recorder's environment, which names its Slurm job.
    recorder
        Process ID of the recorder. Its child processes inherit the environment of its step but are not ranks.
    """

    def __init__(
        self,
        path: Path,
        node: str,
        environment: Mapping[str, str],
        proc: Path = Path("/proc"),
        numa_nodes: Path = Path("/sys/devices/system/node"),
        *,
        recorder: int = 0,
    ) -> None:
        self._path = path
        self._node = node
        self._job = environment.get("SLURM_JOB_ID", "")
        self._run = os.path.realpath(path.parent.parent)
        self._proc = proc
        self._recorder = recorder
        self._numa_cores = _numa_cores(numa_nodes)
        self._due_ns = 0
        self._known: dict[int, tuple[RankLocation, ...]] = {}

    @property
    def locations(self) -> tuple[RankLocation, ...]:
        """Ranks of this node that were found so far."""
        return tuple(location for own in self._known.values() for location in own)

    def due(self, now_ns: int) -> bool:
        """Return whether the next search is due."""
        if now_ns < self._due_ns:
            return False
        self._due_ns = now_ns + _SEARCH_INTERVAL_NS
        return True

    def update(self, holders: Sequence[tuple[int, str]]) -> None:
        """Search for ranks, and write the file if something changed.

        Parameters
        ----------
        holders
            Processes that use a GPU, each with the GPU's UUID.

        Raises
        ------
        OSError
            The file cannot be written.
        """
        found = {**self._known, **self.find(holders)}
        if found == self._known:
            return
        locations = [location for _, own in sorted(found.items()) for location in own]
        replace_file(self._path, ranks_json(locations))
        self._known = found

    def find(self, holders: Sequence[tuple[int, str]]) -> dict[int, tuple[RankLocation, ...]]:
        """Return the locations of each rank on this node."""
        processes = self._processes()
        found: dict[int, tuple[RankLocation, ...]] = {}
        for pid, uuid in sorted(set(holders)):
            if pid in processes:
                _, own = processes[pid]
                found[own.rank] = (*found.get(own.rank, ()), replace(own, gpu_uuid=uuid))
        for _, (parent, own) in sorted(processes.items()):
            # A rank's child processes, such as data loader workers, inherit its environment.
            is_child = parent in processes and processes[parent][1].rank == own.rank
            if own.rank not in found and not is_child:
                found[own.rank] = (own,)
        return found

    def _processes(self) -> dict[int, tuple[int, RankLocation]]:
        """Return the parent and the rank, without its GPUs, of each process that has a rank."""
        # The recorder and the process that starts it are Slurm tasks too, but not ranks.
        own_uid, excluded = os.getuid(), {os.getpid(), os.getppid()}
        found = {}
        for entry in os.scandir(self._proc):
            if entry.name.isdecimal() and int(entry.name) not in excluded:
                with suppress(OSError, ValueError, IndexError):
                    if entry.stat().st_uid == own_uid:
                        found[int(entry.name)] = self._process(int(entry.name))
        return {pid: each for pid, each in found.items() if each is not None and each[0] != self._recorder}

    def _process(self, pid: int) -> tuple[int, RankLocation] | None:
        folder = self._proc / str(pid)
        environment = read_environment(folder)
        rank = rank_of_environment(environment)
        if rank is None or not self._is_of_job(environment):
            return None
        name, _, rest = (folder / "stat").read_text(errors="replace").rpartition(")")
        location = RankLocation(rank, self._node, pid, None, name.partition("(")[2], self._numa(folder))
        return int(rest.split()[1]), location

    def _is_of_job(self, environment: Mapping[bytes, bytes]) -> bool:
        if self._job:
            return environment.get(b"SLURM_JOB_ID", b"").decode(errors="replace") == self._job
        run = os.fsdecode(environment.get(b"GIPFEL_RUN", b""))
        return bool(run) and os.path.realpath(run) == self._run

    def _numa(self, folder: Path) -> int | None:
        """Return the NUMA node of a process's cores; None if they belong to several."""
        lines = (folder / "status").read_text(errors="replace").splitlines()
        allowed = next((line.split(":")[1] for line in lines if line.startswith("Cpus_allowed_list:")), "")
        cores = cpu_list(allowed)
        return next((node for node, own in self._numa_cores.items() if cores and cores <= own), None)


def read_environment(folder: Path) -> dict[bytes, bytes]:
    """Return the environment with which a process was started, from its directory in ``/proc``.

    Raises
    ------
    OSError
        The process has ended, or is another user's.
    """
    with (folder / "environ").open("rb") as file:
        text = file.read(_MAX_ENVIRONMENT_BYTES)
    return dict(part.split(b"=", 1) for part in text.split(b"\0") if b"=" in part)


def _numa_cores(folder: Path) -> dict[int, frozenset[int]]:
    """Return the cores of each NUMA node of this machine; empty where the kernel does not list them."""
    found = {}
    for path in sorted(folder.glob("node[0-9]*/cpulist")):
        with suppress(OSError, ValueError):
            found[int(path.parent.name.removeprefix("node"))] = cpu_list(path.read_text())
    return found


def cpu_list(text: str) -> frozenset[int]:
    """Return the cores of a list in the kernel's format, such as ``0-3,8``."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def rank_of_environment(environment: Mapping[bytes, bytes]) -> int | None:
    """Return the rank that a launcher set, else Slurm's in a step with tasks; None without either."""
    rank = environment.get(b"RANK", b"")
    step = environment.get(b"SLURM_STEP_ID", b"")
    if not rank and step.isdigit() and int(step) < _FIRST_SPECIAL_STEP:
        rank = environment.get(b"SLURM_PROCID", b"")
    return int(rank) if rank.isdigit() and len(rank) < 10 else None
