"""What the sampling interval hides: the same recording as means of ten samples, scored again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..telemetry.sample import Columns, SampleTable
from .beats import beats_of
from .score import score_table
from .settings import Settings

_FACTOR = 10
#: Points from which on the difference is worth a sentence.
_TELLING = 1.0


@dataclass(frozen=True)
class Coarser:
    """The score of the means of ten samples, beside that of the samples.

    What alternates within an interval looks like its mean: a large difference says that a still shorter
    interval would change the score again.
    """

    interval: float
    score: float
    difference: float

    def to_json(self) -> dict[str, Any]:
        """For the score's document."""
        return {
            "interval_s": round(self.interval, 4),
            "score": round(self.score, 4),
            "difference": round(self.difference, 4),
        }

    @property
    def sentence(self) -> str:
        """What a reader should know, or nothing."""
        if abs(self.difference) < _TELLING:
            return ""
        return (
            f"Of means over {self.interval:g} s the score would be {self.score:.0f}: "
            f"{self.interval / _FACTOR:g} s shows {abs(self.difference):.0f} points that alternate faster."
        )


def coarser_score(
    table: SampleTable,
    score: float | None,
    settings: Settings | None = None,
    *,
    ranks: Mapping[int, Sequence[str]] | None = None,
) -> Coarser | None:
    """The score at ten times the interval; None where too little was recorded for it.

    Parameters
    ----------
    score
        Of the table as it is.
    """
    coarse = means(table, _FACTOR)
    other = score_table(coarse, settings, ranks=ranks).total
    if score is None or other is None or coarse.rows < 2 * len(coarse.devices):
        return None
    return Coarser(coarse.interval, other.score, score - other.score)


def means(table: SampleTable, factor: int) -> SampleTable:
    """A table of means over `factor` intervals each; a missing value counts for none, masks are united."""
    interval = beats_of(table).interval * factor
    columns = {
        device.uuid: _means(table.of(device.uuid), int(interval * 1e9))
        for device in table.devices
        if device.uuid in table
    }
    return replace(table, columns=columns, interval=interval, segments=())


def _means(columns: Columns, span_ns: int) -> Columns:
    time_ns = columns["time_ns"]
    if not len(time_ns):
        return columns
    starts = np.flatnonzero(np.diff(time_ns // max(1, span_ns), prepend=-1))
    found: Columns = {"time_ns": time_ns[starts], "monotonic_ns": columns["monotonic_ns"][starts]}
    for metric, values in columns.items():
        if metric in found:
            continue
        known = np.isfinite(values)
        if metric == "CLOCKS_EVENT_REASONS":
            bits = np.where(known, values, 0.0).astype(np.int64)
            merged = np.bitwise_or.reduceat(bits, starts).astype(np.float64)
        else:
            merged = np.add.reduceat(np.where(known, values, 0.0), starts)
            merged /= np.maximum(np.add.reduceat(known.astype(np.int64), starts), 1)
        found[metric] = np.where(np.add.reduceat(known.astype(np.int64), starts) > 0, merged, np.nan)
    return found
