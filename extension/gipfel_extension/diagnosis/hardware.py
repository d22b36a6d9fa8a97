"""Find why a rank is slow, from the samples of its GPU beside those of its peers.

Tensor activity is the ratio of active to elapsed cycles, so for equal work its product with the clock is
equal for all peers, however long each takes. A GPU that waits for others spins in a collective's kernel, so
its engine is active. Therefore, for a slow rank,

- a lower clock with equal work means ``clock``: power, heat or a clock limit;
- more work, with SMs or engine busier as well, means ``more_work``;
- an engine and SMs that are less active than the peers' mean ``host``: the GPU waits for its own process.

Two series must agree, each with a difference beyond the scatter of the peers.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..telemetry.sample import Columns, SampleTable
from .robust import Floats, median, median_of_others, scatter, trimmed_mean
from .roles import GIVE_ROLES, LEAST_PEERS, Roles
from .slow_periods import Rule, SlowPeriod, find_slow
from .stragglers import Accused
from .verdict import Verdict, cannot_tell, named

#: Smallest difference that matters, as a share: of a clock, and of other series.
_CLOCK, _OTHER = 0.03, 0.05
#: NVML's nvmlClocksEventReasons: hardware slowdown, software and hardware thermal slowdown, power brake.
_SLOWED = 0x08 | 0x20 | 0x40 | 0x80
#: Without steps: number of samples per average, and averages in the shortest window, which has 60 samples.
_BIN_SAMPLES, _BINS = 5, 12

Gpus = Mapping[int, Sequence[str]]
#: Logarithm of the level of each series, by name; NaN if missing.
Levels = Mapping[str, float]


@dataclass(frozen=True)
class _Deviation:
    """Difference of slow ranks from their peers in one series, as a logarithm, and the peers' scatter."""

    value: float
    scatter: float

    def beyond(self, least: float) -> bool:
        return self.value > max(math.log1p(least), 3 * self.scatter)

    def below(self, least: float) -> bool:
        return _Deviation(-self.value, self.scatter).beyond(least)


def explain(verdict: Verdict, accused: Accused, table: SampleTable, gpus: Gpus) -> Verdict:
    """Return the verdict on slow ranks, with the cause if samples of their GPUs show one, else unchanged."""
    window = accused.first_ns, accused.last_ns + 1
    own = [levels for rank in accused.ranks if (levels := _levels(table, gpus.get(rank, ()), window))]
    peers = [levels for rank in accused.peers if (levels := _levels(table, gpus.get(rank, ()), window))]
    if not own or len(peers) < LEAST_PEERS - 1:
        return verdict
    found = {name: deviation for name in own[0] if (deviation := _deviation(name, own, peers)) is not None}
    kind, text = _cause(found, math.log1p(accused.excess))
    if not kind:
        return replace(verdict, evidence=f"{verdict.evidence} {text}".rstrip())
    if kind == "clock":
        text += _slowed(table, accused, gpus, window)
    # Samples are independent evidence, but other causes could look the same.
    return replace(
        verdict, kind=kind, evidence=f"{verdict.evidence} {text}", confidence=0.9 * verdict.confidence
    )


def _cause(found: Mapping[str, _Deviation], excess: float) -> tuple[str, str]:
    """Return the kind of verdict that the series support, empty for none, and a sentence."""
    none = _Deviation(math.nan, math.nan)
    clock, work, engine, sm = (found.get(name, none) for name in ("clock", "work", "engine", "sm"))
    equal_work = math.isnan(work.value) or abs(work.value) < max(excess / 2, 3 * work.scatter)
    if clock.below(_CLOCK) and equal_work:
        return "clock", f"Its clock is {-math.expm1(clock.value):.0%} below its peers', for equal work."
    if work.beyond(_OTHER) and work.value > excess / 2 and (sm.value > 0 or engine.value > 0):
        return (
            "more_work",
            f"It computes {math.expm1(work.value):.0%} more than its peers (tensor activity x clock).",
        )
    if engine.below(_OTHER) and sm.below(_OTHER) and not clock.below(_CLOCK):
        return "host", (
            f"Its GPU is active {-math.expm1(engine.value):.0%} less than its peers', which wait for it: "
            "look at its data loader, interpreter and CPU cores."
        )
    if math.isnan(clock.value) and math.isnan(work.value):
        return "", ""
    return "", "Samples show no cause: its clock and work are like its peers'."


