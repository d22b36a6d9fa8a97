"""`PacedThread`: work that is repeated on a thread, within a share of a core."""

import threading
import time
from collections.abc import Callable

_MIN_PAUSE_S = 5.0
_MIN_REQUEST_PAUSE_S = 0.5


class PacedThread:
    """Thread that repeats some work with pauses of at least five seconds, or sooner if that is requested.

    Parameters
    ----------
    work
        Called repeatedly on the thread, until it returns False or the thread is closed.
    share
        Largest share of a core that the work may use; after long work, pauses are longer.
    """

    def __init__(self, name: str, work: Callable[[], bool], share: float) -> None:
        self._work = work
        self._share = share
        self._closing = threading.Event()
        self._requested = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def request(self) -> None:
        """Do the work soon."""
        self._requested.set()

    def close(self, limit_s: float) -> None:
        """End the thread, and wait for its end for some seconds."""
        self._closing.set()
        self._requested.set()
        if self._thread is not threading.current_thread():
            self._thread.join(limit_s)

    def _run(self) -> None:
        while not self._closing.is_set():
            self._requested.clear()
            began = time.thread_time()
            if not self._work():
                return
            self._pause(time.thread_time() - began)

    def _pause(self, spent_s: float) -> None:
        """Wait for the pause or the next request; frequent requests wait in proportion to the work's time."""
        pause_s = max(_MIN_PAUSE_S, spent_s / self._share)
        end = time.monotonic() + pause_s
        soonest = time.monotonic() + min(pause_s, max(_MIN_REQUEST_PAUSE_S, 2 * spent_s))
        while not self._closing.is_set() and (remaining := end - time.monotonic()) > 0:
            if self._requested.wait(remaining):
                self._closing.wait(max(0.0, soonest - time.monotonic()))
                return
