"""Rules: a metric, a condition on a window of it, and what to say where the condition holds.

A rule is evaluated in buckets: a window has up to 20 of them, at least a second each, and a new window ends
with every bucket. So memory is bounded, and a rule gives the same hits live (:class:`.rule_watch.RuleWatch`)
and afterwards (:func:`.rule_run.hits_of`).
"""

import fnmatch
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..telemetry.metric_table import EXTRA_METRICS, GPU_METRICS, TABLE
from .robust import Floats
from .rule_condition import Condition

#: Kind of the events that hits become.
EVENT_KIND = "rule"
_BUCKETS = 20
_LEAST_BUCKET_NS = 10**9
#: Share of a window that may pass without a sample in a row.
_LARGEST_GAP = 0.25
#: Logged values that a window must hold; programs log at their own pace.
_LEAST_LOGGED = 3
#: Rows of the statistics of a bucket.
COUNT, VALID, TOTAL, LOWEST, HIGHEST, INCREASE = range(6)
_EMPTY = np.array([0, 0, 0, np.inf, -np.inf, 0])


@dataclass(frozen=True)
class Rule:
    """A rule that is ready for use.

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
        """``gpu`` or ``host``; empty for a metric that the program logs."""
        if self.metric not in TABLE:
            return ""
        return "gpu" if self.metric in GPU_METRICS or self.metric in EXTRA_METRICS else "host"

    @property
    def metrics(self) -> tuple[str, ...]:
        """Recorded metrics that it needs."""
        return tuple(name for name in (self.metric, self.condition.of) if name in TABLE)

    @property
    def buckets(self) -> int:
        """Number of buckets in a window."""
        return max(1, min(_BUCKETS, int(self.window_s * 1e9) // _LEAST_BUCKET_NS))

    @property
    def bucket_ns(self) -> int:
        """Length of a bucket."""
        return int(self.window_s * 1e9) // self.buckets

    def fits(self, name: str) -> bool:
        """Return whether the rule is about a metric that the program logs."""
        return fnmatch.fnmatchcase(name, self.metric)

    def prepared(self, values: Floats, divisors: Floats | None = None) -> Floats:
        """Return the numbers of which statistics are taken: values, ratios, or whether a bit is set."""
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
        """Return the statistic of windows; NaN where they hold too few samples to be judged.

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
    """A time in which a rule's condition held on one device or one logged metric.

    Parameters
    ----------
    metric
        The metric; of a pattern the one that it found.
    device, node, ranks
        Where; the device is empty for a metric that the program logs.
    since_ns, found_ns, until_ns
        Beginning of the first window in which it held, its end, and the end of the last such window.
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
