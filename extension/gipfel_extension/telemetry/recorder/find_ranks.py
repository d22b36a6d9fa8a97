"""Find the job's ranks on this node: processes of ours whose environment names a rank, and their GPUs."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..ranks import RankPlace, ranks_file, ranks_text
from .settings import Settings

_EVERY_NS = 10 * 10**9
_LARGEST_ENVIRONMENT = 1 << 20
#: From here on Slurm's step ids mean the batch script, an allocation's shell and the like.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0


@dataclass(frozen=True)
class _Process:
    pid: int
    parent: int
    name: str
    rank: int


class RankFinder:
    """Keeps the file of ranks of one recorder.

    Parameters
    ----------
    environment
        The recorder's: processes of another Slurm job are none of its.
    """

    def __init__(
        self, settings: Settings, environment: Mapping[str, str], proc: Path = Path("/proc")
    ) -> None:
        self._path = ranks_file(settings.telemetry, settings.node, settings.name)
        self._node = settings.node
        self._job = environment.get("SLURM_JOB_ID", "")
        self._proc = proc
        self._due_ns = 0
        self._known: dict[int, tuple[RankPlace, ...]] = {}

    def due(self, now_ns: int) -> bool:
        """Whether it is time to look again."""
        if now_ns < self._due_ns:
            return False
        self._due_ns = now_ns + _EVERY_NS
        return True

    def look(self, holders: Sequence[tuple[int, str]]) -> None:
        """Look, and write the file where something is new.

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
        """Rank to its places on this node."""
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
    """The rank that a launcher gave, else Slurm's in a step with tasks."""
    given = environment.get(b"RANK", b"")
    step = environment.get(b"SLURM_STEP_ID", b"")
    if not given and step.isdigit() and int(step) < _FIRST_SPECIAL_STEP:
        given = environment.get(b"SLURM_PROCID", b"")
    return int(given) if given.isdigit() and len(given) < 10 else None
