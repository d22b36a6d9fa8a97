"""Metric files of a job: the one that its user names, and those that its processes have open for writing.

`MetricsFile` follows a workload's own JSON lines file: its lines become user metrics in ``metrics.jsonl``.

`OpenFiles` finds files with the rank of the process, in ``/proc/PID/fd`` of this user's processes, so that no
directory has to be guessed. Only formats that hold nothing but metrics are followed this way (TensorBoard,
W&B, MLflow's database). A file that is opened again for each value is found only by chance. Files with other
names are not touched, not even by ``stat``, which is slow on a parallel file system.
"""

import errno
import json
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..telemetry.ranks import rank_of_environment, read_environment
from ..telemetry.sources import Clock
from ..telemetry.user_metrics import METRICS_FILE
from ..tracking.find import Kind, kind_of
from ..tracking.run_metrics import OpenFile, append_lines
from .job_processes import JobProcesses

_MAX_BYTES = 1 << 20
_MAX_VALUES = 64
#: Number of bytes before the read position that are compared at each poll, to notice a rewritten file.
_REMEMBERED = 256
#: Keys under which programs write the time of a line, and the factor to nanoseconds.
_TIMES = (("time_ns", 1.0), ("timestamp", 1e9), ("time", 1e9), ("_timestamp", 1e9))
#: Earliest plausible time of a line, in seconds since the epoch.
_YEAR_2000 = 946_684_800.0
#: Keys of a line that are not values.
_NO_VALUES = frozenset((*(name for name, _ in _TIMES), "rank", "monotonic_ns"))
#: Formats whose files contain only metrics, and a pattern for the names of these files.
_KINDS = frozenset(("TensorBoard", "W&B", "MLflow database"))
_NAME = re.compile(r"\.tfevents\.[^/]*$|\.(?:wandb|db|sqlite|sqlite3)$")
_MOST_FILES = 1000
_ACCESS = os.O_WRONLY | os.O_RDWR


class MetricsFile:
    """Follower of a metrics file that another program appends to.

    A line is a JSON object of names and numbers. Its time is ``time_ns``, ``timestamp`` or ``time`` (UTC,
    seconds since the epoch), else the time of the poll, at most an interval late. ``rank`` is the rank that
    logged it.

    Parameters
    ----------
    path
        The file, which may not exist yet.
    run
        The run folder.
    start
        Number of bytes at the beginning that belong to an earlier run; None for the file's current size.
    """

    def __init__(self, path: Path, run: Path, node: str, clock: Clock, *, start: int | None = None) -> None:
        self._path = path
        self._target = run / METRICS_FILE
        self._node = node
        self._clock = clock
        self._rest = b""
        self._last = b""
        self._identity: tuple[int, int] | None = None
        self._offset = size_of(path) if start is None else start

    def poll(self) -> None:
        """Copy the lines that were appended since the last call.

        Raises
        ------
        OSError
            The file exists and cannot be read, or ``metrics.jsonl`` cannot be written.
        """
        try:
            # Opening a pipe would wait for its writer.
            handle = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file", str(self._path))
            identity = (status.st_dev, status.st_ino)
            rewritten = status.st_size < self._offset or not self._is_continued(handle)
            if self._identity not in (None, identity) or rewritten:
                # Another file has this name, or the file was truncated and may be longer again: start over.
                self._offset, self._rest, self._last = 0, b"", b""
            self._identity = identity
            file.seek(self._offset)
            data = file.read(_MAX_BYTES)
        if not data:
            return
        whole, end, rest = (self._rest + data).rpartition(b"\n")
        lines = [line for text in whole.split(b"\n") if (line := self._converted(text))] if end else []
        if lines:
            append_lines(self._target, b"".join(lines))
        self._offset += len(data)
        self._last = (self._last + data)[-_REMEMBERED:]
        # A longer line does not hold metrics.
        self._rest = rest if len(rest) < _MAX_BYTES else b""

    def close(self) -> None:
        """Copy the lines that were appended up to now."""
        self.poll()

    def _is_continued(self, handle: int) -> bool:
        """Return whether the last bytes that were read are unchanged."""
        return os.pread(handle, len(self._last), self._offset - len(self._last)) == self._last

    def _converted(self, line: bytes) -> bytes | None:
        try:
            content = json.loads(line)
        except (ValueError, RecursionError):
            return None
        if not isinstance(content, dict):
            return None
        numbers = content.get("values")
        if not isinstance(numbers, dict):
            numbers = {name: value for name, value in content.items() if name not in _NO_VALUES}
        values = {
            str(name)[:100]: number
            for name, value in numbers.items()
            if (number := _number(value)) is not None
        }
        if not values:
            return None
        rank = content.get("rank")
        found = {
            "time_ns": _time(content) or self._clock.time_ns(),
            "monotonic_ns": self._clock.monotonic_ns(),
            "node": self._node,
            "rank": rank if type(rank) is int and 0 <= rank < 2**31 else None,
            "values": dict(list(values.items())[:_MAX_VALUES]),
        }
        return json.dumps(found, separators=(",", ":")).encode() + b"\n"


def size_of(path: Path) -> int:
    """Return the size of a file in bytes; 0 where it does not exist."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _number(value: Any) -> float | int | bool | None:
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**63 else None
    return value if isinstance(value, float) and math.isfinite(value) else None


def _time(content: dict[str, Any]) -> int | None:
    for name, factor in _TIMES:
        value = content.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            time_ns = int(value) if factor == 1.0 else int(value * factor)
            if _YEAR_2000 * 1e9 <= time_ns < 2**63:
                return time_ns
    return None


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
