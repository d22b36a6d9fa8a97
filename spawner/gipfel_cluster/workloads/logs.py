"""Read the log files of a workload's ranks as one log, ordered by time.

`read_logs` reads pages, each from the cursor of the previous one; `last_lines` and `tail_cursor` read from
the end. Log lines have no times. Instead, the file `LogFiles.times` records how the logs grew, with lines
``[time_ns, {"RANK": bytes}]``. Without it, lines are ordered by rank.
"""

import json
from bisect import bisect_left
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pydantic import Field

from ..model import Frozen
from ..regular_files import modified_ns, open_regular, read_tail

#: Default for the bytes of a page, for each rank.
MAX_BYTES = 1 << 20
#: Longer lines are cut.
_MAX_LINE_BYTES = 8 << 10
#: Bytes of the file of times that are read: enough for a hundred ranks that all write for a day.
_MAX_TIMES_BYTES = 64 << 20
_MIN_TAIL_BYTES = 8 << 10
#: Where `last_lines` begins: at least so many bytes from the end, and so many for each line.
_FIRST_BYTES = 1 << 16
_BYTES_PER_LINE = 256


@dataclass(frozen=True)
class LogFiles:
    """The log file of each rank or task by its number, and the file that records when they grew, if any."""

    files: Mapping[int, Path]
    times: Path | None = None


class LogLine(NamedTuple):
    """A line of one rank; ``time_ns`` is the UTC time at which it was written, None if it is not known."""

    rank: int
    text: str
    time_ns: int | None = None


class Cursor(Frozen):
    """The position in each rank's log up to which it has been read, in bytes."""

    offsets: dict[int, int] = Field(default={})


class LogPage(NamedTuple):
    """Lines ordered by time, the cursor for the next page, and whether more lines are already written."""

    lines: tuple[LogLine, ...]
    cursor: Cursor
    more: bool = False


def read_logs(
    logs: LogFiles, since: Cursor | None = None, *, ranks: tuple[int, ...] = (), max_bytes: int = MAX_BYTES
) -> LogPage:
    """Read whole lines that were written since a cursor.

    Parameters
    ----------
    since
        Cursor of an earlier page; None for the beginning.
    ranks
        Ranks to read; empty for all.
    max_bytes
        Limit for each rank. If it is reached, the page's ``more`` is True.
    """
    offsets = dict(since.offsets) if since else {}
    times = _times(logs.times)
    lines: list[tuple[int, int, int, LogLine]] = []
    more = False
    for rank, path in sorted(logs.files.items()):
        if ranks and rank not in ranks:
            continue
        offset = start = offsets.get(rank, 0)
        content, has_more = _whole_lines(path, start, max_bytes)
        more = more or has_more
        growth = times.get(rank, ([], []))
        # Lines that came after the last recorded size are about as old as the log.
        changed_ns = modified_ns(path) if growth[1] else 0
        for raw in _split(content):
            offset += len(raw)
            written = _time_of(growth, offset) or changed_ns or None
            text = _final_text(raw)[:_MAX_LINE_BYTES].decode(errors="replace")
            lines.append((written or 0, rank, offset, LogLine(rank=rank, text=text, time_ns=written)))
        offsets[rank] = start + len(content)
    # Lines without a recorded time are the newest.
    newest = max((each[0] for each in lines), default=0) + 1
    lines.sort(key=lambda each: (each[0] or newest, each[1], each[2]))
    return LogPage(lines=tuple(each[3] for each in lines), cursor=Cursor(offsets=offsets), more=more)


def last_lines(logs: LogFiles, count: int, *, ranks: tuple[int, ...] = ()) -> tuple[list[LogLine], Cursor]:
    """Return the last lines of all ranks together, ordered by time, and the cursor for reading further lines.

    Parameters
    ----------
    count
        Maximum number of lines.
    ranks
        Ranks to read; empty for all.
    """
    size = max(_FIRST_BYTES, count * _BYTES_PER_LINE)
    while True:
        start = tail_cursor(logs, ranks=ranks, max_bytes=size)
        lines, cursor = _read_to_end(logs, start, ranks)
        last = lines[-count:] if count else []
        if _is_complete(lines, last, start, count):
            return last, cursor
        size *= 4


