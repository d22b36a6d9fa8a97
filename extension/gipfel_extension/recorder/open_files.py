"""Metric files that the processes of a job have open for writing, with the rank of the process.

They are found in ``/proc/PID/fd`` of this user's processes, so that no directory has to be guessed. Only
formats that hold nothing but metrics are followed this way (TensorBoard, W&B, MLflow's database). A file that
is opened again for each value is found only by chance. Files with other names are not touched, not even by
``stat``, which is slow on a parallel file system.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from ..telemetry.ranks import rank_of_environment, read_environment
from ..tracking.find import Kind, kind_of
from ..tracking.run_metrics import OpenFile
from .job_processes import JobProcesses

#: Formats whose files contain only metrics, and a pattern for the names of these files.
_KINDS = frozenset(("TensorBoard", "W&B", "MLflow database"))
_NAME = re.compile(r"\.tfevents\.[^/]*$|\.(?:wandb|db|sqlite|sqlite3)$")
_MOST_FILES = 1000
_ACCESS = os.O_WRONLY | os.O_RDWR


class OpenFiles:
    """Finder of metric files by the processes that write them.

    Parameters
    ----------
    root_pid
        Root of the job's process tree; None for the processes of the Slurm job of `environment`.
    """

    inside_run = False

    def __init__(
        self, root_pid: int | None, environment: Mapping[str, str], proc: Path = Path("/proc")
    ) -> None:
        self._processes = JobProcesses(root_pid, environment, proc)
        self._proc = proc
        #: Sizes of databases that are not MLflow's, or not yet: they are read again when their size changes.
        self._no_metrics: dict[Path, int] = {}

    def find(self) -> list[OpenFile]:
        """Return the metric files that are open now, each once, with the lowest rank that writes it."""
        found: dict[Path, OpenFile] = {}
        for pid in self._processes.find():
            with suppress(OSError, ValueError):
                written = list(self._written(pid))
                rank = rank_of_environment(read_environment(self._proc / str(pid))) if written else None
                for path, kind in written:
                    known = found.get(path)
                    if known is None or _order(rank) < _order(known.rank):
                        found[path] = OpenFile(path, kind, rank)
        return list(found.values())

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
