"""Writes the newest state of a notebook from a thread of its own, so that no cell waits for a disk."""

import threading
import time
from collections.abc import Callable

_LAZY_S = 0.5
_AGAIN_S = 5.0


class Saver:
    """Keeps one file at the newest state; states in between may be left out.

    A state that is `put` is written at once, or as soon as the write before it has ended. One that is not
    `urgent` waits up to half a second for a newer one. A write that fails is told and tried again, since a
    full disk must not end hours of work.

    Parameters
    ----------
    tell
        Is told once when writing begins to fail.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._change = threading.Condition()
        self._newest: Callable[[], None] | None = None
        self._version = self._written = 0
        self._due: float | None = None
        self._error: OSError | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._keep_writing, name="gipfel-saver", daemon=True)
        self._thread.start()

    def put(self, state: Callable[[], None], *, urgent: bool = True) -> int:
        """Take a state, which writes itself when it is called; the number by which `wait` knows it.

        It may raise OSError.
        """
        with self._change:
            self._newest = state
            self._version += 1
            due = time.monotonic() + (0.0 if urgent else _LAZY_S)
            if self._due is None or due < self._due:
                self._due = due
                self._change.notify_all()
            return self._version

    def wait(self, version: int) -> None:
        """Wait until this state or a newer one is written, or writing fails."""
        with self._change:
            while self._written < version and self._error is None and self._thread.is_alive():
                self._change.wait(1.0)

    @property
    def error(self) -> OSError | None:
        """Why the newest write failed; None where it did not."""
        with self._change:
            return self._error

    def give_up(self) -> None:
        """End the thread and leave the file as it is."""
        with self._change:
            self._newest, self._error = None, None
        self.close()

    def close(self) -> None:
        """Write what is left and end the thread.

        Raises
        ------
        OSError
            The last state could not be written.
        """
        with self._change:
            self._closing = True
            self._change.notify_all()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _keep_writing(self) -> None:
        while True:
            with self._change:
                while not self._closing and (self._due is None or self._due > time.monotonic()):
                    self._change.wait(None if self._due is None else self._due - time.monotonic())
                closing, state, version = self._closing, self._newest, self._version
                self._newest, self._due = None, None
            error = _attempt(state) if state is not None else self._error
            with self._change:
                if error is None:
                    self._written = version
                elif self._newest is None and not closing:
                    self._newest, self._due = state, time.monotonic() + _AGAIN_S
                if error is not None and self._error is None:
                    self._tell(f"the notebook can't be saved, which is tried again: {error}")
                self._error = error
                self._change.notify_all()
                if closing and self._newest is None:
                    return


def _attempt(state: Callable[[], None]) -> OSError | None:
    try:
        state()
    except OSError as error:
        return error
    except Exception as error:  # noqa: BLE001 - an end of this thread would lose all that follows, silently
        return OSError(f"{type(error).__name__}: {error}")
    return None
