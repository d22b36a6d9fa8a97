"""What a recorder notes beside its samples: into its events' file, and into the next tick."""

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..events import Event, events_file
from ..files import open_log
from ..sources import Clock

log = logging.getLogger("gipfel.recorder")

#: Events that wait for a disk; a flood says nothing new after so many.
_MOST_WAITING = 1000


class Journal:
    """The events of one recorder.

    Parameters
    ----------
    telemetry
        The run folder's ``telemetry``; it needn't be there yet.
    """

    def __init__(self, telemetry: Path, node: str, recorder: str, clock: Clock) -> None:
        self._path = events_file(telemetry, node, recorder)
        self._node = node
        self._clock = clock
        self._untold: list[Event] = []
        self._unwritten: list[Event] = []
        self._failing: set[str] = set()
        self._complained: set[str] = set()
        self._torn = False

    def note(self, kind: str, message: str, device: str = "", *, told: bool = True) -> None:
        """Note something that happens now.

        Parameters
        ----------
        told
            False for what is of interest afterwards alone: it goes into the file, not to who looks on.
        """
        self.add(Event(self._clock.time_ns(), self._node, kind, device, message), told=told)

    def add(self, event: Event, *, told: bool = True) -> None:
        """Note something that happened."""
        self._unwritten = [*self._unwritten, event][-_MOST_WAITING:]
        if told:
            self._untold = [*self._untold, event][-_MOST_WAITING:]
            log.warning(event.message)

    def trouble(self, what: str, kind: str, message: str) -> None:
        """Note the beginning of a trouble, once."""
        if what not in self._failing:
            self._failing.add(what)
            self.note(kind, message)

    def relief(self, what: str, kind: str, message: str) -> bool:
        """Note the end of a trouble, where there was one; whether there was."""
        if what not in self._failing:
            return False
        self._failing.discard(what)
        self.note(kind, message)
        return True

    @contextmanager
    def suppressed(self, what: str) -> Iterator[None]:
        """Do something that is no reason to end: an error is one line of the log, once."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the samples go on whatever it was
            if what not in self._complained:
                self._complained.add(what)
                log.warning("The %s can't be had: %s", what, error)

    def take(self) -> tuple[Event, ...]:
        """The events that nobody was told yet."""
        untold, self._untold = tuple(self._untold), []
        return untold

    def write(self) -> None:
        """Append what isn't written yet; what the disk refuses waits for the next call."""
        if not self._unwritten:
            return
        lines = "".join(json.dumps(event.to_json()) + "\n" for event in self._unwritten).encode()
        if self._torn:
            lines = b"\n" + lines
        try:
            handle = open_log(self._path)
        except OSError:
            return
        written = -1
        with suppress(OSError):
            written = os.write(handle, lines)
        os.close(handle)
        self._torn = 0 < written < len(lines) or (self._torn and written <= 0)
        if written == len(lines):
            self._unwritten = []
