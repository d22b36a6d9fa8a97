"""Advice: rules that read a scored job; without evidence in the samples a rule gives none."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

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
    """Return the advice of the rules for a scored table, the greatest gain first.

    A loss of at least five points that no rule addresses is reported too, with a tool that shows its cause.

    Parameters
    ----------
    workload
        Facts about the work. A rule that doesn't apply gives no advice; one that may apply names the work
        that it is for.
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
