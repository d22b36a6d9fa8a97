"""Find the ranks, unit or stage that keeps a job waiting, from the steps of its ranks.

Causes that explain many ranks come first, then what is left: an uneven stage, a slow unit, slow ranks, uneven
samples. A rank is named only in comparison with ranks of equal role. If roles are unknown, a rank is named
only if it became slower than it was before, and no other rank did.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from .robust import Floats, median, median_of_others, noise_of, trimmed_mean
from .roles import GIVE_ROLES, LEAST_PEERS, LEVELS, Roles
from .slow_periods import Rule, SlowPeriod, find_slow, find_slow_units, shared_units
from .steps import StepTable
from .verdict import Verdict, cannot_tell, named

#: Number of steps at the beginning of a run, which compile, allocate and fill caches.
_WARM_UP = 10
#: Steps that take this many times as long as usual count as evaluations and checkpoints, unless more than
#: this share of the steps does.
_LONG, _MOST_LONG = 1.5, 0.2
#: Number of steps in which a rank's own usual level is measured if roles are unknown.
_BASELINE = 50
#: Samples are uneven from this scatter of work from step to step, and this share of time lost to waiting for
#: the slowest rank.
_UNEVEN, _COST = 0.08, 0.10
_REMEMBERS = 0.3
#: Share of a stage's ranks that must have the stage's excess, and the share of the excess that counts.
_FLAT, _HALF = 0.8, 0.5
#: An uneven partition is uneven from the beginning; a later beginning than this share of the steps rules it
#: out.
_EARLY = 0.2
#: Highest confidence that is claimed; simulations have not resolved a higher one.
_SUREST = 0.99


@dataclass(frozen=True)
class Accused:
    """Slow ranks whose hardware samples may explain a verdict.

    `verdict` is the index in `Findings.verdicts`; `first_ns` and `last_ns` bound the slow period in UTC
    nanoseconds; `excess` is a share.
    """

    verdict: int
    ranks: tuple[int, ...]
    peers: tuple[int, ...]
    first_ns: int
    last_ns: int
    excess: float


@dataclass
class Findings:
    """Findings from the steps of a job.

    Parameters
    ----------
    resolution
        Smallest excess of a rank, as a share, that would have been found in 20 steps; None if no rank was
        judged.
    """

    verdicts: list[Verdict] = field(default_factory=list)
    accused: list[Accused] = field(default_factory=list)
    resolution: float | None = None


def diagnose_steps(
    table: StepTable, roles: Roles | None = None, *, rule: Rule | None = None, warm_up: int = _WARM_UP
) -> Findings:
    """Return verdicts on the ranks, units or stages that keep a job waiting.

    Parameters
    ----------
    warm_up
        Number of steps at the beginning that are left out; at most a third of all steps are.
    """
    roles, rule = roles or Roles(), rule or Rule()
    found = Findings()
    if len(table.ranks) < 2:
        found.verdicts.append(cannot_tell("a single rank has no other rank to be compared with."))
        return found
    if np.isnan(table.work_s).mean() > 0.5:
        found.verdicts.append(
            cannot_tell(
                "all ranks of a step end together, and their own work (work_s: the step without waiting for "
                "others) is not logged. Log it: log(step=…, step_s=…, work_s=…)."
            )
        )
        return found
    table = usable_steps(table.part(min(warm_up, len(table.steps) // 3)))
    if len(table.steps) < rule.shortest:
        count = f"{len(table.steps)} step{'' if len(table.steps) == 1 else 's'}"
        found.verdicts.append(cannot_tell(f"{count} beyond warm-up are too few: {rule.shortest} are needed."))
        return found
    log_work = np.log(table.work_s)
    if roles.known:
        _with_roles(found, table, log_work, roles, rule)
    else:
        _without_roles(found, table, log_work, rule)
    uneven = _uneven_samples(table, log_work)
    if uneven is not None:
        found.verdicts.append(uneven)
    return found


def usable_steps(table: StepTable) -> StepTable:
    """Return the table without evaluations, checkpoints and other steps that are long for all ranks."""
    whole = median(table.work_s, axis=0)
    usual = whole <= _LONG * float(median(whole))
    return table.chosen(usual) if (~usual).mean() <= _MOST_LONG else table


def _with_roles(found: Findings, table: StepTable, log_work: Floats, roles: Roles, rule: Rule) -> None:
    ranks = [int(rank) for rank in table.ranks]
    row = {rank: index for index, rank in enumerate(ranks)}
    stages, explained = _uneven_stages(table, log_work, roles, rule)
    found.verdicts += stages
    units = find_slow_units(log_work, ranks, roles, rule)
    in_units = {rank for each in units for rank in each.ranks}
    for each in units:
        others = tuple(sorted(set(ranks) - in_units))
        _accuse(found, table, each.ranks, each.unit, period=each.period, peers=others, sure=0.97)
    groups = [group for group in roles.groups(ranks) if len(group) >= LEAST_PEERS - 1]
    large = [group for group in groups if len(group) >= LEAST_PEERS]
    if not large and not explained and not units:
        size = max((len(group) for group in roles.groups(ranks)), default=0)
        found.verdicts.append(
            cannot_tell(
                f"no rank has more than {size - 1} peer{'' if size == 2 else 's'} of equal role: "
                f"a group of {LEAST_PEERS} is needed."
            )
        )
    if not groups:
        return
    excess = np.full_like(log_work, np.nan)
    for group in groups:
        rows = [row[rank] for rank in group]
        excess[rows] = log_work[rows] - median_of_others(log_work[rows])
    judged = [row[rank] for group in groups for rank in group]
    search = find_slow(excess[judged], rule)
    small = {rank for group in groups if len(group) < LEAST_PEERS for rank in group}
    if large:
        found.resolution = search.resolution
    periods = [(ranks[judged[each.row]], each) for each in search.periods]
    found.verdicts += [_too_few_peers(table, *each) for each in periods if each[0] in small]
    left = [(rank, period) for rank, period in periods if rank not in small and rank not in in_units]
    peers = {rank: tuple(other for other in group if other != rank) for group in large for rank in group}
    for together in _at_one_time(left):
        slow = dict(together)
        for shared in shared_units(slow, sorted(peers), roles):
            period = max((slow[rank] for rank in shared.ranks), key=lambda each: each.z)
            beside = {other for rank in shared.ranks for other in peers[rank]}.difference(slow)
            size = min(len(peers[rank]) for rank in shared.ranks)
            sure = _SUREST if size >= 7 else 0.95
            _accuse(
                found, table, shared.ranks, shared.unit, period=period, peers=tuple(sorted(beside)), sure=sure
            )


def _uneven_stages(
    table: StepTable, log_work: Floats, roles: Roles, rule: Rule
) -> tuple[list[Verdict], list[int]]:
    """Return verdicts on uneven stages, and the numbers of these stages.

    Parameters
    ----------
    log_work
        Logarithm of the work of each rank and step, rows as in the table.
    """
    row = {int(rank): index for index, rank in enumerate(table.ranks)}
    stages = roles.stages(row)
    if len(stages) < 2:
        return [], []
    numbers = sorted(stages)
    members = {stage: log_work[[row[rank] for rank in stages[stage]]] for stage in numbers}
    levels = np.array([median(members[stage], axis=0) for stage in numbers])
    others = np.array([median(np.delete(levels, index, axis=0), axis=0) for index in range(len(numbers))])
    search = find_slow(levels - others, rule, alike=False)
    verdicts, explained = [], []
    for period in search.periods:
        stage = numbers[period.row]
        part = slice(period.first, period.last + 1)
        own = median(members[stage][:, part] - others[period.row][part], axis=1)
        if stage in explained or (own > _HALF * np.log1p(period.excess)).mean() < _FLAT:
            continue
        explained.append(stage)
        verdicts.append(
            _stage_verdict(
                table, roles, stage=stage, ranks=stages[stage], period=period, resolution=search.resolution
            )
        )
    return verdicts, explained


def _stage_verdict(
    table: StepTable, roles: Roles, *, stage: int, ranks: Sequence[int], period: SlowPeriod, resolution: float
) -> Verdict:
    since = int(table.time_ns[period.first])
    text = (
        f"Stage {stage} works {period.excess:.0%} longer per step than the other stages, "
        f"all of its {len(ranks)} ranks alike"
    )
    if period.first > _EARLY * len(table.steps):
        return cannot_tell(
            f"{text[0].lower()}{text[1:]}, and only from step {int(table.steps[period.first])} on: layers "
            "are not moved while a job runs. See what changed for all of them then.",
            since=since,
        )
    confidence = 0.97 if period.excess > 2 * resolution else 0.9
    text += f" (steps {int(table.steps[period.first])} to {int(table.steps[period.last])})."
    for level in LEVELS[:2]:
        units = roles.units(level, ranks)
        if len(units) == 1 and len(roles.units(level, roles.places)) > 1:
            name = next(iter(units))
            if set(roles.units(level, table.ranks.tolist())[name]) == set(ranks):
                text += f" They alone are on {level} {name}: were that slow, it would look the same."
                confidence = 0.5
                break
    return Verdict("uneven_stage", f"{text} Move layers to other stages.", (), stage, None, since, confidence)


def _too_few_peers(table: StepTable, rank: int, period: SlowPeriod) -> Verdict:
    """Return the warning that a rank of a group of three is slow."""
    return cannot_tell(
        f"{_slow_text(table, (rank,), period)}, but only 2 ranks have its role: a group of {LEAST_PEERS} is "
        "needed to accuse one.",
        since=int(table.time_ns[period.first]),
    )


def _at_one_time(periods: Sequence[tuple[int, SlowPeriod]]) -> list[list[tuple[int, SlowPeriod]]]:
    """Return periods in groups of different ranks' periods that mostly overlap."""
    found: list[list[tuple[int, SlowPeriod]]] = []
    for rank, period in sorted(periods, key=lambda each: each[1].first - each[1].last):
        for together in found:
            other = together[0][1]
            common = min(period.last, other.last) - max(period.first, other.first) + 1
            if 2 * common >= period.last - period.first + 1 and all(rank != each[0] for each in together):
                together.append((rank, period))
                break
        else:
            found.append([(rank, period)])
    return found


