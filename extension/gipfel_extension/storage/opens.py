"""Number of files that are opened in directories, counted by the kernel's inotify.

No file of procfs counts opens. inotify does, for any file system and without privileges, but for directories
that are named, and for all processes of the node. So the result is a lower bound for the job's directories.
"""

import ctypes
import errno
import os
import select
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

_IN_OPEN, _IN_Q_OVERFLOW = 0x20, 0x4000
_IN_ONLYDIR, _IN_EXCL_UNLINK, _IN_ISDIR = 0x01000000, 0x04000000, 0x40000000
_HEAD = struct.Struct("iIII")
_MOST_DIRECTORIES, _MOST_SIBLINGS = 1024, 1024
_READ_BYTES = 1 << 18
_PAUSE_S = 0.02


class OpenCounter:
    """Counter of opened files; use it as ``watch(directories)``, then ``count(seconds)`` now and then.

    Between two counts the kernel drops events beyond its queue, at no cost to the job.

    Raises
    ------
    OSError
        The kernel allows no more instances of inotify.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._handle = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._handle < 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        self._watched: set[str] = set()
        self._names: dict[int, str] = {}
        self._listed: set[str] = set()
        #: Why some directories are not counted; empty where all are.
        self.why = ""

    @property
    def directories(self) -> int:
        """Number of the directories that are watched."""
        return len(self._watched)

    def watch(self, directories: Mapping[str, str]) -> None:
        """Watch directories and those beside them, up to 1 024: a data set often has one for each class.

        Parameters
        ----------
        directories
            By the path in the job, the path by which this process reaches it.
        """
        for name, path in directories.items():
            self._add(name, path)
            above, path_above = name.rpartition("/")[0], path.rpartition("/")[0]
            if name not in self._watched or above in self._listed or self.directories >= _MOST_DIRECTORIES:
                continue
            self._listed.add(above)
            with suppress(OSError):
                for number, entry in enumerate(os.scandir(path_above)):
                    if number >= _MOST_SIBLINGS:
                        break
                    if entry.is_dir(follow_symlinks=False):
                        self._add(f"{above}/{entry.name}", entry.path)

    def count(self, seconds: float, clock: Callable[[], float]) -> tuple[dict[str, int], float]:
        """Return the number of opened files by directory, and the seconds in which they were counted.

        Where the kernel's queue overflows, counting ends early.
        """
        self._drain()
        started = clock()
        found: dict[str, int] = {}
        while (left := started + seconds - clock()) > 0:
            if not select.select([self._handle], [], [], left)[0]:
                break
            if self._drain(found):
                break
            # Many events at once cost less than each alone; the queue has room for 16 384.
            time.sleep(_PAUSE_S)
        return found, max(clock() - started, 1e-6)

    def close(self) -> None:
        """Release the instance of inotify."""
        os.close(self._handle)

    def _add(self, name: str, path: str) -> None:
        if name in self._watched or self.directories >= _MOST_DIRECTORIES:
            return
        mask = _IN_OPEN | _IN_ONLYDIR | _IN_EXCL_UNLINK
        number = self._libc.inotify_add_watch(self._handle, os.fsencode(path), mask)
        if number >= 0:
            self._watched.add(name)
            # Two paths of one directory share a number: the first one counts.
            self._names.setdefault(number, name)
        elif (error := ctypes.get_errno()) not in (errno.ENOENT, errno.ENOTDIR):
            self.why = f"Opened files in {name} can't be counted: {os.strerror(error)}."

    def _drain(self, found: dict[str, int] | None = None) -> bool:
        """Read the events that wait, and add the opened files; return whether the queue had overflowed."""
        overflowed = False
        while True:
            try:
                data = os.read(self._handle, _READ_BYTES)
            except BlockingIOError:
                return overflowed
            offset = 0
            while offset < len(data):
                number, mask, _, length = _HEAD.unpack_from(data, offset)
                offset += _HEAD.size + length
                overflowed |= bool(mask & _IN_Q_OVERFLOW)
                if found is not None and mask & _IN_OPEN and not mask & _IN_ISDIR and length:
                    name = self._names.get(number, "")
                    found[name] = found.get(name, 0) + 1
