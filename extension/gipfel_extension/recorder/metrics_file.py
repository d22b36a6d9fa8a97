"""A workload's own file of JSON lines as metrics of the run: followed, dated, into ``metrics.jsonl``."""

import errno
import json
import math
import os
import stat
from pathlib import Path
from typing import Any

from ..telemetry.sources import Clock
from ..telemetry.user_metrics import METRICS_FILE

_MOST_BYTES = 1 << 20
_MOST_VALUES = 64
#: Of what was read, so many bytes are looked for again; a line of metrics has its step or its time in them.
_REMEMBERED = 256
#: Names under which programs write the time of a line, and the factor to nanoseconds.
_TIMES = (("time_ns", 1.0), ("timestamp", 1e9), ("time", 1e9), ("_timestamp", 1e9))
_YEAR_2000 = 946_684_800.0


class MetricsFile:
    """Follower of a file of metrics that another program appends to.

    A line is a JSON object of names and numbers. Its ``time_ns``, ``timestamp`` or ``time`` (UTC,
    seconds since the epoch) dates it, else when it was found, at most an interval late; ``rank`` names the
    rank that logged it.

    Parameters
    ----------
    path
        It needn't be there yet.
    run
        The run folder.
    start
        How many bytes of it are of an earlier run; None for all that it holds now.
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
        """Take over what was appended since the last call.

        Raises
        ------
        OSError
            The file is there and can't be read, or ``metrics.jsonl`` can't be written.
        """
        try:
            # A pipe would keep us waiting for its writer.
            handle = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file", str(self._path))
            identity = (status.st_dev, status.st_ino)
            begun_anew = status.st_size < self._offset or not self._goes_on(handle)
            if self._identity not in (None, identity) or begun_anew:
                # Another file under this name, or one that was cut off, and may be longer again by now.
                self._offset, self._rest, self._last = 0, b"", b""
            self._identity = identity
            file.seek(self._offset)
            data = file.read(_MOST_BYTES)
        if not data:
            return
        whole, end, rest = (self._rest + data).rpartition(b"\n")
        lines = [noted for line in whole.split(b"\n") if (noted := self._noted(line))] if end else []
        if lines:
            self._append(b"".join(lines))
        self._offset += len(data)
        self._last = (self._last + data)[-_REMEMBERED:]
        # A line that has no end within so much is none.
        self._rest = rest if len(rest) < _MOST_BYTES else b""

    def _goes_on(self, handle: int) -> bool:
        """Return whether what was read last is still where it was."""
        return os.pread(handle, len(self._last), self._offset - len(self._last)) == self._last

    def _noted(self, line: bytes) -> bytes | None:
        try:
            content = json.loads(line)
        except (ValueError, RecursionError):
            return None
        if not isinstance(content, dict):
            return None
        inner = content.get("values")
        given = inner if isinstance(inner, dict) else content
        values = {
            str(name)[:100]: number for name, value in given.items() if (number := _number(value)) is not None
        }
        for name in (*(name for name, _ in _TIMES), "rank", "monotonic_ns"):
            if given is content:
                values.pop(name, None)
        if not values:
            return None
        rank = content.get("rank")
        found = {
            "time_ns": _time(content) or self._clock.time_ns(),
            "monotonic_ns": self._clock.monotonic_ns(),
            "node": self._node,
            "rank": rank if type(rank) is int and 0 <= rank < 2**31 else None,
            "values": dict(list(values.items())[:_MOST_VALUES]),
        }
        return json.dumps(found, separators=(",", ":")).encode() + b"\n"

    def _append(self, lines: bytes) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        handle = os.open(self._target, flags, 0o600)
        try:
            end = os.fstat(handle).st_size
            # Another writer's unfinished line stays a line of its own.
            if end and os.pread(handle, 1, end - 1) != b"\n":
                lines = b"\n" + lines
            if os.write(handle, lines) < len(lines):
                raise OSError(28, os.strerror(28), str(self._target))
        finally:
            os.close(handle)


def size_of(path: Path) -> int:
    """Return the bytes that a file holds now; 0 where there is none."""
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
