"""Cache of what the job page reads from a run folder, so that a polled page reads only what has changed."""

import os
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Generic, TypeVar

from ..communication import DUMPS, INSPECTOR
from ..diagnosis.reported_roles import REPORTS_FILE
from ..job.run_roles import ROLES_FILE
from ..telemetry.user_metrics import METRICS_FILE
from ..topology import FOLDER as TOPOLOGY
from ..training.record import LAUNCHES

_Value = TypeVar("_Value")
#: State of a file or directory on disk; None if there is none.
Stamp = tuple[int, int, int] | None
_MOST_LAUNCHES = 200
_MOST_FILES = 4096


@dataclass
class _Slot(Generic[_Value]):
    lock: threading.Lock = field(default_factory=threading.Lock)
    stamp: Hashable = None
    value: _Value | None = None
    again: float = 0.0


class StampedCache(Generic[_Value]):
    """Bounded cache of values by key, each valid while its stamp is the same; thread-safe.

    Parameters
    ----------
    most
        Number of values that are kept; the least recently used one is dropped first.
    least_age_s, time_factor
        A value is computed again at the earliest after `least_age_s` seconds, and after `time_factor` times
        as long as computing it took.
    clock
        Returns seconds; monotonic.
    """

    def __init__(
        self,
        most: int,
        *,
        least_age_s: float = 0.0,
        time_factor: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most, self._least_age_s, self._time_factor, self._clock = most, least_age_s, time_factor, clock
        self._slots: dict[Hashable, _Slot[_Value]] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable, stamp: Hashable, make: Callable[[], _Value]) -> _Value:
        """Return the value of a key, computed again if its stamp has changed; concurrent callers wait for it.

        Parameters
        ----------
        stamp
            State of the files that the value is computed from, taken before this call.
        """
        slot = self._slot(key)
        with slot.lock:
            started = self._clock()
            if slot.value is None or (slot.stamp != stamp and started >= slot.again):
                slot.value, slot.stamp = make(), stamp
                ended = self._clock()
                slot.again = ended + max(self._least_age_s, self._time_factor * (ended - started))
            return slot.value

    def _slot(self, key: Hashable) -> _Slot[_Value]:
        with self._lock:
            found = self._slots.pop(key, None)
            if found is None:
                while len(self._slots) >= self._most:
                    del self._slots[next(iter(self._slots))]
                found = _Slot()
            # The end of the dictionary is the most recently used value.
            self._slots[key] = found
            return found


def stamp_of(path: Path) -> Stamp:
    """Return the state of a file or directory: inode, time of the last change in nanoseconds, size."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def ranks_stamp(run: Path) -> Hashable:
    """Return the state of all files from which ranks, roles, launches and failures of a run are read."""
    launches = run / LAUNCHES
    folders = sorted((name for name in _names(launches) if name.isdecimal()), key=int)[-_MOST_LAUNCHES:]
    files = (REPORTS_FILE, ROLES_FILE)
    return (
        *(stamp_of(run / name) for name in files),
        stamp_of(run / TOPOLOGY),
        # Files in these directories are replaced by new ones, which changes the directory's time.
        *((name, stamp_of(launches / name), stamp_of(launches / name / "ranks")) for name in folders),
        *_telemetry(run, ".ranks.json"),
    )


def samples_stamp(run: Path) -> Hashable:
    """Return the state of all samples and events of a run."""
    return _telemetry(run, "")


def metrics_stamp(run: Path) -> Hashable:
    """Return the state of the metrics that processes of a run logged."""
    return stamp_of(run / METRICS_FILE)


def communication_stamp(folder: Path) -> Hashable:
    """Return the state of the NCCL files and dumps of a launch, or in another directory."""
    inside = [name for name in _names(folder) if name == DUMPS or fnmatch(name, INSPECTOR)]
    # NCCL Inspector's files grow, which does not change their directory's time.
    files = [(each, name) for each in inside[:_MOST_LAUNCHES] for name in _names(folder / each)[:_MOST_FILES]]
    return (
        stamp_of(folder),
        *((each, stamp_of(folder / each)) for each in inside),
        *((name, stamp_of(folder / each / name)) for each, name in files),
    )


def _telemetry(run: Path, suffix: str) -> tuple[Hashable, ...]:
    folder = run / "telemetry"
    return tuple((name, stamp_of(folder / name)) for name in sorted(_names(folder)) if name.endswith(suffix))


def _names(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in os.scandir(folder)]
    except OSError:
        return []
