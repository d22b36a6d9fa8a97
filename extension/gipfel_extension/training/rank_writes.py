"""Writes of a rank's program, as the process that started it sees them, and copies that outlive it.

A program that hangs writes nothing; a program that saves a checkpoint does, whatever the names of its
functions, and even while it holds Python's lock (GIL). `WriteWatch` touches files that the hang alarm reads.

The copy in the launch's directory runs with the image's Python, 3.9 or newer, and only the standard library.
"""

from __future__ import annotations

import os
import sys
import time

#: More bytes than this between two observations are a checkpoint rather than a log.
_MOST_LOG_BYTES = 1 << 20
_LOOK_S = 5.0
#: Number of ranks up to which each touches its file at that interval; with more, each does so less often.
_FULL_RATE_RANKS = 64
_DRAIN_S = 60.0
_DRAIN_LOOK_S = 0.2


class WriteWatch:
    """Watch how much one rank's program writes.

    Parameters
    ----------
    folder
        The launch's directory, in which ``writing/<rank>`` is touched after each megabyte.
    world
        Number of ranks; if there are more than 64, each is observed less often.
    hang_after_s
        Seconds after which the alarm reports a hang; there are at least ten observations in that time.
    """

    def __init__(self, folder: str, rank: int, world: int, hang_after_s: float = 300.0) -> None:
        self._path = os.path.join(folder, "writing", str(rank))  # noqa: PTH118
        self._look_s = min(_LOOK_S, hang_after_s / 10 or _LOOK_S) * max(1.0, world / _FULL_RATE_RANKS)
        self._next_s = 0.0
        self._before: tuple[int, int] | None = None

    def look(self, pid: int) -> None:
        """Touch the file if the process has written more than a log since the last call; never raise."""
        now = time.monotonic()
        if now < self._next_s:
            return
        self._next_s = now + self._look_s
        written = _written(pid)
        before, self._before = self._before, written
        if before is None or written is None:
            return
        if max(new - old for new, old in zip(written, before)) < _MOST_LOG_BYTES:
            return
        try:
            os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)  # noqa: PTH103, PTH120
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            file = os.open(self._path, flags, 0o600)
            try:
                os.utime(file)
            finally:
                os.close(file)
        except OSError as error:
            sys.stderr.write(f"gipfel: {self._path} can't be touched: {error.strerror}\n")


def _written(pid: int) -> tuple[int, int] | None:
    """Return the bytes that a process passed to write(2), and those it caused to be stored; None if ended.

    The second number includes writes through mapped files. See proc_pid_io(5).
    """
    try:
        with open(f"/proc/{pid}/io", encoding="ascii") as file:  # noqa: PTH123
            values = dict(line.split(": ") for line in file.read(1024).splitlines())
        return int(values["wchar"]), int(values["write_bytes"])
    except (OSError, ValueError, KeyError):
        return None


def wait_for_drains(folder: str) -> None:
    """Wait up to a minute for processes of this node that still copy a checkpoint.

    When this process ends, a scheduler may end them, too. `gipfel_widgets.checkpoint_drain` writes a file for
    each.
    """
    deadline = time.monotonic() + _DRAIN_S
    prefix = os.uname().nodename + "-"
    try:
        names = os.listdir(os.path.join(folder, "drains"))  # noqa: PTH118, PTH208
    except OSError:
        return
    for name in names:
        while (
            name.startswith(prefix)
            and _copies_checkpoint(name[len(prefix) :])
            and time.monotonic() < deadline
        ):
            time.sleep(_DRAIN_LOOK_S)


def _copies_checkpoint(process: str) -> bool:
    """Return whether the process with this ID is running, and is one that copies checkpoints."""
    try:
        with open(f"/proc/{int(process)}/cmdline", "rb") as file:  # noqa: PTH123
            return b"gipfel_widgets.checkpoint_drain" in file.read(4096)
    except (OSError, ValueError):
        return False
