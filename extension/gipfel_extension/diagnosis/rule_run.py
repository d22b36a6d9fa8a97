"""Rules applied to a run that was recorded."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..telemetry.sample import SampleTable
from ..telemetry.user_metrics import UserMetrics
from .robust import Floats
from .rules import COUNT, HIGHEST, INCREASE, LOWEST, TOTAL, VALID, Hit, Rule, empty_buckets

#: Buckets of one series: of a second, they last for 11 days.
_MOST_BUCKETS = 1_000_000
#: Windows that are evaluated together, which bounds memory.
_PIECE = 20_000
Times = NDArray[np.int64]


@dataclass(frozen=True)
class Series:
    """Values of one metric of one device, or of one rank that logs it, sorted by time."""

    metric: str
    device: str
    node: str
    ranks: tuple[int, ...]
    times: Times
    values: Floats


def hits_of(
    rules: Iterable[Rule],
    table: SampleTable,
    logged: UserMetrics = UserMetrics(),
    *,
    ranks_of: Callable[[str], tuple[int, ...]] = lambda _: (),
    selected: Callable[[Rule, Sequence[int]], bool] = lambda _, __: True,
) -> list[Hit]:
    """Return all hits of rules in a run, sorted by time.

    Parameters
    ----------
    ranks_of
        Function that returns the ranks on a GPU, by UUID, or on a node, by its name.
    selected
        Function that returns whether one of some ranks is in a rule's ``where``.
    """
    found: list[Hit] = []
    for rule in rules:
        for series in _series(rule, table, logged, ranks_of):
            if not rule.where or selected(rule, series.ranks):
                found += _hits(rule, series)
    return sorted(found, key=lambda hit: (hit.found_ns, hit.rule.name, hit.node, hit.device))


def _series(
    rule: Rule, table: SampleTable, logged: UserMetrics, ranks_of: Callable[[str], tuple[int, ...]]
) -> Iterator[Series]:
    if not rule.device_kind:
        for each in logged.series:
            if rule.fits(each.name):
                own = () if each.rank is None else (each.rank,)
                yield Series(each.name, "", each.node, own, each.time_ns, rule.prepared(each.values))
        return
    for device in table.devices:
        columns = table[device.uuid]
        if device.kind == rule.device_kind and rule.metric in columns:
            values = rule.prepared(columns[rule.metric], columns.get(rule.condition.of))
            ranks = ranks_of(device.uuid if device.kind == "gpu" else device.node)
            yield Series(rule.metric, device.uuid, device.node, ranks, columns["time_ns"], values)


def _hits(rule: Rule, series: Series) -> Iterator[Hit]:
    if not len(series.times):
        return
    buckets, first = bucket_statistics(series.times, series.values, rule.bucket_ns)
    width = rule.buckets
    # Devices are recorded all the time: of the last bucket there is only a part, and windows are full. What a
    # program logs counts from its first value on, and to its last.
    if not rule.device_kind:
        buckets, first = (
            np.concatenate((empty_buckets(width - 1), buckets, empty_buckets(1))),
            first - width + 1,
        )
    values = np.full(len(buckets), np.nan)
    for start in range(width - 1, len(buckets) - 1, _PIECE):
        end = min(start + _PIECE, len(buckets) - 1)
        piece = buckets[start - width + 1 : end]
        values[start:end] = rule.statistic(
            np.stack([piece[offset : offset + end - start] for offset in range(width)])
        )
    held = np.flatnonzero(rule.holds(values))
    if not len(held):
        return
    for group in np.split(held, np.flatnonzero(np.diff(held) > width) + 1):
        found, last = int(group[0]), int(group[-1])
        found_ns, until_ns = ((first + bucket + 1) * rule.bucket_ns for bucket in (found, last))
        since_ns = found_ns - width * rule.bucket_ns
        place = series.metric, series.device, series.node, series.ranks
        yield Hit(rule, *place, since_ns, found_ns, until_ns, float(values[found]))


def bucket_statistics(times: Times, values: Floats, bucket_ns: int) -> tuple[NDArray[np.float64], int]:
    """Return the statistics of each bucket from the first to the last sample, and the first one's number.

    A longer series is cut to its newest 1 000 000 buckets.
    """
    numbers = times // bucket_ns
    first = max(int(numbers[0]), int(numbers[-1]) - _MOST_BUCKETS + 1)
    kept = numbers >= first
    numbers, values = numbers[kept] - first, values[kept]
    found = empty_buckets(int(numbers[-1]) + 1)
    starts = np.flatnonzero(np.diff(numbers, prepend=-1))
    rows = numbers[starts]
    valid = ~np.isnan(values)
    found[rows, COUNT] = np.diff(np.append(starts, len(numbers)))
    found[rows, VALID] = np.add.reduceat(valid, starts, dtype=np.float64)
    found[rows, TOTAL] = np.add.reduceat(np.where(valid, values, 0), starts)
    found[rows, LOWEST] = np.minimum.reduceat(np.where(valid, values, np.inf), starts)
    found[rows, HIGHEST] = np.maximum.reduceat(np.where(valid, values, -np.inf), starts)
    own = values[valid]
    np.add.at(found[:, INCREASE], numbers[valid][1:], np.maximum(np.diff(own), 0))
    return found, first
