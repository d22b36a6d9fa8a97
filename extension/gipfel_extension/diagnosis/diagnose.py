"""The whole diagnosis of a run or a table of steps: who is slow, why, and what changed."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ..telemetry.sample import SampleTable
from ..telemetry.user_metrics import UserMetrics
from .hardware import Gpus, diagnose_samples, explain
from .pace import Change, find_changes
from .phases import RunPhases, find_phases
from .robust import median
from .roles import Roles
from .series_changes import hardware_text, metric_changes
from .steps import StepTable
from .stragglers import diagnose_steps
from .verdict import Verdict, cannot_tell

#: Number of steps on each side of a change that are compared, and most changes that are explained.
_SIDE, _MOST_EXPLAINED = 50, 8
#: Communication became slower if waiting is at least this share of the additional time, and if work changed
#: by less than this share of it.
_WAITING, _SAME_WORK = 0.7, 0.3


@dataclass(frozen=True)
class Diagnosis:
    """Verdicts on a job.

    Parameters
    ----------
    resolution
        The smallest ``slow_rank`` and ``change`` that would have been found, as shares of a step's duration;
        None if nothing could be judged.
    notes
        Lines on what the data lack.
    phases
        The pace of the steps and their interruptions; None without enough steps.
    """

    verdicts: tuple[Verdict, ...]
    resolution: Mapping[str, float | None] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    phases: RunPhases | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``gipfel diagnose --json``."""
        return {
            "verdicts": [each.to_json() for each in self.verdicts],
            "resolution": {
                name: None if value is None else round(value, 4) for name, value in self.resolution.items()
            },
            "notes": list(self.notes),
            "pace": None if self.phases is None else self.phases.to_json(),
        }


class _Samples:
    """Reads the samples only when a verdict needs them, and only once."""

    def __init__(self, read: Callable[[], SampleTable | None] | None) -> None:
        self._read = read

    @cached_property
    def table(self) -> SampleTable | None:
        return self._read() if self._read else None


def diagnose(
    steps: StepTable | None,
    roles: Roles | None = None,
    *,
    samples: Callable[[], SampleTable | None] | None = None,
    gpus: Gpus | None = None,
    begin_ns: int | None = None,
    metrics: UserMetrics | None = None,
) -> Diagnosis:
    """Return the verdicts on a job.

    Parameters
    ----------
    steps
        The logged steps; None if none were logged: then only samples are used.
    samples
        Function that returns the job's samples; called at most once, and only if a verdict may need them.
    gpus
        UUIDs of the GPUs of each rank.
    begin_ns
        UTC nanoseconds at which the ranks were started; None if unknown.
    metrics
        What the job logged besides its steps: changes of rates and durations in it are verdicts, too.
    """
    roles, gpus, sampled = roles or Roles(), gpus or {}, _Samples(samples)
    if steps is None:
        table = sampled.table
        if table is None:
            return Diagnosis((cannot_tell("neither steps nor samples are there."),))
        changed = metric_changes(metrics or UserMetrics(), lambda: table)
        return Diagnosis((*diagnose_samples(table, gpus, roles), *changed))
    absent = roles.missing(int(rank) for rank in steps.ranks)
    found = diagnose_steps(steps, roles)
    verdicts = list(found.verdicts)
    for accused in found.accused if gpus else ():
        if sampled.table is not None:
            verdicts[accused.verdict] = explain(verdicts[accused.verdict], accused, sampled.table, gpus)
    changes = find_changes(steps.pace)
    cuts = [0, *(each.column for each in changes.changes), len(steps.steps)]
    for change, before, after in zip(changes.changes[:_MOST_EXPLAINED], cuts, cuts[2:], strict=False):
        verdicts += _change_verdicts(change, steps, sampled, before, after)
    known = [each.since for each in verdicts if each.kind == "change" and each.since]
    verdicts += metric_changes(metrics or UserMetrics(), lambda: sampled.table, known)
    have = "1 rank of the roles has" if len(absent) == 1 else f"{len(absent)} ranks of the roles have"
    notes = (f"{have} no step: {_some(absent)}.",) if absent else ()
    resolution = {"slow_rank": found.resolution, "change": changes.resolution}
    phases = find_phases(steps, None, begin_ns)
    if phases is not None and any(each.kind in ("regular", "pause") for each in phases.phases):
        phases = find_phases(steps, sampled.table, begin_ns)
    return Diagnosis(tuple(verdicts), resolution, notes, phases)


def _change_verdicts(
    change: Change, steps: StepTable, sampled: _Samples, before: int, after: int
) -> list[Verdict]:
    """Return the verdicts on a change; `before` and `after` are the columns of its neighbouring changes."""
    since, number = int(steps.time_ns[change.column]), int(steps.steps[change.column])
    longer = change.share > 0
    text = (
        f"Steps take {abs(change.share):.0%} {'longer' if longer else 'less long'} from step {number} on: "
        f"{change.after_s:.4g} s instead of {change.before_s:.4g} s."
    )
    first, last = max(before, change.column - _SIDE), min(after - 1, change.column + _SIDE)
    table = sampled.table
    if table is not None and since > 0:
        times = int(steps.time_ns[first]), int(steps.time_ns[last])
        text += hardware_text(table, since, *times, longer=longer)
    found = [Verdict("change", text, (), None, None, since, change.confidence)]
    waiting = _waiting_share(change, steps, first, last) if longer else None
    if waiting is not None:
        found.append(
            Verdict(
                "link",
                f"From step {number} on, {waiting:.0%} of what steps take longer is spent waiting, and the "
                "slowest rank's own work is as before: communication takes longer, and no rank is late. To "
                "find the link, vet the nodes in pairs.",
                (), None, None, since, 0.8 * change.confidence,
            )
        )  # fmt: skip
    return found


def _waiting_share(change: Change, steps: StepTable, first: int, last: int) -> float | None:
    """Return the share of the additional time that is waiting, if it is most of it; else None."""
    work = steps.work_s[:, first : last + 1]
    if np.isnan(work).mean() > 0.5 or len(steps.ranks) < 2:
        return None
    # Use the slowest rank in each step: the waiting of other ranks for it is not communication.
    slowest = np.nanmax(np.where(np.isnan(work), -np.inf, work), axis=0)
    cut = change.column - first
    before, after = float(median(slowest[:cut])), float(median(slowest[cut:]))
    longer = change.after_s - change.before_s
    waiting = 1 - (after - before) / longer
    same = abs(math.log(after / before)) < _SAME_WORK * math.log1p(change.share)
    return min(1.0, waiting) if waiting >= _WAITING and same else None


def _some(ranks: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return f"{shown} and {len(ranks) - 8} more" if len(ranks) > 8 else shown
