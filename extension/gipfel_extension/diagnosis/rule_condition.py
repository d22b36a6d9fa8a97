"""Conditions of rules: ``mean above 85 °C``, ``increase above 0``, ``lowest above 98 % of FB_TOTAL``.

A condition is parsed into a :class:`Condition`, a value; nothing of its text is evaluated as code.
"""

import math
import re
from dataclasses import dataclass

from ..telemetry.metric_table import TABLE, unit_of

#: Statistics of a window, with what they are.
STATISTICS = {
    "mean": "mean of the values",
    "lowest": "lowest value: above it, all are above",
    "highest": "highest value: below it, all are below",
    "increase": "sum of all increases, for counters: a counter that starts again at 0 is not a decrease",
    "rate": "the increase per second",
    "missing": "share of values that are missing or not a number, in %",
    "bits": "share of values that have one of the bits of a mask set, in %, such as bits 0x60",
}
_FORM = "Write such as 'mean above 85 °C', 'increase above 0' or 'lowest above 98 % of FB_TOTAL'."
_WORDS = re.compile(
    r"(?P<statistic>[a-z]+)(?: (?P<mask>0x[0-9a-f]{1,16}))? (?P<side>above|below) "
    r"(?P<number>[-+]?(?:[0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})(?:e[-+]?[0-9]{1,2})?)"
    r"(?: ?(?P<unit>[%°µa-zA-Z/0-9]{1,10}))?(?: of (?P<of>[A-Z][A-Z0-9_]{0,63}))?"
)
_PREFIXES = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}
_LONGEST = 200


class ConditionError(ValueError):
    """A condition that can't be used: the problem and its fix."""

    def __init__(self, problem: str, fix: str = _FORM) -> None:
        super().__init__(problem)
        self.problem, self.fix = problem, fix


@dataclass(frozen=True)
class Condition:
    """A statistic of a window, compared with a bound.

    Parameters
    ----------
    statistic
        A key of :data:`STATISTICS`.
    above
        True where the statistic must be above the bound, False where below.
    bound
        In the metric's unit; a fraction for shares and for ratios to another metric.
    mask
        Bits, for the statistic ``bits``.
    of
        Metric of the same device by which each value is divided; empty for none.
    """

    statistic: str
    above: bool
    bound: float
    mask: int = 0
    of: str = ""

    @property
    def is_share(self) -> bool:
        """True where the statistic is a fraction, whatever the metric's unit."""
        return self.statistic in ("missing", "bits") or bool(self.of)

    def shown(self, value: float, metric: str) -> str:
        """Return a value of the statistic with its unit."""
        unit = "1" if self.is_share else unit_of(metric)
        if unit == "1":
            return f"{value:.4g}".rstrip() if self.statistic in ("increase", "rate") else f"{value:.1%}"
        if unit in ("B", "B/s"):
            for prefix, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
                if abs(value) >= factor:
                    return f"{value / factor:.3g} {prefix}{unit}"
        per_second = "/s" if self.statistic == "rate" else ""
        return f"{value:.4g} {unit}{per_second}".strip()

    def sentence(self, value: float, metric: str) -> str:
        """Return what was measured and the bound, such as ``mean 91 °C, above 85 °C``."""
        name = f"bits {self.mask:#x}" if self.statistic == "bits" else self.statistic
        side = "above" if self.above else "below"
        of = f" of {self.of}" if self.of else ""
        return f"{name} {self.shown(value, metric)}, {side} {self.shown(self.bound, metric)}{of}"


def parse_condition(text: str, metric: str) -> Condition:
    """Return the condition that a text describes for a metric.

    Raises
    ------
    ConditionError
        The text is not a condition, or does not fit the metric.
    """
    words = " ".join(text.split()) if len(text) <= _LONGEST else ""
    found = _WORDS.fullmatch(words)
    if found is None:
        raise ConditionError(f"{text[:60]!r} is not a condition")
    statistic, mask, of = found["statistic"], found["mask"], found["of"] or ""
    if statistic not in STATISTICS:
        raise ConditionError(f"{statistic!r} is not a statistic", f"Use {', '.join(STATISTICS)}.")
    if (statistic == "bits") != (mask is not None):
        raise ConditionError("only 'bits' has a mask, and needs one", "Write such as 'bits 0x60 above 50 %'.")
    if statistic == "bits" and metric in TABLE and unit_of(metric) != "bits":
        raise ConditionError(f"{metric} is not a bit mask", "Use 'bits' with CLOCKS_EVENT_REASONS.")
    if of and (of not in TABLE or metric not in TABLE):
        raise ConditionError(
            f"{metric} can't be divided by {of}", "Divide by a recorded metric of the device."
        )
    if of and statistic in ("missing", "bits", "increase", "rate"):
        raise ConditionError(f"{statistic!r} can't be taken of a ratio", "Use mean, lowest or highest.")
    share = bool(of) or statistic in ("missing", "bits")
    unit = "1" if share else unit_of(metric)
    bound = float(found["number"]) * _factor(
        found["unit"] or "", unit, metric, per_second=statistic == "rate"
    )
    if not math.isfinite(bound):
        raise ConditionError(f"{found['number']} is too large")
    return Condition(statistic, found["side"] == "above", bound, int(mask or "0", 16), of)


def _factor(written: str, unit: str, metric: str, *, per_second: bool) -> float:
    """Return the factor from the unit that was written to the metric's own."""
    if per_second:
        written = written.removesuffix("/s")
    if unit == "1":
        if written in ("%", ""):
            return 0.01 if written else 1.0
    elif written in ("", unit):
        return 1.0
    elif unit in ("B", "B/s") and (factor := _PREFIXES.get(written.removesuffix(unit))):
        return factor
    expected = {"1": "%", "": "no unit"}.get(unit, unit)
    raise ConditionError(f"{written!r} is not a unit of {metric}", f"Give the bound in {expected}.")