def _accuse(
    found: Findings,
    table: StepTable,
    ranks: tuple[int, ...],
    unit: str | None,
    *,
    period: SlowPeriod,
    peers: tuple[int, ...],
    sure: float,
) -> None:
    text = _slow_text(table, ranks, period)
    where = (
        f" What they share is {unit}." if unit and len(ranks) > 1 else f" It runs on {unit}." if unit else ""
    )
    since, until = int(table.time_ns[period.first]), int(table.time_ns[period.last])
    found.accused.append(Accused(len(found.verdicts), ranks, peers, since, until, period.excess))
    found.verdicts.append(
        Verdict("slow_rank", f"{text[0].upper()}{text[1:]}.{where}", ranks, None, unit, since, sure)
    )


def _slow_text(table: StepTable, ranks: tuple[int, ...], period: SlowPeriod) -> str:
    first, last = int(table.steps[period.first]), int(table.steps[period.last])
    one = len(ranks) == 1
    return (
        f"{named(ranks)} {'works' if one else 'work'} {period.excess:.0%} longer than peers of equal role in "
        f"steps {first} to {last} ({period.share:.0%} of these steps, {period.z:.0f} standard errors)"
    )


def _without_roles(found: Findings, table: StepTable, log_work: Floats, rule: Rule) -> None:
    """Name a rank that became slower than it was before, if it is the only one at that time."""
    ranks = [int(rank) for rank in table.ranks]
    missing = f"roles are unknown: a stage with more layers would look the same. {GIVE_ROLES}"
    baseline = min(_BASELINE, len(table.steps) // 2)
    if len(ranks) < LEAST_PEERS:
        found.verdicts.append(cannot_tell(f"{len(ranks)} ranks are too few to compare, and their {missing}"))
        return
    own = log_work - trimmed_mean(log_work[:, :baseline])[:, None]
    if baseline >= rule.shortest and len(table.steps) - baseline >= rule.shortest:
        later = own[:, baseline:]
        excess = later - median_of_others(later)
        search = find_slow(excess, rule, baseline=baseline)
        found.resolution = search.resolution
        for together in _at_one_time([(ranks[each.row], each) for each in search.periods]):
            _became_slow(found, table.part(baseline), together, ranks, excess)
    started = find_slow(log_work - median_of_others(log_work), rule)
    slow = {rank for each in found.accused for rank in each.ranks}
    always = tuple(sorted({ranks[each.row] for each in started.periods if each.first < baseline} - slow))
    spread = trimmed_mean(log_work - median(log_work, axis=0))
    others = np.array([rank not in slow for rank in ranks])
    # Each rank may have been the only slow one for a time.
    apart = float(np.nanmax(spread[others]) - median(spread[others])) if others.any() else 0.0
    if always:
        most = max(each.excess for each in started.periods if ranks[each.row] in always)
        verb = "works" if len(always) == 1 else "work"
        text = f"{named(always)} {verb} up to {most:.0%} longer than the others, and {missing}"
        found.verdicts.append(cannot_tell(text))
    elif apart > max(math.log1p(rule.least), rule.z(len(ranks), len(table.steps)) * _level_error(log_work)):
        found.verdicts.append(
            cannot_tell(f"ranks differ by up to {math.expm1(apart):.0%} from the median, and their {missing}")
        )


def _level_error(log_work: Floats) -> float:
    noise = noise_of(log_work - median(log_work, axis=0))
    return float(median(noise.error(log_work.shape[1])))


def _became_slow(
    found: Findings,
    table: StepTable,
    together: list[tuple[int, SlowPeriod]],
    ranks: Sequence[int],
    excess: Floats,
) -> None:
    period = together[0][1]
    # If a whole stage becomes slow, noise may make only one of its ranks significant.
    levels = trimmed_mean(excess[:, period.first : period.last + 1])
    half = math.log1p(period.excess) / 2
    also = {ranks[row] for row in np.flatnonzero(levels > half).tolist()}
    slow = tuple(sorted(also.union(rank for rank, _ in together)))
    step = int(table.steps[period.first])
    if len(slow) == 1:
        text = (
            f"Rank {slow[0]} works {period.excess:.0%} longer from step {step} on than it did before, and no "
            f"other rank does ({period.z:.0f} standard errors). Roles are unknown: compared with itself."
        )
        since, until = int(table.time_ns[period.first]), int(table.time_ns[period.last])
        peers = tuple(rank for rank in ranks if rank not in slow)
        found.accused.append(Accused(len(found.verdicts), slow, peers, since, until, period.excess))
        found.verdicts.append(Verdict("slow_rank", text, slow, None, None, since, 0.9))
        return
    found.verdicts.append(
        cannot_tell(
            f"{named(slow)} became up to {period.excess:.0%} slower together at step {step}: what they "
            f"share is slow, a role or hardware, and roles are unknown. {GIVE_ROLES}",
            since=int(table.time_ns[period.first]),
        )
    )


def _uneven_samples(table: StepTable, log_work: Floats) -> Verdict | None:
    """Return the verdict that work differs between samples, so that a different rank is slowest each time."""
    count, steps = log_work.shape
    if count < LEAST_PEERS or steps < 20:
        return None
    own = log_work - trimmed_mean(log_work)[:, None]
    own = own - median(own, axis=0)
    noise = noise_of(own)
    sigma = float(median(noise.sigma))
    filled = np.where(np.isnan(own), -np.inf, own)
    slowest = np.bincount(filled.argmax(axis=0), minlength=count)
    cost = math.expm1(float(median(filled.max(axis=0))))
    rotates = slowest.max() <= max(0.2, 2.5 / count) * steps
    if sigma < _UNEVEN or cost < _COST or not rotates or noise.rho > _REMEMBERS:
        return None
    same = slowest.max() / steps
    text = (
        f"The work of a step differs by {sigma:.0%} between ranks and from step to step, and another rank is "
        f"the slowest each time (the same one in at most {same:.0%} of the steps). The slowest takes "
        f"{cost:.0%} longer than the median. No rank is at fault: pack or sort samples by length, or look "
        "for what interrupts all ranks at random."
    )
    return Verdict("uneven_samples", text, (), None, None, int(table.time_ns[0]), 0.7)
