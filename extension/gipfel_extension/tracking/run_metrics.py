"""Copies of the metrics that a training writes in a run's ``metrics.jsonl``, while its files grow."""

import json
import logging
import math
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from ..telemetry.sources import Clock
from ..telemetry.user_metrics import METRICS_FILE
from .find import FileSummary, Follower, Kind, log_kind
from .scalar import Scalar
from .text_formats import LogPattern


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


class FileFinder(Protocol):
    """Finder of metric files; without ``inside_run``, those in the run folder are left out."""

    @property
    def inside_run(self) -> bool:
        """Return whether metric files in the run folder are followed, too."""

    def find(self) -> list[OpenFile]:
        """Return the files, each once."""


_POLL_S = 2.0
#: Seconds between two searches of the directory, which are slow on a parallel file system.
_SEARCH_S = 10.0
#: Seconds between two searches of the processes' open files, which are quick.
_OPEN_FILES_S = 5.0
#: Maximum seconds to read what a training writes at its end: TensorBoard's writer buffers up to 120 s.
_END_S = 10.0
#: Maximum number of values in one line; some programs log thousands at a time.
_MAX_VALUES = 64
log = logging.getLogger("gipfel.recorder")


class MetricsDirectory:
    """Follower of the metric files below a directory, of one such file, or of those that processes write.

    Files are read in a separate thread, so that slow file systems and large files don't delay samples.

    Values in ``trainer_state.json`` and in Lightning's CSV have no time, and programs write them long after
    they occurred. The steps that are read together get times that are evenly spaced between the previous
    reading of the file and this one. If two files have a metric of the same name, the name in the second file
    is prefixed with the name of its directory.

    Parameters
    ----------
    path
        The directory or file, which may not exist yet; None for none.
    pattern
        Regular expression for lines with metrics, if the files are logs; empty for other formats.
    open_files
        Finder of further files, such as those that the job's processes have open.
    launch
        ``RUN/N`` of the launch whose ranks write the files; empty if unknown.
    run
        The run folder.
    since_ns
        Start of the run (UTC); older values are ignored.
    """

    def __init__(
        self,
        path: Path | None,
        run: Path,
        node: str,
        clock: Clock,
        *,
        since_ns: int,
        pattern: str = "",
        open_files: "FileFinder | None" = None,
        launch: str = "",
    ) -> None:
        self._path = path
        self._logs = log_kind(LogPattern(pattern)) if pattern else None
        self._open_files = open_files
        self._launch = {"launch": launch} if launch else {}
        self._target = run / METRICS_FILE
        #: Resolved, like the paths of open files, with which it is compared.
        self._run_folder = run.resolve()
        self._node = node
        self._clock = clock
        self._follower = Follower(since_ns=since_ns)
        self._since_ns = since_ns
        self._last_ns: dict[Path, int] = {}
        self._owners: dict[tuple[str, int | None], Path] = {}
        self._searched_s: float | None = None
        self._looked_s: float | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    def poll(self) -> None:
        """Start the thread at the first call; later calls do nothing."""
        if self._thread.ident is None:
            self._thread.start()

    def close(self) -> None:
        """Read what was written until now and end the thread; give up after 10 s."""
        self.poll()
        self._ended.set()
        self._thread.join(_END_S)

    def follow(self, *, last: bool = False) -> None:
        """Copy the values that were written since the last call.

        Raises
        ------
        OSError
            ``metrics.jsonl`` cannot be written.
        """
        self._search(last=last)
        for file, scalars in self._follower.poll(last=last):
            lines = self._lines(file, self._timed(file, scalars))
            append_lines(self._target, b"".join(lines))
            self._last_ns[file.path] = self._clock.time_ns()

    def _run(self) -> None:
        problem = ""
        while True:
            last = self._ended.wait(_POLL_S)
            try:
                self.follow(last=last)
                found = next((f"{f.path}: {f.problem}" for f in self._follower.files if f.problem), "")
            except Exception as error:  # noqa: BLE001 - the recording continues without these metrics
                found = f"{self._path or 'Metric files'} can't be followed: {error}"
            if found and found != problem:
                log.warning("%s", found)
            problem = found
            if last:
                return

    def _search(self, *, last: bool) -> None:
        now_s = self._clock.monotonic_ns() / 1e9
        if self._open_files is not None and (
            last or self._looked_s is None or now_s - self._looked_s >= _OPEN_FILES_S
        ):
            self._looked_s = now_s
            for each in self._open_files.find():
                if self._open_files.inside_run or not each.path.is_relative_to(self._run_folder):
                    self._follower.add(each.path, each.kind, each.rank)
        if self._path is None:
            return
        if not last and self._searched_s is not None and now_s - self._searched_s < _SEARCH_S:
            return
        self._searched_s = now_s
        # Resolved, so that a file that is also found as an open file is followed once.
        path = self._path.resolve()
        if path.is_dir():
            self._follower.search(path, exclude=self._run_folder, logs=self._logs)
        elif path.exists():
            self._follower.add(path, self._logs)

    def _timed(self, file: FileSummary, scalars: Sequence[Scalar]) -> Sequence[Scalar]:
        """Return the values; those without a time get one, see the class."""
        count = sum(each.time_ns is None for each in scalars)
        if not count:
            return scalars
        now_ns = self._clock.time_ns()
        start_ns = min(self._last_ns.get(file.path, self._since_ns), now_ns)
        timed, number, previous = [], 0, None
        steps = _untimed_steps(scalars)
        for each in scalars:
            if each.time_ns is None:
                number += number == 0 or each.step != previous
                previous = each.step
                timed.append(each._replace(time_ns=start_ns + (now_ns - start_ns) * number // steps))
            else:
                timed.append(each)
        return timed

    def _lines(self, file: FileSummary, scalars: Sequence[Scalar]) -> list[bytes]:
        """Return lines of ``metrics.jsonl``; consecutive values of equal step, time and rank share a line."""
        lines: list[bytes] = []
        values: dict[str, float | int | None] = {}
        moment: tuple[int | None, int | None, int | None] | None = None
        for each in scalars:
            at = each.step, each.time_ns, each.rank
            name = self._name(file, each)
            if values and (at != moment or name in values or len(values) >= _MAX_VALUES):
                lines.append(self._line(moment, values))
                values = {}
            moment = at
            values[name] = each.value if math.isfinite(each.value) else None
        if values:
            lines.append(self._line(moment, values))
        return lines

    def _line(self, moment: Any, values: dict[str, float | int | None]) -> bytes:
        step, time_ns, rank = moment
        passed = self._clock.time_ns() - time_ns
        content = {
            "time_ns": time_ns,
            "monotonic_ns": self._clock.monotonic_ns() - passed,
            "node": self._node,
            "rank": rank,
            **self._launch,
            "values": values if step is None else {"step": step, **values},
        }
        return json.dumps(content, separators=(",", ":")).encode() + b"\n"

    def _name(self, file: FileSummary, scalar: Scalar) -> str:
        owner = self._owners.setdefault((scalar.name, scalar.rank), file.source)
        return scalar.name if owner == file.source else f"{file.source.name}/{scalar.name}"


def _untimed_steps(scalars: Sequence[Scalar]) -> int:
    """Return the number of consecutive groups of equal steps among the values without a time; at least 1."""
    steps = [each.step for each in scalars if each.time_ns is None]
    return 1 + sum(a != b for a, b in pairwise(steps))


def append_lines(target: Path, lines: bytes) -> None:
    """Append whole lines to a run's ``metrics.jsonl``; create it with mode 0600 where it is missing.

    Raises
    ------
    OSError
        It cannot be written as a whole.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    handle = os.open(target, flags, 0o600)
    try:
        end = os.fstat(handle).st_size
        # Keep another writer's unfinished line separate.
        if end and os.pread(handle, 1, end - 1) != b"\n":
            lines = b"\n" + lines
        if os.write(handle, lines) < len(lines):
            raise OSError(28, os.strerror(28), str(target))
    finally:
        os.close(handle)
