"""Metric files that the job's processes have open for writing, by rank: no directory is guessed.

``/proc/PID/fd`` names them, for processes of the same user; those of others are not looked at. Only formats
that hold nothing but metrics count (TensorBoard, W&B, MLflow's database); a file that is opened for each
value alone is seen only by chance. Files of other names are not touched, not even by ``stat``, which is slow
on a parallel file system.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..telemetry.ranks import rank_of_environment, read_environment
from ..tracking.find import Kind, kind_of

#: Formats that a process opens for metrics alone, and how names of their files look.
_KINDS = frozenset(("TensorBoard", "W&B", "MLflow database"))
_NAME = re.compile(r"\.tfevents\.[^/]*$|\.(?:wandb|db|sqlite|sqlite3)$")
_MOST_PROCESSES, _MOST_FILES = 2000, 1000
_ACCESS = os.O_WRONLY | os.O_RDWR


@dataclass(frozen=True)
class OpenFile:
    """A metric file that a process has open for writing.

    Parameters
    ----------
    rank
        Rank of the process; None for one that is not a rank.
    """

    path: Path
    kind: Kind
    rank: int | None


class OpenFiles:
    """Finder of metric files by the processes that write them.

    Parameters
    ----------
    root_pid
        Root of the job's process tree; None for the processes of the Slurm job of `environment`.
    """

    def __init__(
        self, root_pid: int | None, environment: Mapping[str, str], proc: Path = Path("/proc")
    ) -> None:
        self._root_pid = root_pid
        self._job = environment.get("SLURM_JOB_ID", "") if root_pid is None else ""
        self._proc = proc
        #: Sizes of databases that are not MLflow's, or not yet: looked at again when the size is another.
        self._no_metrics: dict[Path, int] = {}

    def find(self) -> list[OpenFile]:
        """Return the metric files that are open now, each once, with the lowest rank that writes it."""
        found: dict[Path, OpenFile] = {}
        for pid in self._processes():
            with suppress(OSError, ValueError):
                written = list(self._written(pid))
                rank = rank_of_environment(read_environment(self._proc / str(pid))) if written else None
                for path, kind in written:
                    known = found.get(path)
                    if known is None or _order(rank) < _order(known.rank):
                        found[path] = OpenFile(path, kind, rank)
        return list(found.values())

    def _processes(self) -> list[int]:
        """Return the processes of the job that belong to this user."""
        if self._root_pid is None and not self._job:
            return []
        parents: dict[int, int] = {}
        uid = os.getuid()
        for entry in os.scandir(self._proc):
            if entry.name.isdecimal():
                with suppress(OSError, ValueError, IndexError):
                    if entry.stat().st_uid == uid:
                        fields = (
                            (self._proc / entry.name / "stat").read_text(errors="replace").rpartition(")")
                        )
                        parents[int(entry.name)] = int(fields[2].split()[1])
        chosen = [pid for pid in sorted(parents) if pid != os.getpid() and self._is_of_job(pid, parents)]
        return chosen[:_MOST_PROCESSES]

    def _is_of_job(self, pid: int, parents: Mapping[int, int]) -> bool:
        if self._root_pid is None:
            with suppress(OSError):
                own = read_environment(self._proc / str(pid)).get(b"SLURM_JOB_ID", b"")
                return own.decode(errors="replace") == self._job
            return False
        for _ in range(len(parents)):
            if pid == self._root_pid:
                return True
            pid = parents.get(pid, 0)
            if not pid:
                return False
        return False

    def _written(self, pid: int) -> Iterator[tuple[Path, Kind]]:
        folder = self._proc / str(pid)
        entries = sorted((folder / "fd").iterdir(), key=lambda entry: int(entry.name))
        for entry in entries[:_MOST_FILES]:
            with suppress(OSError, ValueError):
                target = str(entry.readlink())
                if not target.startswith("/") or not _NAME.search(target):
                    continue
                if not _is_written(folder / "fdinfo" / entry.name):
                    continue
                about = entry.stat()
                path = self._reachable(folder, about, target)
                if path is None or self._no_metrics.get(path) == about.st_size:
                    continue
                kind = kind_of(path)
                if kind is not None and kind.name in _KINDS:
                    yield path, kind
                else:
                    self._no_metrics[path] = about.st_size

    def _reachable(self, folder: Path, about: os.stat_result, target: str) -> Path | None:
        """Return a path by which this process can open the file, which may be in a container."""
        for path in (Path(target), Path(f"{folder}/root{target}")):
            with suppress(OSError):
                own = path.lstat()
                if (own.st_dev, own.st_ino) == (about.st_dev, about.st_ino):
                    return path
        return None


def _is_written(information: Path) -> bool:
    for line in information.read_text().splitlines():
        if line.startswith("flags:"):
            return bool(int(line.split()[1], 8) & _ACCESS)
    return False


def _order(rank: int | None) -> float:
    return float("inf") if rank is None else rank
