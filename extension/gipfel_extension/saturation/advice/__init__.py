"""Advice: small rules that read a scored job, and say nothing without their evidence."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...telemetry.sample import SampleTable
from ..result import JobScore
from ..settings import Settings
from .checkpoint import AsynchronousCheckpoint, CheckpointInterval
from .communication import BucketSize, Placement, SlowRank
from .input import LoaderWorkers, PinnedMemory, VideoDecoder
from .kernels import (
    ActivationCheckpointing,
    BatchSize,
    Capping,
    Compile,
    CudaGraphs,
    FusedOptimizer,
)
from .losses import LossRule, UnusedGpu, untreated
from .model import Advice, Case, Evidence, Knob, Rule, Workload
from .precision import HalfPrecision, QuarterPrecision

__all__ = ["RULES", "Advice", "Evidence", "Knob", "Rule", "advise"]

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
    """Return what the rules find in a scored table, the greatest gain first.

    A loss of five points or more that no rule speaks about is named too, with what would show more of it.

    Parameters
    ----------
    workload
        What is known of the work: a rule that doesn't apply to it is silent, and one that may apply says to
        whom it does.
    """
    if job.total is None:
        return ()
    case = Case(table, job, settings or Settings())
    found = list(_found(case, workload or Workload(), rules))
    told = {
        rule.loss
        for rule in rules
        for advice in found
        if isinstance(rule, LossRule) and advice.rule == rule.name
    }
    found += untreated(case, told)
    return tuple(sorted(found, key=lambda advice: -advice.gain))


def _found(case: Case, work: Workload, rules: Sequence[Rule]) -> Iterator[Advice]:
    for rule in rules:
        fits = rule.applies.to(work)
        if fits is False or rule.name in work.uses:
            continue
        advice = rule.find(case)
        if advice is None or not advice.evidence:
            continue
        if fits is None and rule.applies.text:
            action = f"If this is {rule.applies.text}: {advice.action[:1].lower()}{advice.action[1:]}"
            advice = replace(advice, action=action, certain=False)
        yield advice
