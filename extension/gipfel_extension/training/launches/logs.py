"""Logs of a launch's ranks: ``rank-<r>.log``, the times at which they grew, and the lines about errors.

Programs write no times into their lines, so `LogTimes` notes in ``times.jsonl`` how far each log has grown.
"""

import json
import os
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from gipfel_cluster.workloads import logs
from gipfel_cluster.workloads.logs import MOST_BYTES, Cursor, LogFiles, LogLine, LogPage

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
_MOST_RANKS = 256
#: Rank, text, milliseconds since 1970 or None, whether it is about an error.
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
    folder: Path, since: Cursor | None = None, *, ranks: tuple[int, ...] = (), most_bytes: int = MOST_BYTES
) -> LogPage:
    """Read whole lines of a launch's ranks since a cursor; see `gipfel_cluster.workloads.logs.read_logs`."""
    return logs.read_logs(launch_logs(folder), since, ranks=ranks, most_bytes=most_bytes)


def last_lines(folder: Path, count: int, *, ranks: tuple[int, ...] = ()) -> tuple[list[LogLine], Cursor]:
    """Return the last lines of a launch's ranks, ordered by time, and from where to read on."""
    return logs.last_lines(launch_logs(folder), count, ranks=ranks)


def tail_cursor(folder: Path, *, ranks: tuple[int, ...] = (), most_bytes: int = MOST_BYTES) -> Cursor:
    """Return a cursor before at most `most_bytes` of all ranks, each at the start of a line."""
    return logs.tail_cursor(launch_logs(folder), ranks=ranks, most_bytes=most_bytes)


class ErrorLines:
    """Lines about errors; of a traceback all are.

    Parameters
    ----------
    inside
        Ranks whose next line is in the middle of a traceback.
    """

    def __init__(self, inside: Iterable[int] = ()) -> None:
        self.inside = set(inside)

    def is_error(self, line: LogLine) -> bool:
        """Return whether a line, the next of its rank, is about an error."""
        # torch's launcher and papermill put this before a line.
        text = re.sub(r"^\[[^\]]{0,60}\]:", "", line.text)
        if _TRACEBACK in text:
            self.inside.add(line.rank)
            return True
        if line.rank in self.inside:
            if text[:1] not in {" ", "\t", ""}:
                self.inside.discard(line.rank)
            return True
        return bool(_ERROR.search(text))

    def marked(self, lines: Iterable[LogLine]) -> list[LogRow]:
        """Return each line's rank, text, milliseconds since 1970 or None, and if it is about an error."""
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
    """Notes, at most once a second, how far each rank's log has grown."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sizes: dict[str, int] = {}
        self._looked = 0.0

    def look(self) -> None:
        """Note what has grown."""
        now = time.monotonic()
        if now - self._looked < _EVERY_S:
            return
        self._looked = now
        grown = {}
        with suppress(OSError):
            for path in self._folder.glob("rank-*.log"):
                rank = path.stem.removeprefix("rank-")
                if rank.isdecimal() and int(rank) < _MOST_RANKS:
                    size = path.stat().st_size
                    if size != self._sizes.get(rank):
                        self._sizes[rank] = grown[rank] = size
            if grown:
                with os.fdopen(open_log(self._folder / TIMES), "a") as file:
                    file.write(json.dumps([time.time_ns(), grown], separators=(",", ":")) + "\n")
