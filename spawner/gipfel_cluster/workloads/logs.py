"""Logs of a workload, merged: lines of several files, ordered by time where a file of times says when.

`read_logs` reads pages from a cursor; `last_lines` and `tail_cursor` read from the end. Programs write no
times into their lines: `LogFiles.times` notes how far each log had grown, a line ``[time_ns, {"RANK":
size}]`` each.
"""

import json
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pydantic import Field

from ..model import Frozen
from ..regular_files import open_regular, read_tail

MOST_BYTES = 1 << 20
_LONGEST = 8 << 10
#: A day of a launch of a hundred ranks that all write.
_MOST_TIMES_BYTES = 64 << 20
_FEWEST_BYTES = 8 << 10
_FIRST_BYTES = 1 << 16
_BYTES_A_LINE = 256


@dataclass(frozen=True)
class LogFiles:
    """The log of each rank or task by its number, and the file that says when they grew, if there is one."""

    files: Mapping[int, Path]
    times: Path | None = None


class LogLine(NamedTuple):
    """A line of one rank; ``time_ns`` is when it first appeared, None if that is not known."""

    rank: int
    text: str
    time_ns: int | None = None


class Cursor(Frozen):
    """How far each rank's log has been read, in bytes."""

    offsets: dict[int, int] = Field(default={})


class LogPage(NamedTuple):
    """Lines ordered by time, and from where to read on."""

    lines: tuple[LogLine, ...]
    cursor: Cursor
    more: bool = False


def read_logs(
    logs: LogFiles, since: Cursor | None = None, *, ranks: tuple[int, ...] = (), most_bytes: int = MOST_BYTES
) -> LogPage:
    """Read whole lines that were written since a cursor.

    Parameters
    ----------
    since
        From an earlier page; None for the beginning.
    ranks
        Of these only; of all if empty.
    most_bytes
        Of each rank: the rest comes with the next page, which ``more`` says.
    """
    offsets = dict(since.offsets) if since else {}
    times = _times(logs.times)
    lines: list[tuple[int, int, int, LogLine]] = []
    more = False
    for rank, path in sorted(logs.files.items()):
        if ranks and rank not in ranks:
            continue
        offset = start = offsets.get(rank, 0)
        content, left = _whole_lines(path, start, most_bytes)
        more = more or left
        for raw in _split(content):
            offset += len(raw)
            seen = _seen(times.get(rank, ([], [])), offset)
            text = _last_state(raw)[:_LONGEST].decode(errors="replace")
            lines.append((seen or 0, rank, offset, LogLine(rank=rank, text=text, time_ns=seen)))
        offsets[rank] = start + len(content)
    # Lines whose time is not noted yet are the newest.
    newest = max((each[0] for each in lines), default=0) + 1
    lines.sort(key=lambda each: (each[0] or newest, each[1], each[2]))
    return LogPage(lines=tuple(each[3] for each in lines), cursor=Cursor(offsets=offsets), more=more)


def last_lines(logs: LogFiles, count: int, *, ranks: tuple[int, ...] = ()) -> tuple[list[LogLine], Cursor]:
    """Return the last lines of all ranks together, ordered by time, and from where to read on.

    Parameters
    ----------
    count
        How many lines, at most.
    ranks
        Of these only; of all if empty.
    """
    most = max(_FIRST_BYTES, count * _BYTES_A_LINE)
    while True:
        start = tail_cursor(logs, ranks=ranks, most_bytes=most)
        lines, cursor = _read_on(logs, start, ranks)
        chosen = lines[-count:] if count else []
        if _complete(lines, chosen, start, count):
            return chosen, cursor
        most *= 4


def tail_cursor(logs: LogFiles, *, ranks: tuple[int, ...] = (), most_bytes: int = MOST_BYTES) -> Cursor:
    """Return a cursor before at most `most_bytes` of all ranks, each at the start of a line."""
    files = {rank: path for rank, path in logs.files.items() if not ranks or rank in ranks}
    each = max(_FEWEST_BYTES, most_bytes // max(1, len(files)))
    return Cursor(offsets={rank: _start(path, each) for rank, path in files.items()})


def _split(content: bytes) -> list[bytes]:
    """Split at line feeds, which stay: a carriage return begins the same line again."""
    lines = [each + b"\n" for each in content.split(b"\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def _last_state(raw: bytes) -> bytes:
    """Return what a terminal would finally show of a line: of a progress bar its last update."""
    return raw.rstrip(b"\r\n").rpartition(b"\r")[2]


def _whole_lines(path: Path, start: int, most: int) -> tuple[bytes, bool]:
    try:
        with open_regular(path) as file:
            size = file.seek(0, 2)
            file.seek(start if start <= size else 0)
            content = file.read(most)
    except OSError:
        return b"", False
    end = content.rfind(b"\n") + 1
    if not end and len(content) == most:
        end = most  # A line without an end is shown in pieces.
    return content[:end], start + end < size


def _times(path: Path | None) -> dict[int, tuple[list[int], list[int]]]:
    """Return for each rank the sizes that its log had and the times, both ascending."""
    found: dict[int, tuple[list[int], list[int]]] = {}
    try:
        content = read_tail(path, _MOST_TIMES_BYTES) if path else b""
    except OSError:
        return {}
    for line in content.split(b"\n"):
        try:
            time_ns, sizes = json.loads(line)
            for rank, size in sizes.items():
                known = found.setdefault(int(rank), ([], []))
                known[0].append(int(size))
                known[1].append(int(time_ns))
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            continue
    return found


def _seen(known: tuple[list[int], list[int]], offset: int) -> int | None:
    index = bisect_left(known[0], offset)
    return known[1][index] if index < len(known[1]) else None


def _start(path: Path, most: int) -> int:
    try:
        with open_regular(path) as file:
            size = file.seek(0, 2)
            if size <= most:
                return 0
            file.seek(size - most)
            beginning = file.read(most)
    except OSError:
        return 0
    end = beginning.find(b"\n")
    return size - most + (end + 1 if end >= 0 else 0)


def _read_on(logs: LogFiles, cursor: Cursor, ranks: tuple[int, ...]) -> tuple[list[LogLine], Cursor]:
    lines: list[LogLine] = []
    while True:
        page = read_logs(logs, cursor, ranks=ranks)
        lines += page.lines
        cursor = page.cursor
        if not page.more:
            return lines, cursor


def _complete(lines: list[LogLine], chosen: list[LogLine], start: Cursor, count: int) -> bool:
    """Return whether no line that was not read belongs among the chosen ones."""
    cut = {rank for rank, offset in start.offsets.items() if offset}
    if not cut or not count:
        return True
    if len(chosen) < count:
        return False
    oldest = chosen[0].time_ns
    # Lines whose time is not noted yet are the newest.
    first = {line.rank: line.time_ns for line in reversed(lines)}
    begins = [first.get(rank) for rank in cut]
    return oldest is None or all(each is not None and each <= oldest for each in begins)
