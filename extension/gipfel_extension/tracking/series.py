"""Series of scalars, summed up: what `gipfel metrics` lists."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from .scalar import Scalar

#: Series (source, metric and rank) that are listed; further ones are counted.
_MAX_SERIES = 20_000
_BLOCKS = "▁▂▃▄▅▆▇█"
_GAP = "·"


class Shape:
    """Means of equal numbers of consecutive values, in bounded memory: what a sparkline draws.

    Where there is no more room, neighbours are joined, so that it has 16 to 32 means from 16 values on.
    """

    _MAX_MEANS = 32

    def __init__(self) -> None:
        self._sums: list[float] = []
        self._counts: list[int] = []
        self._per_mean = 1
        self._waiting = 0

    def add(self, value: float) -> None:
        """Take one value; one that is not finite leaves a gap where it is alone."""
        if not self._waiting:
            if len(self._sums) == self._MAX_MEANS:
                self._sums = [a + b for a, b in zip(self._sums[::2], self._sums[1::2], strict=True)]
                self._counts = [a + b for a, b in zip(self._counts[::2], self._counts[1::2], strict=True)]
                self._per_mean *= 2
            self._sums.append(0.0)
            self._counts.append(0)
        if math.isfinite(value):
            self._sums[-1] += value
            self._counts[-1] += 1
        self._waiting = (self._waiting + 1) % self._per_mean

    def means(self) -> list[float]:
        """Return the means; NaN where none of the values is finite."""
        return [
            total / count if count else math.nan
            for total, count in zip(self._sums, self._counts, strict=True)
        ]


def sparkline(values: Iterable[float]) -> str:
    """Return values as one block character each, of heights between the lowest and the highest."""
    found = list(values)
    finite = [value for value in found if math.isfinite(value)]
    if not finite:
        return _GAP * len(found)
    # Halves, since the difference of two floats may be infinite.
    low, height = min(finite) / 2, max(finite) / 2 - min(finite) / 2
    top = len(_BLOCKS) - 1
    return "".join(
        (_BLOCKS[round((value / 2 - low) / height * top)] if height else _BLOCKS[0])
        if math.isfinite(value)
        else _GAP
        for value in found
    )


@dataclass
class Series:
    """Summary of one metric of one rank from one source.

    Parameters
    ----------
    source
        File or directory of the values, as :class:`~.follow.FileSummary` has it.
    last
        Value that comes last in the file.
    restarts
        How often the step went back, as it does when a training continues from an earlier checkpoint.
    repeated_steps
        Number of values whose step is that of the value before.
    """

    source: str
    name: str
    rank: int | None
    count: int = 0
    first_step: int | None = None
    last_step: int | None = None
    time_ns: int | None = None
    last: float = math.nan
    lowest: float = math.nan
    highest: float = math.nan
    restarts: int = 0
    repeated_steps: int = 0
    shape: Shape = field(default_factory=Shape, repr=False)

    def add(self, scalar: Scalar) -> None:
        """Take one value."""
        if not self.count:
            self.first_step = scalar.step
        elif scalar.step is not None and self.last_step is not None:
            self.restarts += scalar.step < self.last_step
            self.repeated_steps += scalar.step == self.last_step
        self.count += 1
        self.last_step, self.time_ns, self.last = scalar.step, scalar.time_ns, scalar.value
        self.shape.add(scalar.value)
        if not math.isnan(scalar.value):
            self.lowest = min(scalar.value, scalar.value if math.isnan(self.lowest) else self.lowest)
            self.highest = max(scalar.value, scalar.value if math.isnan(self.highest) else self.highest)

    def to_json(self) -> dict[str, Any]:
        """Return the summary for JSON; NaN and infinity, which JSON does not have, are null."""
        return {
            "source": self.source,
            "name": self.name,
            "rank": self.rank,
            "count": self.count,
            "first_step": self.first_step,
            "last_step": self.last_step,
            "restarts": self.restarts,
            "repeated_steps": self.repeated_steps,
            "time_ns": self.time_ns,
            "last": _json(self.last),
            "lowest": _json(self.lowest),
            "highest": _json(self.highest),
            "shape": [_json(mean) for mean in self.shape.means()],
        }


class SeriesTable:
    """All series of some files, in the order in which they first occurred.

    Attributes
    ----------
    left_out
        Number of values of series beyond the limit.
    """

    def __init__(self) -> None:
        self._series: dict[tuple[str, str, int | None], Series] = {}
        self.left_out = 0

    def add(self, source: str, scalars: list[Scalar]) -> None:
        """Take values of any series of one source."""
        for scalar in scalars:
            key = source, scalar.name, scalar.rank
            series = self._series.get(key)
            if series is None:
                if len(self._series) >= _MAX_SERIES:
                    self.left_out += 1
                    continue
                series = self._series[key] = Series(*key)
            series.add(scalar)

    def series(self) -> list[Series]:
        """Return the series."""
        return list(self._series.values())


def _json(value: float) -> float | None:
    return value if math.isfinite(value) else None
