"""Advice: rules that are applied to a scored job; a rule gives advice only with evidence in the samples.

In live views, advice appears only after its evidence has been present for a minute, and disappears only after
it has been absent for a minute.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ...telemetry.sample import SampleTable
from ..result import JobScore
from ..settings import Settings
from .checkpoint import AsynchronousCheckpoint, CheckpointInterval
from .kernels import (
    ActivationCheckpointing,
    BatchSize,
    Capping,
    Compile,
    CudaGraphs,
    FusedOptimizer,
    HalfPrecision,
    QuarterPrecision,
)
from .losses import UnusedGpu, unaddressed_losses
from .model import Advice, AdviceContext, Evidence, Knob, Rule, Workload
from .waiting import BucketSize, LoaderWorkers, PinnedMemory, Placement, SlowRank, VideoDecoder

__all__ = [
    "HOLD_S",
    "RULES",
    "Advice",
    "DebouncedAdvice",
    "Evidence",
    "History",
    "Knob",
    "Rule",
    "TrackedAdvice",
    "advise",
    "debounce",
]


RULES: tuple[Rule, ...] = (
    UnusedGpu(),
    LoaderWorkers(),
    PinnedMemory(),
    VideoDecoder(),
    CudaGraphs(),
    Compile(),
    BatchSize(),
    ActivationCheckpointing(),
    HalfPrecision(),
    QuarterPrecision(),
    FusedOptimizer(),
    SlowRank(),
    Placement(),
    BucketSize(),
    CheckpointInterval(),
    AsynchronousCheckpoint(),
    Capping(),
)


def advise(
    table: SampleTable,
    job: JobScore,
    settings: Settings | None = None,
    *,
    workload: Workload | None = None,
    rules: Sequence[Rule] = RULES,
) -> tuple[Advice, ...]:
    """Return the advice of the rules for a scored table, the greatest gain first.

    A loss of at least five points for which no rule gave advice is reported too, with a tool that shows its
    cause.

    Parameters
    ----------
    workload
        Facts about the work. A rule that doesn't apply to it gives no advice. If that is unknown, the advice
        names the kind of work that it is for.
    """
    if job.total is None:
        return ()
    context = AdviceContext(table, job, settings or Settings())
    found = list(_advice_of_rules(context, workload or Workload(), rules))
    found += unaddressed_losses(context, {each.loss for each in found})
    return tuple(sorted(found, key=lambda advice: -advice.gain))


def _advice_of_rules(context: AdviceContext, work: Workload, rules: Sequence[Rule]) -> Iterator[Advice]:
    for rule in rules:
        applicable = rule.applies.matches(work)
        if applicable is False or rule.name in work.uses:
            continue
        advice = rule.find(context)
        if advice is None or not advice.evidence:
            continue
        if applicable is None and rule.applies.text:
            action = f"If this is {rule.applies.text}: {advice.action[:1].lower()}{advice.action[1:]}"
            advice = replace(advice, action=action, certain=False)
        yield advice


#: Seconds for which evidence must last before an advice appears, and be absent before it disappears.
HOLD_S = 60.0


@dataclass(frozen=True)
class TrackedAdvice:
    """Newest advice of a rule.

    `is_found` is True while the rule gives it; `since_s` is when that last changed, in monotonic seconds.
    """

    advice: Advice
    is_found: bool
    is_displayed: bool
    since_s: float


#: Tracked advice by the name of its rule.
History = Mapping[str, TrackedAdvice]


def debounce(
    history: History, advice: Sequence[Advice], now_s: float, hold_s: float = HOLD_S
) -> tuple[History, tuple[Advice, ...]]:
    """Return the next history, and the advice to show now, the greatest gain first.

    Shown advice that a rule still gives has the newest text; other shown advice keeps its last text until it
    disappears.

    Parameters
    ----------
    history
        History that the last call returned; empty at first.
    advice
        Advice that the rules find now.
    now_s
        Monotonic time in seconds.
    """
    found = {each.rule: each for each in advice}
    next_history = {}
    for rule in dict.fromkeys((*history, *found)):
        tracked = _next(history.get(rule), found.get(rule), now_s, hold_s)
        if tracked is not None:
            next_history[rule] = tracked
    shown = [each.advice for each in next_history.values() if each.is_displayed]
    return next_history, tuple(sorted(shown, key=lambda each: -each.gain))


def _next(
    tracked: TrackedAdvice | None, advice: Advice | None, now_s: float, hold_s: float
) -> TrackedAdvice | None:
    if tracked is None:
        return (
            None
            if advice is None
            else TrackedAdvice(advice, is_found=True, is_displayed=hold_s <= 0, since_s=now_s)
        )
    changed = tracked.is_found != (advice is not None)
    since_s = now_s if changed else tracked.since_s
    lasted = now_s - since_s >= hold_s
    if advice is not None:
        return replace(
            tracked,
            advice=advice,
            is_found=True,
            is_displayed=tracked.is_displayed or lasted,
            since_s=since_s,
        )
    if not tracked.is_displayed or lasted:
        return None
    return replace(tracked, is_found=False, since_s=since_s)


class DebouncedAdvice:
    """Debounced advice (see `debounce`) of several views of one run, such as windows of different lengths.

    Parameters
    ----------
    hold_s
        Seconds for which evidence must last, or be absent.
    """

    def __init__(self, hold_s: float = HOLD_S) -> None:
        self._hold_s = hold_s
        self._histories: dict[float, History] = {}

    def displayed(
        self,
        view: float,
        table: SampleTable,
        find: Callable[[SampleTable], Sequence[Advice]],
        advice: Sequence[Advice],
        now_s: float,
    ) -> tuple[Advice, ...]:
        """Return the advice that a view shows now.

        A new view starts with the advice for the samples until `hold_s` ago, as if it had been open since.

        Parameters
        ----------
        view
            Key of the view.
        find
            Function that applies the rules to a table; called for new views, with samples until `hold_s` ago.
        """
        history = self._histories.get(view)
        if history is None:
            at_s, before_ns = now_s - self._hold_s, int(self._hold_s * 1e9)
            earlier = find(table.until(table.last_ns - before_ns)) if before_ns and table.last_ns else ()
            history = {
                each.rule: TrackedAdvice(each, is_found=True, is_displayed=False, since_s=at_s)
                for each in earlier
            }
        self._histories[view], found = debounce(history, advice, now_s, self._hold_s)
        return found

    def keep(self, views: Collection[float]) -> None:
        """Forget all views except `views`."""
        self._histories = {view: each for view, each in self._histories.items() if view in views}
