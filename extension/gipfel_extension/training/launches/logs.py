"""What the ranks say, merged: each line with its rank and about when it was written."""

import json
from bisect import bisect_left
from pathlib import Path
from typing import NamedTuple

from pydantic import Field

from gipfel_cluster.model import Frozen

from ...telemetry.files import open_regular, read_tail
from .log_times import TIMES

_MOST_BYTES = 1 << 20
_LONGEST = 8 << 10
#: A day of a launch of a hundred ranks that all write.
_MOST_TIMES_BYTES = 64 << 20


class LogLine(NamedTuple):
    """A line of one rank; ``time_ns`` is when it was first seen there, None where nobody noted it."""

    rank: int
    text: str
    time_ns: int | None = None


class Cursor(Frozen):
    """How far each rank's log has been read, in bytes."""

    offsets: dict[int, int] = Field(default={})


class LogPage(NamedTuple):
    """Lines in the order of time, and from where to read on."""

    lines: tuple[LogLine, ...]
    cursor: Cursor
    more: bool = False


def read_logs(
    folder: Path, since: Cursor | None = None, *, ranks: tuple[int, ...] = (), most_bytes: int = _MOST_BYTES
) -> LogPage:
    """Read whole lines that were written since a cursor.

    Parameters
    ----------
    since
        From a page before; None for the beginning.
    ranks
        Of these only; of all where none is named.
    most_bytes
        Of each rank: what is left comes with the next page, which ``more`` says.
    """
    offsets = dict(since.offsets) if since else {}
    times = _times(folder)
    lines: list[tuple[int, int, int, LogLine]] = []
    more = False
    for rank, path in sorted(_files(folder).items()):
        if ranks and rank not in ranks:
            continue
        start = offsets.get(rank, 0)
        content, left = _whole_lines(path, start, most_bytes)
        more = more or left
        offset = start
        for raw in _split(content):
            offset += len(raw)
            seen = _seen(times.get(rank, ([], [])), offset)
            text = _last_state(raw)[:_LONGEST].decode(errors="replace")
            lines.append((seen or 0, rank, offset, LogLine(rank=rank, text=text, time_ns=seen)))
        offsets[rank] = start + len(content)
    # What nobody has noted yet is the newest.
    newest = max((each[0] for each in lines), default=0) + 1
    lines.sort(key=lambda each: (each[0] or newest, each[1], each[2]))
    return LogPage(lines=tuple(each[3] for each in lines), cursor=Cursor(offsets=offsets), more=more)


def _split(content: bytes) -> list[bytes]:
    """Split at line feeds, which stay: a carriage return begins the same line again."""
    lines = [each + b"\n" for each in content.split(b"\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def _last_state(raw: bytes) -> bytes:
    """Return what a terminal would show of a line at last: of a progress bar its last update."""
    return raw.rstrip(b"\r\n").rpartition(b"\r")[2]


def _files(folder: Path) -> dict[int, Path]:
    found = {}
    for path in folder.glob("rank-*.log"):
        number = path.stem.removeprefix("rank-")
        if number.isdecimal():
            found[int(number)] = path
    return found


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


def _times(folder: Path) -> dict[int, tuple[list[int], list[int]]]:
    """For each rank, sizes that its log had and when, both ascending."""
    found: dict[int, tuple[list[int], list[int]]] = {}
    try:
        content = read_tail(folder / TIMES, _MOST_TIMES_BYTES)
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
