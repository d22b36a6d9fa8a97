"""Places of ranks, process and GPU of each: ``telemetry/<node>-<recorder>.ranks.json``.

A recorder looks for the ranks on its node (:class:`RankFinder`); readers ask :func:`read_ranks`.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .events import file_name
from .files import read_json

#: Ending of the files that hold places of ranks.
SUFFIX = ".ranks.json"
_MOST_BYTES = 16 << 20
_EVERY_NS = 10 * 10**9
_LARGEST_ENVIRONMENT = 1 << 20
#: From here on Slurm's step ids mean the batch script, an allocation's shell and the like.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0


@dataclass(frozen=True)
class RankPlace:
    """One rank of the job on one GPU.

    Parameters
    ----------
    pid
        Of the process, on its node.
    gpu_uuid
        The GPU, or MIG instance, that the process holds; None where it holds none.
    name
        The process's name.
    """

    rank: int
    node: str
    pid: int
    gpu_uuid: str | None
    name: str

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "RankPlace":
        """Return a place from a dictionary; keys of a later version are left out.

        Raises
        ------
        ValueError
            It is none.
        """
        try:
            gpu = content["gpu_uuid"]
            return cls(
                int(content["rank"]),
                str(content["node"]),
                int(content["pid"]),
                None if gpu is None else str(gpu),
                str(content["name"]),
            )
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"not a rank's place: {error!r}") from error


def read_ranks(telemetry: Path) -> tuple[RankPlace, ...]:
    """Return the places of a run's ranks, by rank and GPU; damaged files are left out."""
    found: dict[tuple[int, str, str | None], RankPlace] = {}
    for path in sorted(telemetry.glob(f"*{SUFFIX}")):
        try:
            places = [RankPlace.from_json(each) for each in read_json(path, _MOST_BYTES)]
        except (OSError, ValueError, TypeError):
            continue
        for place in places:
            found.setdefault((place.rank, place.node, place.gpu_uuid), place)
    return tuple(sorted(found.values(), key=lambda place: (place.rank, place.node, place.gpu_uuid or "")))


def gpus_by_rank(places: Iterable[RankPlace]) -> dict[int, list[str]]:
    """Return rank to the UUIDs of its GPUs, as the score takes them; ranks without a GPU are left out."""
    found: dict[int, list[str]] = {}
    for place in places:
        if place.gpu_uuid is not None:
            found.setdefault(place.rank, []).append(place.gpu_uuid)
    return found


def ranks_file(telemetry: Path, node: str, recorder: str) -> Path:
    """Return the path of the places of a node's ranks."""
    return telemetry / f"{file_name(node) or 'node'}-{file_name(recorder)}{SUFFIX}"


def ranks_text(places: Iterable[RankPlace]) -> str:
    """Return the content of such a file."""
    return json.dumps([asdict(place) for place in places]) + "\n"


@dataclass(frozen=True)
class _Process:
    pid: int
    parent: int
    name: str
    rank: int


class RankFinder:
    """Finder of a node's ranks, which keeps one recorder's file of them current.

    Parameters
    ----------
    path
        The file, of :func:`ranks_file`.
    environment
        The recorder's: processes of another Slurm job are not looked at.
    """

    def __init__(
        self, path: Path, node: str, environment: Mapping[str, str], proc: Path = Path("/proc")
    ) -> None:
        self._path = path
        self._node = node
        self._job = environment.get("SLURM_JOB_ID", "")
        self._proc = proc
        self._due_ns = 0
        self._known: dict[int, tuple[RankPlace, ...]] = {}

    def due(self, now_ns: int) -> bool:
        """Return whether the next search is due."""
        if now_ns < self._due_ns:
            return False
        self._due_ns = now_ns + _EVERY_NS
        return True

    def update(self, holders: Sequence[tuple[int, str]]) -> None:
        """Search, and write the file where something is new.

        Parameters
        ----------
        holders
            Processes that hold a GPU, each with its UUID.

        Raises
        ------
        OSError
            The file can't be written.
        """
        found = {**self._known, **self.find(holders)}
        if found == self._known:
            return
        places = [place for _, own in sorted(found.items()) for place in own]
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(handle, "w") as file:
                file.write(ranks_text(places))
            temporary.replace(self._path)
        except OSError:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        self._known = found

    def find(self, holders: Sequence[tuple[int, str]]) -> dict[int, tuple[RankPlace, ...]]:
        """Return rank to its places on this node."""
        processes = {process.pid: process for process in self._processes()}
        found: dict[int, tuple[RankPlace, ...]] = {}
        for pid, uuid in sorted(set(holders)):
            if process := processes.get(pid):
                place = RankPlace(process.rank, self._node, pid, uuid, process.name)
                found[process.rank] = (*found.get(process.rank, ()), place)
        for process in sorted(processes.values(), key=lambda each: each.pid):
            parent = processes.get(process.parent)
            # What a rank starts, as workers that read data, inherits its environment.
            if process.rank not in found and (parent is None or parent.rank != process.rank):
                found[process.rank] = (RankPlace(process.rank, self._node, process.pid, None, process.name),)
        return found

    def _processes(self) -> list[_Process]:
        # Who keeps or starts a recorder is a task of Slurm's, and computes nothing.
        own, ourselves = os.getuid(), {os.getpid(), os.getppid()}
        found = []
        for entry in os.scandir(self._proc):
            if entry.name.isdecimal() and int(entry.name) not in ourselves:
                with suppress(OSError, ValueError, IndexError):
                    if entry.stat().st_uid == own:
                        found.append(self._process(int(entry.name)))
        return [process for process in found if process is not None]

    def _process(self, pid: int) -> _Process | None:
        folder = self._proc / str(pid)
        with (folder / "environ").open("rb") as file:
            text = file.read(_LARGEST_ENVIRONMENT)
        environment = dict(part.split(b"=", 1) for part in text.split(b"\0") if b"=" in part)
        if self._job and environment.get(b"SLURM_JOB_ID", b"").decode(errors="replace") != self._job:
            return None
        rank = _rank(environment)
        if rank is None:
            return None
        name, _, rest = (folder / "stat").read_text(errors="replace").rpartition(")")
        return _Process(pid, int(rest.split()[1]), name.partition("(")[2], rank)


def _rank(environment: Mapping[bytes, bytes]) -> int | None:
    """Return the rank that a launcher gave, else Slurm's in a step with tasks."""
    given = environment.get(b"RANK", b"")
    step = environment.get(b"SLURM_STEP_ID", b"")
    if not given and step.isdigit() and int(step) < _FIRST_SPECIAL_STEP:
        given = environment.get(b"SLURM_PROCID", b"")
    return int(given) if given.isdigit() and len(given) < 10 else None
