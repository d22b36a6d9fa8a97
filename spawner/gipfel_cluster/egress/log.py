"""Log of the destinations that programs behind a gate tried to reach: ``gate/<node>-<pid>.jsonl`` of the run.

A line has the totals of one destination up to that time, so only the last line of each destination counts.
``gate/closed.json`` ends the network of all gates of the run for good: each gate checks every two seconds
whether the file exists.

Recorders read these files too. They must not import other modules of Gipfel than `regular_files`.
"""

import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..regular_files import open_log, read_regular

DIRECTORY, CLOSED = "gate", "closed.json"
#: The field ``protocol`` of a line about a program that runs outside of the gates declared for it.
OUTSIDE = "outside"
#: Size of a gate's file, from which nothing more is written.
_MAX_BYTES = 8 << 20
_MAX_CLOSED_BYTES = 4096
#: Number of destinations that one gate counts separately; all further ones share one line.
_MOST = 5000
#: Nanoseconds between two writes of changed totals.
_WRITE_NS = 2 * 10**9
_OTHERS = "other destinations"


@dataclass
class Destination:
    """Totals of one destination.

    Parameters
    ----------
    name
        The host name that the program requested, or the address if it connected without a name; with the
        protocol `OUTSIDE`, the program itself, such as ``rank 3``.
    protocol
        ``tcp``, ``udp``, ``dns``, or `OUTSIDE`.
    reason
        Why it was refused; empty if it was allowed.
    address
        The address that was connected to; empty if that is unknown.
    count
        Number of attempts.
    sent, received
        Bytes that passed the gate, without the handshake with the proxy.
    first_ns, last_ns
        Times of the first and the last attempt, in nanoseconds since 1970.
    changed
        Whether the totals have changed since they were last written.
    """

    name: str
    port: int
    protocol: str
    allowed: bool
    reason: str = ""
    address: str = ""
    count: int = 0
    sent: int = 0
    received: int = 0
    first_ns: int = 0
    last_ns: int = 0
    changed: bool = field(default=True, repr=False)


class GateLog:
    """Writer of one gate's file; its methods may be called from several threads.

    Parameters
    ----------
    folder
        Directory of the file, created if it is missing; None to write no file.
    """

    def __init__(
        self, folder: Path | None, node: str, clock_ns: Callable[[], int] = time.time_ns, pid: int = 0
    ) -> None:
        self._path = None if folder is None else folder / f"{node}-{pid or os.getpid()}.jsonl"
        self._node, self._clock_ns = node, clock_ns
        self._lock = threading.Lock()
        self._found: dict[tuple[str, int, str, bool], Destination] = {}
        self._written_ns = 0

    def open(self) -> None:
        """Create the file, so that readers know of the gate before a program tries to reach a destination."""
        if self._path is not None:
            with suppress(OSError):
                self._path.parent.mkdir(mode=0o700, exist_ok=True)
                os.close(open_log(self._path))

    def note(
        self, name: str, port: int, protocol: str, *, allowed: bool, reason: str = "", address: str = ""
    ) -> Destination:
        """Count an attempt and return its destination's totals; the first attempt is written immediately."""
        # The log is read in terminals, which would interpret control characters.
        name = "".join(each if each.isprintable() else "?" for each in " ".join(name.split())[:253])
        with self._lock:
            key = (name, port, protocol, allowed)
            if key not in self._found and len(self._found) >= _MOST:
                key = (_OTHERS, 0, protocol, allowed)
            now_ns = self._clock_ns()
            is_new = key not in self._found
            if is_new:
                self._found[key] = Destination(*key, reason=reason, address=address, first_ns=now_ns)
            found = self._found[key]
            found.count += 1
            found.last_ns = now_ns
            found.changed = True
            if is_new:
                self._write()
        return found

    def add_bytes(self, destination: Destination, *, sent: int = 0, received: int = 0) -> None:
        """Add to the bytes that passed the gate."""
        with self._lock:
            destination.sent += sent
            destination.received += received
            destination.changed = True

    def flush(self, *, at_once: bool = False) -> None:
        """Write the totals that changed, at most every two seconds unless ``at_once``."""
        with self._lock:
            if at_once or self._clock_ns() - self._written_ns >= _WRITE_NS:
                self._write()

    def _write(self) -> None:
        self._written_ns = self._clock_ns()
        changed = [each for each in self._found.values() if each.changed]
        if self._path is None or not changed:
            return
        lines = "".join(json.dumps(self._line(each)) + "\n" for each in changed)
        # A full disk must not end the network of the job.
        with suppress(OSError):
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            with os.fdopen(open_log(self._path), "ab") as file:
                if os.fstat(file.fileno()).st_size + len(lines) <= _MAX_BYTES:
                    file.write(lines.encode())
        for each in changed:
            each.changed = False

    def _line(self, each: Destination) -> dict[str, Any]:
        content = asdict(each)
        del content["changed"]
        return {"node": self._node, **content}


def read_closed(folder: Path) -> str:
    """Return a sentence on who ended the network of a run's gates and why; empty if nobody has."""
    path = folder / CLOSED
    try:
        path.lstat()
    except OSError:
        return ""
    try:
        content = json.loads(read_regular(path, _MAX_CLOSED_BYTES))
        by, reason = str(content["by"]), str(content["reason"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        # A file that exists but can't be read also ends the network.
        return "the network of this job was ended"
    text = f"{by} ended the network of this job" + (f": {reason}" if reason else "")
    return " ".join(text.split())[:450]
