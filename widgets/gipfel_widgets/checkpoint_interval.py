"""The time between checkpoints, from their measured cost and the failures in a directory's history."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from gipfel_extension.saturation.advice.checkpoint import daly
from gipfel_extension.telemetry.files import read_json

_MAX_HISTORY_BYTES = 1 << 16
#: Shortest interval, as a multiple of the seconds that writing takes.
_MIN_WRITES = 2.0


class History:
    """Starts, intended ends and seconds of training in a directory of checkpoints; rank 0 writes it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._began = time.monotonic()
        self.starts = self.ends = 0
        self._before = 0.0

    def start(self) -> None:
        """Read the file, and count this start. A file that is not valid is begun again."""
        try:
            found = read_json(self._path, _MAX_HISTORY_BYTES)
            self.starts, self.ends = int(found["starts"]), int(found["ends"])
            self._before = float(found["seconds"])
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            sys.stderr.write(f"gipfel: {self._path} can't be read and is begun again: {error}\n")
        self.starts += 1
        self.progress()

    def end(self) -> None:
        """Count an end that was intended."""
        self.ends += 1
        self.progress()

    @property
    def failures(self) -> int:
        """Return the number of starts before this one that did not end as intended."""
        return max(0, self.starts - 1 - self.ends)

    def failure_s(self, expected_s: float) -> float:
        """Return the seconds between failures: the mean rate of a Gamma(k + 1/2) posterior.

        With k failures in T seconds it is (T + M/2) / (k + 1/2): M, the expected one, without any
        history, and T / k after many. Source: Jeffreys' prior of a Poisson rate, scaled to the mean 1/M.
        """
        seconds = self._before + time.monotonic() - self._began
        return (seconds + expected_s / 2) / (self.failures + 0.5)

    def progress(self) -> None:
        """Write the file."""
        seconds = self._before + time.monotonic() - self._began
        write_synced(self._path, {"starts": self.starts, "ends": self.ends, "seconds": seconds})


def interval(stall_s: float, write_s: float, failure_s: float) -> float:
    """Return the seconds of training between two checkpoints.

    The optimum of Daly, equation 37 of doi:10.1016/j.future.2004.11.016, which refines Young's sqrt(2 d M)
    (doi:10.1145/361147.361115), with the seconds that training waits as the cost d of a checkpoint and the
    seconds between failures as M. No shorter than twice the time that writing one takes in the background.
    """
    return max(daly(stall_s, failure_s), _MIN_WRITES * write_s)


def write_synced(path: Path, document: Any) -> None:
    """Write a JSON file that is complete and on disk, or as it was."""
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("w") as file:
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
