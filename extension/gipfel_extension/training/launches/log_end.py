"""The last lines of what the ranks have said, read from the end of their logs."""

from pathlib import Path

from .log_tail import tail_cursor
from .logs import Cursor, LogLine, read_logs

_FIRST_BYTES = 1 << 16
_BYTES_A_LINE = 256


def last_lines(folder: Path, count: int, *, ranks: tuple[int, ...] = ()) -> tuple[list[LogLine], Cursor]:
    """Return the last lines of all ranks together, in the order of time, and from where to read on.

    Parameters
    ----------
    count
        How many lines, at most.
    ranks
        Of these only; of all where none is named.
    """
    most = max(_FIRST_BYTES, count * _BYTES_A_LINE)
    while True:
        start = tail_cursor(folder, ranks=ranks, most_bytes=most)
        lines, cursor = _from(folder, start, ranks)
        chosen = lines[-count:] if count else []
        if _complete(lines, chosen, start, count):
            return chosen, cursor
        most *= 4


def _from(folder: Path, cursor: Cursor, ranks: tuple[int, ...]) -> tuple[list[LogLine], Cursor]:
    lines: list[LogLine] = []
    while True:
        page = read_logs(folder, cursor, ranks=ranks)
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
    # What nobody has noted yet is the newest.
    first = {line.rank: line.time_ns for line in reversed(lines)}
    begins = [first.get(rank) for rank in cut]
    return oldest is None or all(each is not None and each <= oldest for each in begins)
