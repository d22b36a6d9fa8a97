"""Comparison of a run's pace with that of other runs of the same script, with its confidence."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from .robust import Floats, noise_of, scatter, tail, trimmed_mean
from .steps import StepTable
from .stragglers import usable_steps

#: Share that matters, and standard errors that noise does not reach.
_LEAST, _Z = 0.05, 3.0
#: Earlier runs from which on their own scatter is known.
LEAST_RUNS = 5
#: What is assumed where it is not known: runs of one script on one kind of GPU differ by 1 %.
_ASSUMED = 0.01
#: Steps beyond warm-up that a pace is known from.
LEAST_STEPS = 20
_WARM_UP, _BLOCK = 10, 20


@dataclass(frozen=True)
class RunPace:
    """Duration of a run's steps.

    Parameters
    ----------
    seconds
        Trimmed mean of the steps' durations, on a scale of logarithms.
    error
        Its standard error as a share, from the scatter within the run.
    steps
        Steps that it is of.
    ranks
        Ranks that logged them.
    """

    label: str
    seconds: float
    error: float
    steps: int
    ranks: int = 1


def pace_of(table: StepTable, label: str) -> RunPace | None:
    """Return the pace of a run; None of a run with fewer than 20 steps beyond warm-up."""
    table = table.part(min(_WARM_UP, len(table.steps) // 3))
    seconds = usable_steps(table).pace
    values: Floats = np.log(seconds[seconds > 0])
    if len(values) < LEAST_STEPS:
        return None
    rows = len(values) // _BLOCK
    blocks = values[len(values) - rows * _BLOCK :].reshape(rows, _BLOCK)
    within = float(np.median(noise_of(blocks).error(len(values))))
    # A run that changes as it goes has a pace that is less sure than its noise says.
    levels = trimmed_mean(blocks)
    between = float(scatter(levels)) / math.sqrt(rows) if rows >= 4 else 0.0
    pace = math.exp(float(trimmed_mean(values[None, :])[0]))
    return RunPace(label, pace, max(within, between), len(values), len(table.ranks))


@dataclass(frozen=True)
class PaceComparison:
    """Comparison of a run's steps with those of other runs.

    Parameters
    ----------
    verdict
        ``slower``, ``faster``, ``same`` (within what can be resolved), or ``cannot tell``.
    share
        Change of the duration of a step: 0.1 is 10 % longer; None where there is nothing to compare.
    least, most
        Its 95 % interval.
    resolution
        Smallest change that would have been named.
    confidence
        Of the verdict ``slower`` or ``faster``; else 0.
    """

    verdict: Literal["slower", "faster", "same", "cannot tell"]
    sentence: str
    share: float | None = None
    least: float | None = None
    most: float | None = None
    resolution: float | None = None
    confidence: float = 0.0


def compare_paces(now: RunPace | None, earlier: Sequence[RunPace]) -> PaceComparison:
    """Compare a run with others of the same script, size and image, which the caller has chosen.

    Runs differ from each other by more than the scatter of their steps says. From five others on, how much is
    measured; before, 1 % is assumed, and the sentence says so.
    """
    if now is None or not earlier:
        lacking = "This run has" if now is None else "The others have"
        return PaceComparison("cannot tell", f"{lacking} fewer than {LEAST_STEPS} steps to compare.")
    sizes = sorted({now.ranks, *(each.ranks for each in earlier)})
    if len(sizes) > 1:
        counts = " and ".join(map(str, sizes))
        return PaceComparison(
            "cannot tell", f"The runs have {counts} ranks: a step is not the same work in them."
        )
    paces = np.log([each.seconds for each in earlier])
    known = len(earlier) >= LEAST_RUNS
    # A scatter of few runs is uncertain: as if five more had shown what is assumed.
    own = float(scatter(paces)) if known else 0.0
    weight = len(earlier) if known else 0
    between = math.sqrt((weight * own**2 + LEAST_RUNS * _ASSUMED**2) / (weight + LEAST_RUNS))
    usual = float(np.median(paces))
    errors = float(np.mean([each.error**2 for each in earlier]))
    error = math.sqrt(between**2 * (1 + 1 / len(earlier)) + now.error**2 + errors / len(earlier))
    change = math.log(now.seconds) - usual
    threshold = max(math.log1p(_LEAST), _Z * error)
    share, resolution = math.expm1(change), math.expm1(threshold)
    interval = math.expm1(change - 1.96 * error), math.expm1(change + 1.96 * error)
    basis = f"{len(earlier)} other run{'s'[: len(earlier) > 1]}"
    if not known:
        basis += f", assuming that runs differ by {_ASSUMED:.0%}"
    numbers = f"{now.seconds:.4g} s a step beside {math.exp(usual):.4g} s ({share:+.1%}, {basis})"
    if abs(change) > threshold:
        slower = change > 0
        text = f"This run is {'slower' if slower else 'faster'}: {numbers}."
        sure = min(0.99, 1 - 2 * tail(abs(change) / error))
        return PaceComparison("slower" if slower else "faster", text, share, *interval, resolution, sure)
    text = f"No difference beyond {resolution:.1%}, the smallest that these runs can show: {numbers}."
    return PaceComparison("same", text, share, *interval, resolution)
