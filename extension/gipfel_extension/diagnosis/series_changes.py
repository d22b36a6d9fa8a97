"""Changes of series: of the hardware, together with the steps of a run, and of metrics that a program logs.

Logged metrics, such as tokens per second in TensorBoard or W&B, are examined for changes of the pace.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from ..telemetry.metric_table import unit_of
from ..telemetry.sample import Device, SampleTable, metric_names
from ..telemetry.user_metrics import UserMetric, UserMetrics
from .pace import Change, find_changes
from .robust import Floats, noise_of, quantile, student, trimmed_mean
from .verdict import Verdict

#: Least number of samples on each side of a change.
_LEAST_SAMPLES = 8
#: Probability that noise alone makes any of the examined series look changed, and the smallest change that
#: counts, in standard errors.
_FALSE, _LEAST_Z = 1e-3, 4.5
#: A change is listed if it is at least this share of the larger level and at least this multiple of the
#: series' drift (`_drift`); then the maximum number of metrics listed and of series examined.
_LEAST_MOVE, _DRIFTS, _MOST_NAMED, _MOST_SERIES = 0.05, 3.0, 6, 4000
#: Number of parts of each side; the scatter of their means shows the noise, even if it is autocorrelated.
_PARTS = 5
#: Names of rates and of durations; other metrics, such as losses, change without a cause in the hardware.
_RATE = re.compile(
    r"throughput|mfu|flops|(?:tok|sample|image|example|seq|step|iter|batch|it)\w*[_ /.-]*(?:per|/)[_ /.-]*s",
    re.IGNORECASE,
)
_DURATION = re.compile(
    r"(?:step|iter|batch|forward|backward|train)\w*?[_ /.-]*(?:time|latency|duration|seconds|secs?\b|ms\b)",
    re.IGNORECASE,
)
#: Metrics whose pace is examined, values on each side of a change that are compared with the hardware, and
#: most changes that are reported.
_MOST_METRICS, _SIDE, _MOST_CHANGES = 4, 50, 8
#: A change is the same as another one if they are at most so many values apart.
_SAME = 10


@dataclass(frozen=True)
class Cause:
    """A series that can slow steps down, and how.

    Only these series count as explanations: activity, power and traffic fall whenever fewer steps are made
    per second, so they change with every change and explain none.

    Parameters
    ----------
    slower
        1 where steps take longer when the series rises, -1 when it falls.
    least
        The smallest change that matters, in the metric's unit, or as a share of the earlier level if
        `relative`.
    """

    metric: str
    slower: int
    least: float
    relative: bool = False


CAUSES = (
    Cause("SM_CLOCK", -1, 0.03, relative=True),
    Cause("MEM_CLOCK", -1, 0.03, relative=True),
    Cause("GPU_TEMP", 1, 3.0),
    Cause("PRESSURE_CPU", 1, 0.05),
    Cause("PRESSURE_IO", 1, 0.05),
    Cause("PRESSURE_MEMORY", 1, 0.05),
    Cause("CPU_UTIL", 1, 0.10),
    Cause("PAGE_FAULTS_MAJOR", 1, 10.0),
    Cause("IO_WRITE_BYTES", 1, 50e6),
    Cause("LUSTRE_WRITE_BYTES", 1, 50e6),
    Cause("LUSTRE_METADATA_OPS", 1, 100.0),
    Cause("NFS_WRITE_BYTES", 1, 50e6),
)


@dataclass(frozen=True)
class SeriesChange:
    """A series whose change is significant, given the number of series examined.

    Parameters
    ----------
    devices
        Devices on which the series changed in this way, the most significant first.
    before, after
        Levels on the most significant device, in the metric's unit.
    z
        Change on that device, divided by its standard error.
    tried
        Number of series examined.
    """

    metric: str
    devices: tuple[Device, ...]
    before: float
    after: float
    z: float
    tried: int

    def sentence(self) -> str:
        """Return what changed, where, and among how many series."""
        return (
            f"{self.metric} changed with it, {self._levels()} ({self.z:.0f} standard errors; {self.tried} "
            "series were looked at)."
        )

    def text(self) -> str:
        """Return the metric with its levels and place, for a list."""
        return f"{self.metric} {self._levels()}"

    def _levels(self) -> str:
        unit = unit_of(self.metric)
        first = self.devices[0]
        name = first.uuid if first.index is None else f"GPU {first.index}"
        where = f"{name} of {first.node}" if first.node and first.kind == "gpu" else first.node or name
        more = f" and {len(self.devices) - 1} more" if len(self.devices) > 1 else ""
        shown = f"{_shown(self.before, unit)} to {_shown(self.after, unit)}"
        return f"from {shown} on {where}{more}"


def find_series_changes(
    table: SampleTable, at_ns: int, before_ns: int, after_ns: int, *, most: int = _MOST_NAMED
) -> tuple[SeriesChange, ...]:
    """Return the series that changed together with the steps, each metric's most significant device first.

    All series are examined, including those that merely follow the pace of the steps (activity, power,
    traffic): the result is not a list of causes. Each change is significant: the probability
    that chance changes any of the examined series this much is 1 in 1 000. It is also at least three times
    the series' drift on either side.
    """
    looked = list(islice(_moves(table, at_ns, before_ns, after_ns), _MOST_SERIES))
    # `student` uses the first terms of an expansion only, which give too low a threshold for the 8 degrees of
    # freedom here; with 4, its result is close to the exact quantile for 8.
    threshold = student(max(_LEAST_Z, quantile(_FALSE / max(1, len(looked)) / 2)), _PARTS - 1)
    clear: dict[str, list[tuple[float, Device, float, float]]] = {}
    for metric, device, (before, after, error) in looked:
        change = abs(after - before)
        least = max(_LEAST_MOVE * max(abs(before), abs(after)), 1e-9)
        z = change / max(error, least / 20)
        if change >= least and z >= threshold:
            clear.setdefault(metric, []).append((z, device, before, after))
    found = []
    for metric, own in clear.items():
        own.sort(key=lambda each: -each[0])
        z, _, before, after = own[0]
        found.append(SeriesChange(metric, tuple(each[1] for each in own), before, after, z, len(looked)))
    return tuple(sorted(found, key=lambda each: -each.z)[:most])


def _moves(
    table: SampleTable, at_ns: int, before_ns: int, after_ns: int
) -> Iterator[tuple[str, Device, tuple[float, float, float]]]:
    """Yield the levels of all series, except bit masks and energy counters."""
    for device in table.devices:
        columns = table[device.uuid]
        edges = np.searchsorted(columns["time_ns"], (before_ns, at_ns, after_ns))
        for metric in metric_names(columns):
            # A bit mask has no level, and an energy counter always rises.
            if unit_of(metric) not in ("bits", "J"):
                sides = columns[metric][edges[0] : edges[1]], columns[metric][edges[1] : edges[2]]
                levels = _levels(*sides)
                if levels is not None:
                    before, after, error = levels
                    if abs(after - before) < _DRIFTS * max(map(_drift, sides)):
                        after = before
                    yield metric, device, (before, after, max(error, _error_of_parts(sides)))


def find_explanation(
    table: SampleTable, at_ns: int, before_ns: int, after_ns: int, *, slower: bool
) -> SeriesChange | None:
    """Return the most significant series that can explain a change of the steps; None if there is none.

    Parameters
    ----------
    at_ns
        Time of the change, in UTC nanoseconds.
    before_ns, after_ns
        Beginning of the period before the change, and end of the period after it, in UTC nanoseconds.
    slower
        Whether steps take longer after the change.
    """
    found = [
        (cause, device, *levels) for cause, device, levels in _candidates(table, at_ns, before_ns, after_ns)
    ]
    threshold = max(_LEAST_Z, quantile(_FALSE / max(1, len(found)) / 2))
    clear: dict[str, list[tuple[float, Device, float, float]]] = {}
    for cause, device, before, after, error in found:
        change = (after - before) * cause.slower * (1 if slower else -1)
        least = cause.least * abs(before) if cause.relative else cause.least
        z = change / max(error, least / 20)
        if change >= least and z >= threshold:
            clear.setdefault(cause.metric, []).append((z, device, before, after))
    if not clear:
        return None
    best = max(clear, key=lambda metric: max(each[0] for each in clear[metric]))
    own = sorted(clear[best], key=lambda each: -each[0])
    z, _, before, after = own[0]
    return SeriesChange(best, tuple(each[1] for each in own), before, after, z, len(found))


def hardware_text(table: SampleTable, at_ns: int, before_ns: int, after_ns: int, *, longer: bool) -> str:
    """Return the one series that can explain a change (or None), and all series that changed with it."""
    explanation = find_explanation(table, at_ns, before_ns, after_ns, slower=longer)
    changed = find_series_changes(table, at_ns, before_ns, after_ns)
    text = (
        f" {explanation.sentence()}"
        if explanation
        else " No hardware series that can explain it changed with it."
    )
    others = [each.text() for each in changed if explanation is None or each.metric != explanation.metric]
    if others:
        return f"{text} {'Also moved' if explanation else 'Moved with it'}: {'; '.join(others)}."
    return text if explanation or changed else " No hardware series changed significantly with it."


def _candidates(
    table: SampleTable, at_ns: int, before_ns: int, after_ns: int
) -> Iterator[tuple[Cause, Device, tuple[float, float, float]]]:
    for device in table.devices:
        columns = table[device.uuid]
        edges = np.searchsorted(columns["time_ns"], (before_ns, at_ns, after_ns))
        for cause in CAUSES:
            if cause.metric in columns:
                values = columns[cause.metric]
                levels = _levels(values[edges[0] : edges[1]], values[edges[1] : edges[2]])
                if levels is not None:
                    yield cause, device, levels


def _drift(side: Floats) -> float:
    """Return by how much the two halves of one side differ."""
    known = side[~np.isnan(side)]
    halves = np.array_split(known, 2)
    return abs(float(np.median(halves[1])) - float(np.median(halves[0])))


def _error_of_parts(sides: tuple[Floats, Floats]) -> float:
    """Return the standard error of the difference of two sides, from the means of their parts."""
    variance = 0.0
    for side in sides:
        means = [float(part.mean()) for part in np.array_split(side[~np.isnan(side)], _PARTS)]
        variance += float(np.var(means, ddof=1)) / _PARTS
    return math.sqrt(variance)


def _levels(before: Floats, after: Floats) -> tuple[float, float, float] | None:
    """Return both levels and the standard error of their difference."""
    sides, variance = [], 0.0
    for side in (before, after):
        own = side[~np.isnan(side)][None, :]
        if own.shape[1] < _LEAST_SAMPLES:
            return None
        sides.append(float(trimmed_mean(own)[0]))
        variance += float(noise_of(own).error(own.shape[1])[0]) ** 2
    return sides[0], sides[1], math.sqrt(variance)


def _shown(value: float, unit: str) -> str:
    if unit == "1":
        return f"{value:.0%}"
    return f"{value:.4g} {unit}"


def metric_changes(
    metrics: UserMetrics, samples: Callable[[], SampleTable | None], known_ns: Iterable[int] = ()
) -> tuple[Verdict, ...]:
    """Return the changes of rates and durations that were logged, with the hardware series that moved too.

    Parameters
    ----------
    samples
        Returns the job's samples; called only if there is a change.
    known_ns
        Times of changes that were found otherwise (UTC nanoseconds), which are not reported again.
    """
    found: list[Verdict] = []
    known = list(known_ns)
    for metric, is_rate in _paces(metrics):
        seconds: Floats = np.where(metric.values > 0, metric.values, np.nan)
        if is_rate:
            seconds = 1 / seconds
        near = _SAME * float(np.median(np.diff(metric.time_ns))) if len(metric.time_ns) > 1 else 0.0
        for change in find_changes(seconds).changes:
            since = int(metric.time_ns[change.column])
            if all(abs(since - each) > near for each in known):
                known.append(since)
                found.append(_verdict(metric, change, samples(), is_rate=is_rate))
    return tuple(found[:_MOST_CHANGES])


def _paces(metrics: UserMetrics) -> list[tuple[UserMetric, bool]]:
    """Return rates and durations of the newest launch's lowest rank, and whether each is a rate."""
    found = []
    for name in metrics.names:
        is_rate = bool(_RATE.search(name))
        # Launches' own steps are examined by themselves.
        if name in ("step_s", "work_s") or not (is_rate or _DURATION.search(name)):
            continue
        series = metrics.find(name)
        if series is not None and len(series.time_ns):
            found.append((series, is_rate))
    return found[:_MOST_METRICS]


def _verdict(metric: UserMetric, change: Change, table: SampleTable | None, *, is_rate: bool) -> Verdict:
    since, last = int(metric.time_ns[change.column]), len(metric.time_ns) - 1
    before, after = change.before_s, change.after_s
    if is_rate:
        before, after = 1 / before, 1 / after
    share = after / before - 1
    text = (
        f"{metric.name} {'rises' if share > 0 else 'falls'} by {abs(share):.0%}: {after:.4g} instead of "
        f"{before:.4g}."
    )
    if table is not None and since > 0:
        first, end = max(0, change.column - _SIDE), min(last, change.column + _SIDE)
        times = int(metric.time_ns[first]), int(metric.time_ns[end])
        text += hardware_text(table, since, *times, longer=change.share > 0)
    return Verdict("change", text, since=since, confidence=change.confidence)
