"""The user's metrics of the runs that pages look at, read on from where the last look ended."""

import threading
from pathlib import Path

from ..telemetry.metrics import METRICS_FILE, MetricsReader, UserMetrics

_MOST_RUNS = 4


class RunMetrics:
    """Readers of the runs that were looked at last, for any thread.

    A file of a long run takes seconds to read; a page draws again every few seconds.
    """

    def __init__(self, most_runs: int = _MOST_RUNS) -> None:
        self._most = most_runs
        self._readers: dict[Path, tuple[MetricsReader, threading.Lock]] = {}
        self._lock = threading.Lock()

    def of(self, run: Path) -> UserMetrics | None:
        """Return what a run's processes have logged until now; None where it can't be read."""
        reader, lock = self._reader(run)
        with lock:
            try:
                reader.poll()
            except OSError:
                return None
            return reader.metrics()

    def _reader(self, run: Path) -> tuple[MetricsReader, threading.Lock]:
        with self._lock:
            found = self._readers.pop(run, None)
            if found is None:
                while len(self._readers) >= self._most:
                    del self._readers[next(iter(self._readers))]
                found = MetricsReader(run / METRICS_FILE), threading.Lock()
            # The one that was used last is at the end.
            self._readers[run] = found
            return found


#: One for the whole server.
metrics_of_run = RunMetrics().of
