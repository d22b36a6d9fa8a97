"""Samples on their way to the disk: held while it refuses them, written when it takes them again."""

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..telemetry.sample import Sample
from ..telemetry.sources import Clock
from ..telemetry.store.fine import FineRetention
from ..telemetry.store.segments import Provenance, SegmentWriter
from .journal import Journal

#: How many seconds of samples wait in memory for a disk that refuses them.
_PATIENCE_SECONDS = 600.0
#: A disk that refused is asked again after the time between two writes, then ever later, at most after this.
_LONGEST_PAUSE_SECONDS = 30.0
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class Settings:
    """Directory and intervals of a recorder.

    Parameters
    ----------
    telemetry
        The run folder's ``telemetry``.
    name
        Tells the recorders of one run apart: ``job``, ``simulated``.
    interval, flush, rotate
        Seconds between samples, between writes, and that one segment covers.
    fine
        How long samples of `FINE_INTERVAL` are kept where a source counts that fast; `interval` is then that
        of what is recorded for good and streamed. None: every source is read at `interval`.
    metrics
        GPU metrics beside those that are always recorded.
    """

    telemetry: Path
    node: str
    name: str = "job"
    interval: float = 1.0
    flush: float = 2.0
    rotate: float = 3600.0
    fine: FineRetention | None = None
    metrics: tuple[str, ...] = ()


class Disk:
    """The segments of one recorder, one after the other."""

    def __init__(
        self,
        settings: Settings,
        provenance: Provenance,
        journal: Journal,
        clock: Clock,
        *,
        summaries: bool = True,
    ) -> None:
        self._summaries = summaries
        self._trouble = f"disk {settings.telemetry}"
        self._settings = settings
        self._provenance = provenance
        self._journal = journal
        self._clock = clock
        self._segment: SegmentWriter | None = None
        self._begun_ns = 0
        self._due_ns: int | None = None
        self._pause = settings.flush
        self._waiting: list[Sample] = []
        self._lost = 0

    def add(self, samples: Sequence[Sample]) -> None:
        """Take samples, and write when it is time: the first at once."""
        self._waiting += samples
        now_ns = self._clock.monotonic_ns()
        if self._due_ns is None or now_ns >= self._due_ns:
            self.flush()

    def flush(self) -> None:
        """Write what waits; after an error begin a new segment next time, because this one may be torn."""
        now_ns = self._clock.monotonic_ns()
        self._due_ns = now_ns + int(self._pause * 1e9)
        if self._provenance.devices:
            try:
                self._write(now_ns)
            except OSError as error:
                self._refused(error, now_ns)
            except Exception as error:  # noqa: BLE001 - the samples go on whatever it was
                self._refused_values(error)
            else:
                self._taken()
        self._journal.write()

    def finish(self) -> None:
        """End the segment; the next samples begin another."""
        if self._segment is None:
            return
        segment, self._segment = self._segment, None
        try:
            segment.close()
        except OSError as error:
            segment.abandon()
            self._journal.trouble(self._trouble, "disk_full", f"A segment can't be closed: {_reason(error)}.")

    def _write(self, now_ns: int) -> None:
        if self._segment is not None and now_ns - self._begun_ns >= self._settings.rotate * 1e9:
            self.finish()
        if self._segment is None:
            self._settings.telemetry.mkdir(mode=0o700, parents=True, exist_ok=True)
            start_ns = self._waiting[0].time_ns if self._waiting else self._clock.time_ns()
            self._segment = SegmentWriter(
                self._settings.telemetry, self._provenance, start_ns=start_ns, summaries=self._summaries
            )
            self._begun_ns = now_ns
        self._segment.write(self._waiting)
        self._waiting = []

    def _refused(self, error: OSError, now_ns: int) -> None:
        if self._segment is not None:
            self._segment.abandon()
            self._segment = None
        most = max(1, int(len(self._provenance.devices) * _PATIENCE_SECONDS / self._settings.interval))
        self._lost += max(0, len(self._waiting) - most)
        self._waiting = self._waiting[-most:]
        self._pause = min(2 * self._pause, max(_LONGEST_PAUSE_SECONDS, self._settings.flush))
        self._due_ns = now_ns + int(self._pause * 1e9)
        folder = self._settings.telemetry
        problem = "The disk is full" if error.errno in _FULL else "The disk refuses samples"
        self._journal.trouble(
            self._trouble,
            "disk_full",
            f"{problem}: {folder} can't be written: {_reason(error)}.",
        )

    def _refused_values(self, error: Exception) -> None:
        """Drop samples that can't be written: one of two sources may give what is not a number."""
        if self._segment is not None:
            self._segment.abandon()
            self._segment = None
        self._lost += len(self._waiting)
        self._waiting = []
        self._journal.trouble("values", "source_lost", f"A source gives what can't be written: {error}")

    def _taken(self) -> None:
        self._pause = self._settings.flush
        self._journal.relief(self._trouble, "disk_back", f"{self._settings.telemetry} can be written again.")
        if self._lost:
            self._journal.note("samples_lost", f"{self._lost} samples could not be written and are lost.")
            self._lost = 0


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
