"""Scalars of ``trainer_state.json``, which transformers' Trainer saves with each checkpoint.

``log_history`` is a list of objects with ``step`` and ``epoch``; it has no times. Each checkpoint,
``OUTPUT/checkpoint-N/``, has the whole history up to it, and ``OUTPUT`` itself has the last one after the
training. Source: transformers, trainer_callback.py, ``TrainerState``.

:class:`Repeats` filters the values that a program writes again because it rewrites its file as a whole.
"""

import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from ..telemetry.files import read_regular
from .scalar import Names, Scalar, number, step_number


@dataclass
class _Series:
    """Values of one name: their number, a hash of the first and a chained hash of all."""

    count: int = 0
    first: int = 0
    chain: int = 0
    waiting: list[Scalar] = field(default_factory=list)

    def add(self, scalar: Scalar) -> None:
        self.count += 1
        # repr, since NaN is not equal to itself and has no fixed hash.
        self.chain = hash((self.chain, scalar.step, repr(scalar.value)))
        if self.count == 1:
            self.first = self.chain


class Repeats:
    """Filter that removes values that were read before from a file that was rewritten.

    Lightning's CSVLogger rewrites its file when a new metric appears, and transformers rewrites
    ``trainer_state.json`` at each checkpoint, with all earlier values at the beginning. A name whose first
    values differ from those that were read before is a new series, all of whose values are new.
    """

    def __init__(self) -> None:
        self._read: dict[str, _Series] = {}
        self._earlier: dict[str, _Series] = {}

    def restart(self) -> None:
        """Record that the file is read from its beginning again."""
        for name, series in self._read.items():
            # If the file was replaced again before the second reading got as far as the first, its next
            # reading still repeats the first: keep the longer series.
            if name not in self._earlier or series.count >= self._earlier[name].count:
                self._earlier[name] = series
        self._read = {}

    def filter(self, scalars: list[Scalar]) -> list[Scalar]:
        """Return the new values; those that may still be repetitions are returned by a later call."""
        if not self._earlier:
            for each in scalars:
                self._read.setdefault(each.name, _Series()).add(each)
            return scalars
        found: list[Scalar] = []
        for each in scalars:
            series = self._read.setdefault(each.name, _Series())
            series.add(each)
            earlier = self._earlier.get(each.name)
            if earlier is None:
                found.append(each)
                continue
            series.waiting.append(each)
            if series.count == earlier.count or series.first != earlier.first:
                if series.chain != earlier.chain:
                    found += series.waiting
                series.waiting = []
                del self._earlier[each.name]
        return found

    def finish(self) -> list[Scalar]:
        """Return the values that `filter` still holds back.

        They are new, since the file ended before it had repeated all earlier values.
        """
        found = [each for series in self._read.values() for each in series.waiting]
        for name, series in self._read.items():
            if series.waiting:
                series.waiting = []
                del self._earlier[name]
        return found


#: File name of a Trainer's state.
STATE_FILE = "trainer_state.json"
#: Larger files are not read; a history of 400 000 entries is smaller.
_MAX_BYTES = 64 << 20
_MAX_CHECKPOINTS = 10_000
_PIECE_ENTRIES = 10_000
_HISTORY = re.compile(rb'"log_history"\s*:\s*\[')
#: Entries are parsed one by one, since the whole parsed file would take ten times its size in memory. Entries
#: are not nested.
_ENTRY = re.compile(rb"[\s,]{0,4096}(\{[^{}]{0,65536}\})")

_Version = tuple[int, int, int]


class TrainerStateReader:
    """Reader of the newest state below an output directory, which is read again whenever it has changed.

    Parameters
    ----------
    path
        A ``trainer_state.json``: of the output directory, or of one of its checkpoints.
    """

    def __init__(self, path: Path, rank: int | None = None) -> None:
        self._output = output_directory(path)
        self._rank = rank
        self._names = Names()
        self._repeats = Repeats()
        self._version: _Version | None = None
        self._content = b""
        self._position = 0
        self.damaged = 0

    def read(self, *, last: bool = False) -> list[Scalar] | None:  # noqa: ARG002
        """Return the new values of up to 10 000 entries; None if there are no further entries.

        The next call continues after them. `last` has no effect: it makes other readers take an incomplete
        last line, which a state does not have.
        """
        if not self._content and not self._open_newest():
            return None
        found: list[Scalar] = []
        for _ in range(_PIECE_ENTRIES):
            entry = _ENTRY.match(self._content, self._position)
            if entry is None:
                self._close()
                return [*self._repeats.filter(found), *self._repeats.finish()]
            self._position = entry.end()
            self._add(entry[1], found)
        return self._repeats.filter(found)

    @property
    def modified_ns(self) -> int:
        """Return when the newest state was saved; 0 where there is none."""
        newest = self._newest()
        return newest[1][0] if newest else 0

    def _open_newest(self) -> bool:
        """Load the state that was written last; return False where it was read before."""
        newest = self._newest()
        if newest is None or newest[1] == self._version:
            return False
        if self._version is not None:
            self._repeats.restart()
        path, self._version = newest
        content = read_regular(path, _MAX_BYTES)
        history = _HISTORY.search(content)
        if history is None:
            # The file is being written, or is something else: its next version may be valid.
            self.damaged += 1
            return False
        self._content, self._position = content, history.end()
        return True

    def _close(self) -> None:
        self.damaged += not self._content[self._position : self._position + 4096].lstrip().startswith(b"]")
        self._content = b""

    def _newest(self) -> tuple[Path, _Version] | None:
        """Return the state that was written last, and a value that identifies its version."""
        paths = [self._output / STATE_FILE]
        with suppress(OSError), os.scandir(self._output) as entries:
            paths += [
                self._output / entry.name / STATE_FILE
                for entry in islice(entries, _MAX_CHECKPOINTS)
                if entry.name.startswith("checkpoint-")
            ]
        found = []
        for path in paths:
            with suppress(OSError):
                about = path.lstat()
                found.append((path, (about.st_mtime_ns, about.st_ino, about.st_size)))
        return max(found, key=lambda each: each[1], default=None)

    def _add(self, text: bytes, found: list[Scalar]) -> None:
        try:
            entry: dict[str, Any] = json.loads(text)
        except (ValueError, RecursionError):
            self.damaged += 1
            return
        step = step_number(entry.get("step"))
        for name, value in entry.items():
            if name == "step" or (real := number(value)) is None:
                continue
            known = self._names.get(name)
            if known is None:
                self.damaged += 1
            else:
                found.append(Scalar(known, step, None, real, self._rank))


def output_directory(path: Path) -> Path:
    """Return the output directory of a Trainer from the path of a state."""
    return path.parent.parent if path.parent.name.startswith("checkpoint-") else path.parent
