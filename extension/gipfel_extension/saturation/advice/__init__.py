"""Advice: small rules that read a scored job, and say nothing without their evidence."""

from collections.abc import Sequence

from ...telemetry.sample import SampleTable
from ..result import JobScore
from ..settings import Settings
from .capping import Capping
from .checkpoint import AsynchronousCheckpoint, CheckpointInterval
from .communication import BucketSize, Placement, SlowRank
from .idle import UnusedGpu
from .input import LoaderWorkers, PinnedMemory, VideoDecoder
from .launch import Compile, CudaGraphs
from .losses import LossRule
from .model import Advice, Case, Evidence, Knob, Rule
from .occupancy import ActivationCheckpointing, BatchSize
from .precision import HalfPrecision, QuarterPrecision
from .untreated import untreated
from .updates import FusedOptimizer

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
    table: SampleTable, job: JobScore, settings: Settings | None = None, *, rules: Sequence[Rule] = RULES
) -> tuple[Advice, ...]:
    """Return what the rules find in a scored table, the greatest gain first.

    A loss of five points or more that no rule speaks about is named too, with what would show more of it.
    """
    if job.total is None:
        return ()
    case = Case(table, job, settings or Settings())
    found = [advice for rule in rules if (advice := rule.find(case)) is not None and advice.evidence]
    told = {
        rule.loss
        for rule in rules
        for advice in found
        if isinstance(rule, LossRule) and advice.rule == rule.name
    }
    found += untreated(case, told)
    return tuple(sorted(found, key=lambda advice: -advice.gain))
