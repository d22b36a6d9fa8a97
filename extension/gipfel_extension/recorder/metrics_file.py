"""Follower of a workload's own JSON lines file: its lines become user metrics in ``metrics.jsonl``."""

import errno
import json
import math
import os
import stat
from pathlib import Path
from typing import Any

from ..telemetry.sources import Clock
from ..telemetry.user_metrics import METRICS_FILE
from ..tracking.run_metrics import append_lines

_MAX_BYTES = 1 << 20
_MAX_VALUES = 64
#: Number of bytes before the read position that are compared at each poll, to notice a rewritten file.
_REMEMBERED = 256
#: Keys under which programs write the time of a line, and the factor to nanoseconds.
_TIMES = (("time_ns", 1.0), ("timestamp", 1e9), ("time", 1e9), ("_timestamp", 1e9))
#: Earliest plausible time of a line, in seconds since the epoch.
_YEAR_2000 = 946_684_800.0


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
        inner = content.get("values")
        numbers = inner if isinstance(inner, dict) else content
        values = {
            str(name)[:100]: number
            for name, value in numbers.items()
            if (number := _number(value)) is not None
        }
        for name in (*(name for name, _ in _TIMES), "rank", "monotonic_ns"):
            if numbers is content:
                values.pop(name, None)
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