def _levels(table: SampleTable, uuids: Sequence[str], window: tuple[int, int]) -> Levels | None:
    """Return the levels of a rank's GPUs in a window; None with fewer than three samples."""
    parts = [
        series for uuid in uuids if uuid in table and (series := _series(table, uuid, window)) is not None
    ]
    if not parts:
        return None
    return {
        name: float(np.mean([float(trimmed_mean(part[name][None, :])[0]) for part in parts]))
        for name in parts[0]
    }


def _series(table: SampleTable, uuid: str, window: tuple[int, int]) -> dict[str, Floats] | None:
    columns = table[uuid]
    first, last = np.searchsorted(columns["time_ns"], window)
    if last - first < 3:
        return None
    missing = np.full(last - first, np.nan)
    return _compared(
        lambda name: np.asarray(columns[name][first:last], np.float64) if name in columns else missing
    )


def _compared(values_of: Callable[[str], Floats]) -> dict[str, Floats]:
    """Return the compared series as logarithms; the last axis of a metric's values is time."""

    def logs(values: Floats) -> Floats:
        return np.log(np.where(values > 0, values, np.nan))

    tensor, sm, clock = (values_of(name) for name in ("PIPE_TENSOR_ACTIVE", "SM_ACTIVE", "SM_CLOCK"))
    busy = np.where(np.nan_to_num(tensor).max(axis=-1, keepdims=True) > 0, tensor, sm)
    return {
        "clock": logs(clock),
        "work": logs(busy * clock),
        "engine": logs(values_of("GR_ENGINE_ACTIVE")),
        "sm": logs(sm),
    }


def _deviation(name: str, own: Sequence[Levels], peers: Sequence[Levels]) -> _Deviation | None:
    values = np.array([levels[name] for levels in peers])
    mine = float(median(np.array([levels[name] for levels in own])))
    if math.isnan(mine) or np.isnan(values).mean() > 0.5:
        return None
    return _Deviation(mine - float(median(values)), float(scatter(values)))


def _slowed(table: SampleTable, accused: Accused, gpus: Gpus, window: tuple[int, int]) -> str:
    """Return a sentence on the driver's reasons for lowered clocks; empty if it reports none."""
    shares = []
    for uuid in (uuid for rank in accused.ranks for uuid in gpus.get(rank, ()) if uuid in table):
        columns = table[uuid]
        first, last = np.searchsorted(columns["time_ns"], window)
        reasons = columns.get("CLOCKS_EVENT_REASONS", np.empty(0))[first:last]
        known = reasons[~np.isnan(reasons)].astype(np.int64)
        if len(known):
            shares.append(float(((known & _SLOWED) != 0).mean()))
    if shares and max(shares) >= 0.1:
        return f" The driver reports slowdown by heat or power in {max(shares):.0%} of the samples."
    return ""


def diagnose_samples(table: SampleTable, gpus: Gpus, roles: Roles) -> list[Verdict]:
    """Return verdicts from samples alone, for a run that logged no steps; none if roles are unknown.

    Ranks are compared in means of five samples, in windows of at least 60.
    """
    ranks = sorted(rank for rank, own in gpus.items() if any(uuid in table for uuid in own))
    steps = "No steps are logged: log(step=…, step_s=…, work_s=…) shows who is slow."
    if not ranks:
        return [cannot_tell(f"no GPU of a rank was recorded. {steps}")]
    if len(ranks) < LEAST_PEERS:
        return [cannot_tell(f"samples of {len(ranks)} ranks are too few to compare. {steps}")]
    times, matrices = _matrices(table, ranks, gpus)
    if len(times) < _BINS:
        return [cannot_tell(f"{len(times) * _BIN_SAMPLES} samples are too few: 60 are needed. {steps}")]
    if not roles.known:
        return [cannot_tell(f"roles are unknown. {GIVE_ROLES} {steps}")]
    row = {rank: index for index, rank in enumerate(ranks)}
    groups = [[row[rank] for rank in own] for own in roles.groups(ranks) if len(own) >= LEAST_PEERS]
    found = {name: _outstanding(values, groups) for name, values in matrices.items()}
    verdicts = []
    for index in sorted({index for own in found.values() for index in own}):
        verdict = _from_samples(
            ranks[index], {name: own.get(index) for name, own in found.items()}, times, gpus
        )
        if verdict is not None:
            verdicts.append(verdict)
    return verdicts or [
        cannot_tell(f"samples show no rank whose GPU differs from those of its peers. {steps}")
    ]


