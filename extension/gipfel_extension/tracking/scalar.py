"""One logged value, the limits that hold for all readers, and the series that `gipfel metrics` lists."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

#: Longer names are not metrics; they are dropped and counted.
MAX_NAME_LENGTH = 200
#: Names in one file; further ones are dropped and counted.
MAX_NAMES = 5_000

_YEAR_2000_NS = 946_684_800 * 10**9
_MAX_STEP = 2**63


class Scalar(NamedTuple):
    """One value of one metric.

    Parameters
    ----------
    step
        Number of the training step; None where the file has none.
    time_ns
        UTC since the epoch; None where the file has none.
    value
        NaN where the program logged NaN.
    rank
        Rank that logged it; None where the file does not say.
    """

    name: str
    step: int | None
    time_ns: int | None
    value: float
    rank: int | None = None


#: Placeholder in a batch for a missing step or time.
NOTHING = -(2**63)


class ScalarBatch(Sequence[Scalar]):
    """Values in columns; each becomes a :class:`Scalar` only when it is accessed.

    Parameters
    ----------
    names
        Metric names; the first column has indexes into it.
    columns
        Four columns: index of the name, step, time in ns, value; ``NOTHING`` for a missing step or time.
    """

    def __init__(self, names: Sequence[str], columns: Sequence[NDArray[Any]], rank: int | None) -> None:
        self._names = names
        self._columns = columns
        self._rank = rank

    def __len__(self) -> int:
        return len(self._columns[0])

    def __iter__(self) -> Iterator[Scalar]:
        name, step, time_ns, value = self._columns
        names = map(self._names.__getitem__, name.tolist())
        rows = zip(names, _optional(step), _optional(time_ns), value.tolist(), repeat(self._rank))
        return map(_scalar, rows)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return ScalarBatch(self._names, [column[index] for column in self._columns], self._rank)
        return next(iter(self[index : index + 1 or None]))


#: Same as ``Scalar._make`` in half the time, because it is called for each value.
_scalar: Callable[[Iterable[Any]], Scalar] = partial(tuple.__new__, Scalar)


def _optional(column: NDArray[np.int64]) -> list[int | None]:
    found: list[int | None] = column.tolist()
    return [None if each == NOTHING else each for each in found] if (column == NOTHING).any() else found


class Reader(Protocol):
    """Reader of one file that may still grow."""

    @property
    def damaged(self) -> int:
        """Number of records, lines, cells or names that were dropped."""
        ...

    def read(self, *, last: bool = False) -> Sequence[Scalar] | None:
        """Return the values of the next piece of the file; None where there is nothing more for now.

        Parameters
        ----------
        last
            True where the file will not grow any more: an unfinished last line counts as a line.

        Raises
        ------
        OSError
            The file cannot be read.
        """
        ...


class Names:
    """The names of one file, limited in number and length."""

    def __init__(self) -> None:
        self._known: dict[bytes | str, str] = {}

    def get(self, name: bytes | str) -> str | None:
        """Return a name as text; None if it is too long, or if the file already has the maximum number."""
        known = self._known.get(name)
        if known is not None:
            return known
        text = name.decode("utf-8", "replace") if isinstance(name, bytes) else name
        if not text or len(text) > MAX_NAME_LENGTH or len(self._known) >= MAX_NAMES:
            return None
        return self._known.setdefault(name, text)


def number(value: Any) -> float | None:
    """Return a JSON value as a float; None for what is not a number, or is too large for one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def step_number(value: Any) -> int | None:
    """Return a step; None for what is not a whole number of 64 bits."""
    found = number(value)
    if found is None or not math.isfinite(found) or found != int(found) or abs(found) >= _MAX_STEP:
        return None
    return int(value)


def nanoseconds(seconds: float) -> int | None:
    """Return seconds since the epoch in nanoseconds; None for times before 2000 or beyond 64 bits."""
    if not math.isfinite(seconds):
        return None
    # Multiplying the full float by 1e9 would round to multiples of 256 ns.
    whole = math.floor(seconds)
    return plausible_time(whole * 10**9 + round((seconds - whole) * 1e9))


def times_of(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return :func:`nanoseconds` of each time, with ``NOTHING`` in place of None."""
    fine = (seconds >= _YEAR_2000_NS / 1e9) & (seconds < 9.2e9)
    whole = np.floor(np.where(fine, seconds, 0))
    rest = np.rint((np.where(fine, seconds, 0) - whole) * 1e9)
    return np.where(fine, whole.astype(np.int64) * 10**9 + rest.astype(np.int64), NOTHING)


def plausible_time(time_ns: int) -> int | None:
    """Return nanoseconds since the epoch; None for times before 2000 or beyond 64 bits."""
    return time_ns if _YEAR_2000_NS <= time_ns < 2**63 else None


#: Maximum number of series (source, metric and rank) that are listed; values of others are only counted.
_MAX_SERIES = 20_000
_BLOCKS = "▁▂▃▄▅▆▇█"
_GAP = "·"


class Shape:
    """Means of equal numbers of consecutive values, in bounded memory: what a sparkline draws.

    When it is full, pairs of neighbours are merged, so that there are 16 to 32 means once there are 16
    values.
    """

    _MAX_MEANS = 32

    def __init__(self) -> None:
        self._sums: list[float] = []
        self._counts: list[int] = []
        self._per_mean = 1
        self._waiting = 0

    def add(self, value: float) -> None:
        """Add one value; a mean is a gap (NaN) if none of its values is finite."""
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
    """Return one block character per value; heights are scaled from the lowest to the highest value."""
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
        File or directory of the values, as in `find.FileSummary`.
    last
        Last value in the file.
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
        """Add one value."""
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

    def add(self, source: str, scalars: Iterable[Scalar]) -> None:
        """Add values of any series of one source."""
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
