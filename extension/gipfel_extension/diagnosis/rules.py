"""Rules: a metric, a condition on its windows (``mean above 85 °C``), and a message for when it holds."""

import fnmatch
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..telemetry.metric_table import HOST_METRICS, NIC_METRICS, TABLE, unit_of
from .robust import Floats

#: Statistics of a window, with explanations.
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
#: Kind of the events that hits become.
EVENT_KIND = "rule"
_BUCKETS = 20
_LEAST_BUCKET_NS = 10**9
#: Longest gap without samples in a window, as a share of its length.
_LARGEST_GAP = 0.25
#: Least number of logged values in a window; programs log at their own pace, so gaps don't matter.
_LEAST_LOGGED = 3
#: Rows of the statistics of a bucket.
COUNT, VALID, TOTAL, LOWEST, HIGHEST, INCREASE = range(6)
_EMPTY = np.array([0, 0, 0, np.inf, -np.inf, 0])


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
        Bound in the metric's unit; a fraction for shares and for ratios to another metric.
    mask
        Bit mask, for the statistic ``bits``.
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


@dataclass(frozen=True)
class Rule:
    """A validated rule; `window_s` is the length of its windows in seconds.

    Parameters
    ----------
    metric
        Name of a recorded metric, or of one that the program logs, where ``*`` stands for any characters.
    where
        Text of a selection of ranks, see ``role_selection.parse_selection``; empty for all.
    """

    name: str
    metric: str
    condition: Condition
    window_s: float
    sentence: str
    link: str = ""
    where: str = ""

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Rule":
        """Return the rule of a dictionary that :meth:`to_json` made."""
        return cls(**{**content, "condition": Condition(**content["condition"])})

    def to_json(self) -> dict[str, Any]:
        """Return the rule as a dictionary that JSON can hold."""
        return asdict(self)

    @property
    def device_kind(self) -> str:
        """``gpu``, ``host`` or ``nic``; empty for a metric that the program logs."""
        if self.metric not in TABLE:
            return ""
        return "host" if self.metric in HOST_METRICS else "nic" if self.metric in NIC_METRICS else "gpu"

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the recorded metrics that the rule needs."""
        return tuple(name for name in (self.metric, self.condition.of) if name in TABLE)

    @property
    def buckets(self) -> int:
        """Number of buckets in a window."""
        return max(1, min(_BUCKETS, int(self.window_s * 1e9) // _LEAST_BUCKET_NS))

    @property
    def bucket_ns(self) -> int:
        """Length of a bucket in nanoseconds."""
        return int(self.window_s * 1e9) // self.buckets

    def fits(self, name: str) -> bool:
        """Return whether the rule is about a metric that the program logs."""
        return fnmatch.fnmatchcase(name, self.metric)

    def prepared(self, values: Floats, divisors: Floats | None = None) -> Floats:
        """Return the numbers that statistics are computed from: values, ratios, or whether a bit is set."""
        if self.condition.of:
            if divisors is None:
                return np.full(len(values), np.nan)
            with np.errstate(divide="ignore", invalid="ignore"):
                ratios = values / divisors
            return np.where(np.isfinite(ratios), ratios, np.nan)
        if self.condition.statistic == "bits":
            valid = (values >= 0) & (values < 2.0**63)
            bits = np.where(valid, values, 0).astype(np.uint64) & np.uint64(self.condition.mask)
            return np.where(valid, (bits != 0).astype(float), np.nan)
        return np.where(np.isinf(values), np.nan, values)

    def statistic(self, windows: NDArray[np.float64]) -> Floats:
        """Return the statistic of windows; NaN if they hold too few samples to be judged.

        Parameters
        ----------
        windows
            Statistics of buckets, the buckets of a window on the first axis, :data:`COUNT` to
            :data:`INCREASE` on the last.
        """
        count, valid = windows[..., COUNT].sum(0), windows[..., VALID].sum(0)
        with np.errstate(divide="ignore", invalid="ignore"):
            found = {
                "mean": lambda: windows[..., TOTAL].sum(0) / valid,
                "bits": lambda: windows[..., TOTAL].sum(0) / valid,
                "lowest": lambda: windows[..., LOWEST].min(0),
                "highest": lambda: windows[..., HIGHEST].max(0),
                "increase": lambda: windows[..., INCREASE].sum(0),
                "rate": lambda: windows[..., INCREASE].sum(0) / self.window_s,
                "missing": lambda: 1 - valid / count,
            }[self.condition.statistic]()
        return np.where(self._judged(windows, count, valid), found, np.nan)

    def holds(self, statistic: Floats) -> NDArray[np.bool_]:
        """Return where the condition holds; never where the statistic is NaN."""
        bound = self.condition.bound
        return statistic > bound if self.condition.above else statistic < bound

    def _judged(self, windows: NDArray[np.float64], count: Floats, valid: Floats) -> NDArray[np.bool_]:
        is_missing = self.condition.statistic == "missing"
        if not self.device_kind:
            return np.asarray(count >= 1 if is_missing else valid >= _LEAST_LOGGED)
        present = windows[..., COUNT if is_missing else VALID] > 0
        allowed = int(_LARGEST_GAP * self.buckets)
        gap = longest = np.zeros(present.shape[1:])
        for row in present:
            gap = np.where(row, 0, gap + 1)
            longest = np.maximum(longest, gap)
        return np.asarray(longest <= allowed)


@dataclass(frozen=True)
class Hit:
    """A period in which a rule's condition held on one device or one logged metric.

    Parameters
    ----------
    metric
        The metric; for a pattern, the metric that matched.
    device, node, ranks
        Where the condition held; the device is empty for a metric that the program logs.
    since_ns, found_ns, until_ns
        UTC nanoseconds of the beginning of the first window in which the condition held, of the end of that
        window, and of the end of the last such window.
    value
        The statistic of the first window.
    """

    rule: Rule
    metric: str
    device: str
    node: str
    ranks: tuple[int, ...]
    since_ns: int
    found_ns: int
    until_ns: int
    value: float

    def message(self) -> str:
        """Return the event's sentence with its evidence, and the link."""
        measured = self.rule.condition.sentence(self.value, self.metric)
        ranks = ", ".join(str(rank) for rank in self.ranks[:8])
        where = f", rank{'s' if len(self.ranks) > 1 else ''} {ranks}" if ranks else ""
        evidence = f"{self.metric}: {measured}, over {_seconds(self.rule.window_s)}{where}"
        link = f" See {self.rule.link}" if self.rule.link else ""
        return f"{self.rule.sentence.rstrip('.')} ({evidence}; rule {self.rule.name}).{link}"

    def to_json(self) -> dict[str, Any]:
        """Return the hit as a dictionary that JSON can hold."""
        return {
            "rule": self.rule.name,
            "metric": self.metric,
            "device": self.device,
            "node": self.node,
            "ranks": list(self.ranks),
            "since_ns": self.since_ns,
            "found_ns": self.found_ns,
            "until_ns": self.until_ns,
            "value": self.value,
            "bound": self.rule.condition.bound,
            "message": self.message(),
            "link": self.rule.link,
        }


def empty_buckets(series: int) -> NDArray[np.float64]:
    """Return a bucket without samples for a number of series."""
    return np.tile(_EMPTY, (series, 1))


def _seconds(seconds: float) -> str:
    if seconds >= 120 and seconds % 60 == 0:
        return f"{seconds / 60:g} min"
    return f"{seconds:g} s"
