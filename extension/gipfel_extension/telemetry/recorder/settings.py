"""How a recorder works."""

from dataclasses import dataclass
from pathlib import Path

from ..store.fine import FineKept


@dataclass(frozen=True)
class Settings:
    """Where a recorder writes and at what pace.

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
    fine: FineKept | None = None
    metrics: tuple[str, ...] = ()
