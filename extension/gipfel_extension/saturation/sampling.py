"""What the sampling interval hides: the same recording as means of ten samples, scored again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..telemetry.metric_table import SCORE_PARTS
from ..telemetry.sample import SampleTable
from .score import score_table
from .settings import Settings
from .time_grid import COARSER, means

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
            f"{self.interval / COARSER:g} s shows {abs(self.difference):.0f} points that alternate faster."
        )


def coarser_score(
    table: SampleTable,
    score: float | None,
    settings: Settings | None = None,
    *,
    ranks: Mapping[int, Sequence[str]] | None = None,
) -> Coarser | None:
    """The score at ten times the interval of what was scored; None where too little was recorded for it.

    Parameters
    ----------
    score
        Of the table as it is.
    """
    coarse = _without_parts(table) or means(table, COARSER)
    other = score_table(coarse, settings, ranks=ranks).total
    if score is None or other is None or coarse.rows < 2 * len(coarse.devices):
        return None
    return Coarser(coarse.interval, other.score, score - other.score)


def _without_parts(table: SampleTable) -> SampleTable | None:
    """Return a table's own samples where the recorder scored finer ones, which they are the means of."""
    if not any("SCORE_SHARE" in table.of(gpu.uuid) for gpu in table.gpus):
        return None
    columns = {
        device.uuid: {name: each for name, each in table.of(device.uuid).items() if name not in SCORE_PARTS}
        for device in table.devices
    }
    return replace(table, columns=columns)
