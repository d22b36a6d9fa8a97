"""Pipeline stages that have more work than the others: no rank is at fault there."""

from collections.abc import Sequence

import numpy as np

from .robust import Floats, median
from .roles import LEVELS, Roles
from .slow_periods import Rule, SlowPeriod, find_slow
from .steps import StepTable
from .verdict import Verdict, cannot_tell

#: Ranks of a stage that must share its excess, and how much of it.
_FLAT, _HALF = 0.8, 0.5
#: A partition is uneven from the beginning; an excess that begins after this share of the steps is not one.
_EARLY = 0.2


def uneven_stages(
    table: StepTable, log_work: Floats, roles: Roles, rule: Rule
) -> tuple[list[Verdict], list[int]]:
    """Return verdicts on stages, and the stages that they explain.

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
            _verdict(
                table, roles, stage=stage, ranks=stages[stage], period=period, resolution=search.resolution
            )
        )
    return verdicts, explained


def _verdict(
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
