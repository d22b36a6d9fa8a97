"""How a recorder works."""

from dataclasses import dataclass
from pathlib import Path


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
    metrics
        GPU metrics beside those that are always recorded.
    """

    telemetry: Path
    node: str
    name: str = "job"
    interval: float = 1.0
    flush: float = 2.0
    rotate: float = 3600.0
    metrics: tuple[str, ...] = ()
