"""Report an event: append it to the journal for JupyterLab, and start a process that sends it.

Nothing here raises or waits for a service, since a job must neither fail nor wait because of a message.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress

from ..environment import without_tokens
from .event import Event
from .journal import HOUR_NS, append_event
from .settings import settings_file

#: Longest time in seconds that `Reporter.finish` waits, counted from the last report: a process that sends
#: ends by itself before.
FINISH_S = 11.0
_KILL_S = 1.0


class Reporter:
    """Reports events of one job or launch; usable from several threads."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = without_tokens(environment)
        self._lock = threading.Lock()
        self._senders: list[subprocess.Popen[bytes]] = []
        self._last = time.monotonic()
        self._reported: dict[str, int] = {}

    def report(self, event: Event) -> None:
        """Append an event to the journal; if the user has set up a service, start sending it.

        An event with the same key within an hour is ignored, also if the journal can't be written.
        """
        if not self._is_first(event.key):
            return
        is_new = True
        # A full disk: send nevertheless.
        with suppress(OSError, ValueError):
            is_new = append_event(event, self._environment)
        if not is_new:
            return
        with suppress(OSError, RuntimeError, ValueError):
            if os.path.lexists(settings_file(self._environment)):
                self._start_sender(event)

    def pids(self) -> frozenset[int]:
        """Return the ids of the processes that are sending."""
        with self._lock:
            return frozenset(each.pid for each in self._senders if each.poll() is None)

    def finish(self, limit_s: float = FINISH_S) -> None:
        """Wait for what is being sent, until `limit_s` seconds after the last report, and end the rest."""
        with self._lock:
            senders, self._senders = self._senders, []
            deadline = self._last + limit_s
        for each in senders:
            with suppress(subprocess.TimeoutExpired):
                each.wait(max(0.0, deadline - time.monotonic()))
            if each.poll() is None:
                each.kill()
                # One that waits for a lost file system does not end.
                with suppress(subprocess.TimeoutExpired):
                    each.wait(_KILL_S)

    def _is_first(self, key: str) -> bool:
        with self._lock:
            now = time.monotonic_ns()
            self._reported = {name: at for name, at in self._reported.items() if now - at < HOUR_NS}
            is_first = key not in self._reported
            if is_first:
                self._reported[key] = now
            return is_first

    def _start_sender(self, event: Event) -> None:
        process = subprocess.Popen(
            [sys.executable, "-I", "-m", "gipfel_cluster.notify"],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
        with self._lock:
            self._senders = [each for each in self._senders if each.poll() is None] + [process]
            self._last = time.monotonic()
        if process.stdin is not None:
            # Shorter than a pipe's buffer, so this does not wait.
            with suppress(OSError), process.stdin as pipe:
                pipe.write(event.model_dump_json().encode())
