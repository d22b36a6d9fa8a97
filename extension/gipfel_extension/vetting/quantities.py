"""Parse and format quantities with units: ``50 GB/s``, ``256 MiB``, ``30 s``, ``12 ms``, ``20 %``."""

import math
import re
from typing import Annotated, Any

from pydantic import BeforeValidator

_NUMBER_WITH_UNIT = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-z°%µ/]*)\s*")
_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"": 1.0, "K": 2.0**10, "M": 2.0**20, "G": 2.0**30, "T": 2.0**40, "P": 2.0**50}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_PLAIN_UNITS = {"": 1.0, "%": 0.01, "C": 1.0, "°C": 1.0, "MHz": 1.0, "W": 1.0, "x": 1.0}
_PREFIXED_UNIT = re.compile(r"([kKMGTP]?)(i?)(B|FLOP|FLOPS|Flop)(/s)?")
_PREFIXES = (("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12), ("P", 1e15))


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
