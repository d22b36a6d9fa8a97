"""Advice: rules that are applied to a scored job; a rule gives advice only with evidence in the samples.

Each loss of at least five points has one sentence, with its remedies; the largest loss comes first. In live
views, a sentence appears only after its evidence has been present for a minute, disappears only after it has
been absent for a minute, and names the same GPUs for at least a minute.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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
    """Return the advice of the rules for a scored table, that for the largest loss first.

    A loss of at least five points for which no rule gave advice is reported too, with a tool that shows its
    cause. Of several rules for one loss, that with the greatest gain comes first, and the others are
    alternatives to it.

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
    return _by_loss([replace(each, points=context.loss(each.loss)) if each.loss else each for each in found])


def _by_loss(found: Iterable[Advice]) -> tuple[Advice, ...]:
    """Return advice in the order of the losses; after that for losses, advice that only saves time."""
    groups = _grouped(sorted(found, key=lambda each: (-each.gain, not each.certain, -each.gain_least)))
    ordered = sorted(groups.values(), key=lambda group: (-group[0].points, -group[0].time_saved))
    return tuple(replace(each, alternative=each is not group[0]) for group in ordered for each in group)


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
    """Advice for one loss, or of one rule that is about none.

    `is_found` is True while rules give advice; `since_s` is when that last changed, in monotonic seconds.
    `named_since_s` is when the advice last changed to other rules or GPUs.
    """

    advice: tuple[Advice, ...]
    is_found: bool
    is_displayed: bool
    since_s: float
    named_since_s: float


#: Tracked advice by its loss, or by its rule if it is about none.
History = Mapping[str, TrackedAdvice]


def debounce(
    history: History, advice: Sequence[Advice], now_s: float, hold_s: float = HOLD_S
) -> tuple[History, tuple[Advice, ...]]:
    """Return the next history, and the advice to show now, that for the largest loss first.

    Shown advice has the newest text as long as the same rules name the same GPUs. Other rules or GPUs replace
    them after `hold_s`, so that a sentence changes its subject at most that often. Shown advice that is no
    longer found keeps its last text until it disappears.

    Parameters
    ----------
    history
        History that the last call returned; empty at first.
    advice
        Advice that the rules find now.
    now_s
        Monotonic time in seconds.
    """
    found = _grouped(advice)
    following = {
        key: _next(history.get(key), found.get(key, ()), now_s, hold_s)
        for key in dict.fromkeys((*history, *found))
    }
    next_history = {key: each for key, each in following.items() if each is not None}
    shown = [each for tracked in next_history.values() if tracked.is_displayed for each in tracked.advice]
    return next_history, _by_loss(shown)


def _grouped(advice: Iterable[Advice]) -> dict[str, tuple[Advice, ...]]:
    groups: dict[str, tuple[Advice, ...]] = {}
    for each in advice:
        key = each.loss or each.rule
        groups[key] = (*groups.get(key, ()), each)
    return groups


def _next(
    tracked: TrackedAdvice | None, advice: tuple[Advice, ...], now_s: float, hold_s: float
) -> TrackedAdvice | None:
    if tracked is None:
        return TrackedAdvice(advice, bool(advice), hold_s <= 0, now_s, now_s) if advice else None
    since_s = tracked.since_s if tracked.is_found == bool(advice) else now_s
    lasted = now_s - since_s >= hold_s
    if not advice:
        return (
            replace(tracked, is_found=False, since_s=since_s) if tracked.is_displayed and not lasted else None
        )
    if not tracked.is_displayed:
        return TrackedAdvice(advice, is_found=True, is_displayed=lasted, since_s=since_s, named_since_s=now_s)
    tracked = replace(tracked, is_found=True, since_s=since_s)
    if _subject(advice) == _subject(tracked.advice):
        return replace(tracked, advice=advice)
    if now_s - tracked.named_since_s >= hold_s:
        return replace(tracked, advice=advice, named_since_s=now_s)
    points = advice[0].points
    return replace(tracked, advice=tuple(replace(each, points=points) for each in tracked.advice))


def _subject(advice: Iterable[Advice]) -> list[tuple[str, tuple[str, ...]]]:
    """Return what identifies the sentences: the rules, and the GPUs that they name."""
    return [(each.rule, each.gpus) for each in advice]


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
            last_ns = table.last_ns
            earlier = find(table.between(None, last_ns - before_ns)) if before_ns and last_ns else ()
            history = {
                key: TrackedAdvice(each, is_found=True, is_displayed=False, since_s=at_s, named_since_s=at_s)
                for key, each in _grouped(earlier).items()
            }
        self._histories[view], found = debounce(history, advice, now_s, self._hold_s)
        return found

    def keep(self, views: Collection[float]) -> None:
        """Forget all views except `views`."""
        self._histories = {view: each for view, each in self._histories.items() if view in views}
