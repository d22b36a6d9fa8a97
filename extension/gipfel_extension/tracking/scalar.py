"""One logged value, and the limits that hold for all readers."""

import math
from typing import Any, NamedTuple, Protocol

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


class Reader(Protocol):
    """Reader of one file that may still grow."""

    @property
    def damaged(self) -> int:
        """Number of records, lines, cells or names that were dropped."""
        ...

    def read(self, *, last: bool = False) -> list[Scalar] | None:
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
        """Return a name as text; None where it is too long or one too many."""
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
    # A product of the whole number would round to 256 ns.
    whole = math.floor(seconds)
    return plausible_time(whole * 10**9 + round((seconds - whole) * 1e9))


def plausible_time(time_ns: int) -> int | None:
    """Return nanoseconds since the epoch; None for times before 2000 or beyond 64 bits."""
    return time_ns if _YEAR_2000_NS <= time_ns < 2**63 else None
