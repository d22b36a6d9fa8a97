"""Logs of a launch's ranks: ``rank-<r>.log``, the times of their lines, and the lines about errors.

Lines of programs have no times, so `LogTimes` regularly writes the size of each log to ``times.jsonl``.
"""

import json
import os
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from gipfel_cluster.workloads import logs
from gipfel_cluster.workloads.logs import MAX_BYTES, Cursor, LogFiles, LogLine, LogPage

from ...telemetry.files import open_log

__all__ = [
    "Cursor",
    "ErrorLines",
    "LogLine",
    "LogPage",
    "LogTimes",
    "last_lines",
    "launch_logs",
    "read_logs",
    "tail_cursor",
]

TIMES = "times.jsonl"
_EVERY_S = 1.0
_MAX_RANKS = 256
#: Rank, text, milliseconds since 1970 or None, and whether the line is about an error.
LogRow = tuple[int, str, int | None, bool]
_TRACEBACK = "Traceback (most recent call last)"
_ERROR = re.compile(
    r"\b[A-Za-z_.]*(?:Error|Exception|Interrupt)\b|\b(?:error|fatal|failed|failure|killed|segfault|abort(?:ed)?)\b"
    r"|Segmentation fault|out of memory|Signal \d+",
    re.IGNORECASE,
)


def launch_logs(folder: Path) -> LogFiles:
    """Return the logs of a launch's ranks."""
    found = {}
    for path in folder.glob("rank-*.log"):
        number = path.stem.removeprefix("rank-")
        if number.isdecimal():
            found[int(number)] = path
    return LogFiles(found, folder / TIMES)


def read_logs(
    folder: Path, since: Cursor | None = None, *, ranks: tuple[int, ...] = (), max_bytes: int = MAX_BYTES
) -> LogPage:
    """Read complete lines of a launch's ranks since a cursor; see `workloads.logs.read_logs`."""
    return logs.read_logs(launch_logs(folder), since, ranks=ranks, max_bytes=max_bytes)


def last_lines(folder: Path, count: int, *, ranks: tuple[int, ...] = ()) -> tuple[list[LogLine], Cursor]:
    """Return the last lines of a launch's ranks, ordered by time, and the cursor after them."""
    return logs.last_lines(launch_logs(folder), count, ranks=ranks)


def tail_cursor(folder: Path, *, ranks: tuple[int, ...] = (), max_bytes: int = MAX_BYTES) -> Cursor:
    """Return a cursor near the end of all logs, at the start of a line of each rank."""
    return logs.tail_cursor(launch_logs(folder), ranks=ranks, max_bytes=max_bytes)


class ErrorLines:
    """Detector of lines about errors, which include all lines of a traceback.

    Parameters
    ----------
    in_traceback
        Ranks whose next line belongs to a traceback.
    """

    def __init__(self, in_traceback: Iterable[int] = ()) -> None:
        self.in_traceback = set(in_traceback)

    def is_error(self, line: LogLine) -> bool:
        """Return whether a line is about an error; it must be the next line of its rank."""
        # Prefix that torch's launcher and papermill add to a line.
        text = re.sub(r"^\[[^\]]{0,60}\]:", "", line.text)
        if _TRACEBACK in text:
            self.in_traceback.add(line.rank)
            return True
        if line.rank in self.in_traceback:
            if text[:1] not in {" ", "\t", ""}:
                self.in_traceback.discard(line.rank)
            return True
        return bool(_ERROR.search(text))

    def mark(self, lines: Iterable[LogLine]) -> list[LogRow]:
        """Return the lines as `LogRow`."""
        return [
            (
                line.rank,
                line.text.encode(errors="replace").decode(),
                None if line.time_ns is None else line.time_ns // 1_000_000,
                self.is_error(line),
            )
            for line in lines
        ]


class LogTimes:
    """Recorder of the sizes of the ranks' logs, at most once per second."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sizes: dict[str, int] = {}
        self._recorded_at = 0.0

    def record_growth(self) -> None:
        """Write the sizes of logs that have grown."""
        now = time.monotonic()
        if now - self._recorded_at < _EVERY_S:
            return
        self._recorded_at = now
        grown = {}
        with suppress(OSError):
            for path in self._folder.glob("rank-*.log"):
                rank = path.stem.removeprefix("rank-")
                if rank.isdecimal() and int(rank) < _MAX_RANKS:
                    size = path.stat().st_size
                    if size != self._sizes.get(rank):
                        self._sizes[rank] = grown[rank] = size
            if grown:
                with os.fdopen(open_log(self._folder / TIMES), "a") as file:
                    file.write(json.dumps([time.time_ns(), grown], separators=(",", ":")) + "\n")
