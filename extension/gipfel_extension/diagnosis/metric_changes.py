"""Changes of the pace in metrics that a program logs anyway: tokens per second in TensorBoard or W&B."""

import re
from collections.abc import Callable, Iterable

import numpy as np

from ..telemetry.sample import SampleTable
from ..telemetry.user_metrics import UserMetric, UserMetrics
from .pace import Change, find_changes
from .robust import Floats
from .series_changes import hardware_text
from .verdict import Verdict

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