def _matrices(
    table: SampleTable, ranks: Sequence[int], gpus: Gpus
) -> tuple[NDArray[np.int64], dict[str, Floats]]:
    """Return the start times of the bins, and each series with one row per rank and one column per bin."""
    uuids = [next(uuid for uuid in gpus[rank] if uuid in table) for rank in ranks]
    every = [table[uuid]["time_ns"] for uuid in uuids]
    first, last = max(int(t[0]) for t in every if len(t)), min(int(t[-1]) for t in every if len(t))
    interval = table.interval or float(np.median(np.diff(max(every, key=len)))) / 1e9
    width = max(1, int(interval * _BIN_SAMPLES * 1e9))
    times: NDArray[np.int64] = np.arange(first, last, width, dtype=np.int64)[:-1]
    edges = np.append(times, times[-1:] + width)
    found = [_binned(table[uuid], edges) for uuid in uuids]
    matrices = {name: np.array([each[name] for each in found]) for name in ("clock", "work", "engine", "sm")}
    return times, matrices


def _binned(columns: Columns, edges: NDArray[np.int64]) -> dict[str, Floats]:
    """Return the median of each series in each bin; NaN where a bin has fewer than three samples."""
    places = np.searchsorted(columns["time_ns"], edges)
    counts = np.diff(places)
    index = places[:-1, None] + np.arange(max(1, counts.max(initial=0)))
    inside = index < places[1:, None]
    index = np.where(inside, index, 0)
    missing = np.full(index.shape, np.nan)
    found = _compared(
        lambda name: (
            np.where(inside, np.asarray(columns[name], np.float64)[index], np.nan)
            if name in columns
            else missing
        )
    )
    return {name: np.where(counts < 3, np.nan, median(values, axis=1)) for name, values in found.items()}


def _outstanding(values: Floats, groups: Sequence[Sequence[int]]) -> dict[int, tuple[int, SlowPeriod]]:
    """Return rows that are above (1) or below (-1) their peers."""
    found: dict[int, tuple[int, SlowPeriod]] = {}
    judged = [index for group in groups for index in group]
    if not judged or np.isnan(values[judged]).mean() > 0.5:
        return found
    excess = np.full_like(values, np.nan)
    for group in groups:
        excess[list(group)] = values[list(group)] - median_of_others(values[list(group)])
    rule = Rule(least=_CLOCK, shortest=_BINS, window=2 * _BINS)
    for sign in (1, -1):
        for period in find_slow(sign * excess[judged], rule).periods:
            found.setdefault(judged[period.row], (sign, period))
    return found


def _from_samples(
    rank: int, found: Mapping[str, tuple[int, SlowPeriod] | None], times: NDArray[np.int64], gpus: Gpus
) -> Verdict | None:
    signs = {name: own[0] for name, own in found.items() if own is not None}
    periods = [own[1] for own in found.values() if own is not None]
    since = int(times[min(period.first for period in periods)])
    size = {name: own[1].excess for name, own in found.items() if own is not None}
    unit = f"gpu {gpus[rank][0]}"
    who = named((rank,)).capitalize()
    if signs.get("clock") == -1 and signs.get("work", 0) != 1:
        text = f"{who}: the clock of its GPU is {size['clock']:.0%} lower than its peers'."
        return Verdict("clock", text, (rank,), None, unit, since, 0.8 if "work" not in signs else 0.6)
    if signs.get("work") == 1 and 1 in (signs.get("sm"), signs.get("engine")):
        text = f"{who} computes {size['work']:.0%} more than its peers (tensor activity x clock)."
        return Verdict("more_work", text, (rank,), None, None, since, 0.7)
    if signs.get("engine") == -1 and signs.get("sm") == -1:
        text = (
            f"{who}: its GPU is active {size['engine']:.0%} less than its peers', which wait for it. Look at "
            "its data loader, interpreter and CPU cores."
        )
        return Verdict("host", text, (rank,), None, None, since, 0.7)
    return None
