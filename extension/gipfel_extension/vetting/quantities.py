"""Quantities with units (``50 GB/s``, ``30 s``, ``20 %``), and statistics of samples of them."""

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator

_NUMBER_WITH_UNIT = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-z°%µ/]*)\s*")
_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"": 1.0, "K": 2.0**10, "M": 2.0**20, "G": 2.0**30, "T": 2.0**40, "P": 2.0**50}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_PLAIN_UNITS = {"": 1.0, "%": 0.01, "C": 1.0, "°C": 1.0, "MHz": 1.0, "W": 1.0, "x": 1.0}
_PREFIXED_UNIT = re.compile(r"([kKMGTP]?)(i?)(B|FLOP|FLOPS|Flop)(/s)?")
_PREFIXES = (("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12), ("P", 1e15))
#: Factor from the MAD (median absolute deviation) to the standard deviation, for normal noise.
NORMAL = 1.4826
#: The gap between two modes is at least this share of the upper one, and so many times any gap within a mode.
_MIN_GAP, _GAP_RATIO = 0.08, 3.0
#: A mode has at least this many samples; fewer are outliers.
_MIN_MODE_SIZE = 2


def quantity(value: Any, *, binary: bool = False) -> float:
    """Return a number in base units: bytes, bytes/s, FLOP/s, seconds; percentages become shares.

    Parameters
    ----------
    value
        A number, or a string of a number and a unit.
    binary
        Read ``GB`` as 2^30 bytes, as vetnode does; FLOPs keep decimal prefixes.

    Raises
    ------
    ValueError
        The value is not a finite number, or its unit is unknown.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("is not a number with a unit")  # noqa: TRY004 - pydantic expects it
    try:
        number = float(value) if not isinstance(value, str) else _parse(value, binary=binary)
    except OverflowError as error:
        raise ValueError("is too large a number") from error
    if not math.isfinite(number):
        raise ValueError("is not a finite number")
    return number


def _parse(text: str, *, binary: bool) -> float:
    match = _NUMBER_WITH_UNIT.fullmatch(text)
    if not match:
        raise ValueError(f"{text[:40]!r} is not a number with a unit, like '50 GB/s'")
    number, unit = float(match[1]), match[2]
    if unit in _PLAIN_UNITS:
        return number * _PLAIN_UNITS[unit]
    if unit in _SECONDS:
        return number * _SECONDS[unit]
    scaled = _PREFIXED_UNIT.fullmatch(unit)
    if not scaled or (scaled[2] and scaled[1] not in _BINARY):
        raise ValueError(f"{unit!r} is not a known unit: B, GB, GiB, GB/s, TFLOP/s, s, ms, %")
    table = _BINARY if scaled[2] or (binary and scaled[3] == "B") else _DECIMAL
    return number * table[scaled[1].upper() if table is _BINARY else scaled[1]]


def with_unit(value: float, unit: str) -> str:
    """Format a measurement: bytes and FLOPs with three digits and a prefix, other units with four digits."""
    if unit not in {"B", "B/s", "FLOP/s"}:
        return f"{value:.4g} {unit}".strip()
    # Rounded before it is compared: 999.6 GB/s are 1 TB/s.
    scaled = [(float(f"{value / size:.3g}"), prefix) for prefix, size in _PREFIXES]
    number, prefix = next((each for each in scaled if abs(each[0]) < 1000), scaled[-1])
    return f"{number:g} {prefix}{unit}"


#: A field that accepts numbers with units.
Quantity = Annotated[float, BeforeValidator(quantity)]


@dataclass(frozen=True)
class Summary:
    """Summary of a few repeated samples.

    Parameters
    ----------
    p10
        The tenth percentile, interpolated.
    spread
        MAD divided by the median, scaled to a standard deviation.
    bimodal
        Whether the samples form two groups that are far apart.
    lower, upper
        The medians of the two groups; twice the median where there is one group.
    """

    count: int
    median: float
    p10: float
    spread: float
    bimodal: bool
    lower: float
    upper: float


def summary(samples: Sequence[float]) -> Summary:
    """Return the summary of samples; raise ValueError where there are none."""
    if not samples:
        raise ValueError("There are no samples.")
    values = sorted(samples)
    middle = statistics.median(values)
    lower, upper = two_modes(values)
    spread = NORMAL * mad(values) / middle if middle else 0.0
    return Summary(len(values), middle, percentile(values, 0.10), spread, lower != upper, lower, upper)


def mad(values: Sequence[float]) -> float:
    """Return the median absolute deviation: the median distance to the median."""
    middle = statistics.median(values)
    return statistics.median(abs(value - middle) for value in values)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which this share of sorted values lies, interpolated."""
    position = share * (len(values) - 1)
    below = int(position)
    above = min(below + 1, len(values) - 1)
    return values[below] + (position - below) * (values[above] - values[below])


def two_modes(values: Sequence[float]) -> tuple[float, float]:
    """Return the medians of two groups of sorted values that lie far apart, or the median twice."""
    middle = statistics.median(values)
    one = (middle, middle)
    if len(values) < 2 * _MIN_MODE_SIZE:
        return one
    gaps = [(values[index] - values[index - 1], index) for index in range(1, len(values))]
    gap, cut = max(gaps)
    low, high = values[:cut], values[cut:]
    if min(len(low), len(high)) < _MIN_MODE_SIZE:
        return one
    # Noise makes gaps within a group too, but none that is much wider than the others.
    within = max((each for each, index in gaps if index != cut), default=0.0)
    top = statistics.median(high)
    if gap < _MIN_GAP * top or gap < _GAP_RATIO * within:
        return one
    return statistics.median(low), top


def student_t_tail(value: float, freedom: int) -> float:
    """Return the probability that Student's t, with an integer number of degrees of freedom, exceeds a value.

    Raises
    ------
    ValueError
        Fewer than one degree of freedom.

    Notes
    -----
    Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    if freedom < 1:
        raise ValueError(f"Student's t needs a degree of freedom, not {freedom}.")
    angle = math.atan2(value, math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = term if freedom > 1 else 0.0
    for step in range(1, (freedom - 1) // 2 if odd else freedom // 2):
        term *= cosine**2 * (2 * step / (2 * step + 1) if odd else (2 * step - 1) / (2 * step))
        total += term
    inside = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return 0.5 * (1.0 - inside)