def tail_cursor(logs: LogFiles, *, ranks: tuple[int, ...] = (), max_bytes: int = MAX_BYTES) -> Cursor:
    """Return a cursor at the starts of lines from which `max_bytes` of all ranks together can be read.

    Each rank has an equal share of them, at least 8 KiB.
    """
    files = {rank: path for rank, path in logs.files.items() if not ranks or rank in ranks}
    size = max(_MIN_TAIL_BYTES, max_bytes // max(1, len(files)))
    return Cursor(offsets={rank: _tail_offset(path, size) for rank, path in files.items()})


def _split(content: bytes) -> list[bytes]:
    """Split at line feeds and keep them; carriage returns do not end a line."""
    lines = [each + b"\n" for each in content.split(b"\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def _final_text(raw: bytes) -> bytes:
    """Return a line as a terminal finally shows it: the last update of a progress bar."""
    return raw.rstrip(b"\r\n").rpartition(b"\r")[2]


def _whole_lines(path: Path, start: int, max_bytes: int) -> tuple[bytes, bool]:
    """Return whole lines from an offset on, and whether the file has more."""
    try:
        with open_regular(path) as file:
            size = file.seek(0, 2)
            file.seek(start if start <= size else 0)
            content = file.read(max_bytes)
    except OSError:
        return b"", False
    end = content.rfind(b"\n") + 1
    if not end and len(content) == max_bytes:
        end = max_bytes  # Return a very long line in pieces.
    return content[:end], start + end < size


def _times(path: Path | None) -> dict[int, tuple[list[int], list[int]]]:
    """Return for each rank the sizes of its log and the times at which it had them, both ascending."""
    times: dict[int, tuple[list[int], list[int]]] = {}
    try:
        content = read_tail(path, _MAX_TIMES_BYTES) if path else b""
    except OSError:
        return {}
    for line in content.split(b"\n"):
        with suppress(ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            time_ns, sizes = json.loads(line)
            for rank, size in sizes.items():
                growth = times.setdefault(int(rank), ([], []))
                growth[0].append(int(size))
                growth[1].append(int(time_ns))
    return times


def _time_of(growth: tuple[list[int], list[int]], offset: int) -> int | None:
    """Return when a log had grown to an offset; None if that is not recorded."""
    index = bisect_left(growth[0], offset)
    return growth[1][index] if index < len(growth[1]) else None


def _tail_offset(path: Path, max_bytes: int) -> int:
    try:
        with open_regular(path) as file:
            size = file.seek(0, 2)
            if size <= max_bytes:
                return 0
            file.seek(size - max_bytes)
            tail = file.read(max_bytes)
    except OSError:
        return 0
    end = tail.find(b"\n")
    return size - max_bytes + (end + 1 if end >= 0 else 0)


def _read_to_end(logs: LogFiles, cursor: Cursor, ranks: tuple[int, ...]) -> tuple[list[LogLine], Cursor]:
    lines: list[LogLine] = []
    while True:
        page = read_logs(logs, cursor, ranks=ranks)
        lines += page.lines
        cursor = page.cursor
        if not page.more:
            return lines, cursor


def _is_complete(lines: list[LogLine], last: list[LogLine], start: Cursor, count: int) -> bool:
    """Return whether the lines before `start`, which were not read, are older than the last `count` lines."""
    truncated = {rank for rank, offset in start.offsets.items() if offset}
    if not truncated or not count:
        return True
    if len(last) < count:
        return False
    oldest = last[0].time_ns
    # Lines without a recorded time are the newest.
    first = {line.rank: line.time_ns for line in reversed(lines)}
    first_times = [first.get(rank) for rank in truncated]
    return oldest is None or all(each is not None and each <= oldest for each in first_times)
