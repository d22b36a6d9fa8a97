"""Score a table of samples: every GPU, every rank, and the job.

`score_table` computes the score, `confidence` how far it can be trusted, and `score_coarser_samples` the
score that a recording at ten times the interval would have.

`agi` is the only other public formula: Alps GPU Insight, commit cf13c7a of 2024-03-14, ``docs/usage.md``. It
was fitted on synthetic data and dropped by its authors. Its maximum is about 0.913, and at F = 0 occupancy
alone still gives 0.77, so a copy kernel gets a high score. It is reported for comparison only.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..telemetry.metric_table import SCORE_PARTS
from ..telemetry.sample import FINE_INTERVAL, Columns, Device, SampleTable
from .causes import IndicatorReader, losses_of
from .levels import Levels, column, known_mean, levels_of, recorded_or, saturation_of
from .loss_breakdown import (
    COARSENING,
    LossBreakdown,
    TimeGrid,
    coarsen,
    coarsen_columns,
    durations_of,
    intervals_of,
    loss_breakdown_of,
    time_grid_of,
    work_start_ns,
)
from .result import GpuScore, JobScore, RankScore, Spread, Total, Trace, notes_of
from .settings import LOSSES, RESOURCES, Settings, ceilings_of, slice_of


def confidence(samples: int, expected: int, completeness: float) -> float:
    """Return how far a score can be trusted, 0 to 1: coverage x completeness x certainty.

    Parameters
    ----------
    samples, expected
        Number of samples that were scored, and number that the window would hold without gaps.
    completeness
        Share of the expected metrics that the scored samples hold.
    """
    if samples <= 0:
        return 0.0
    coverage = min(1.0, samples / max(1, expected))
    # The standard error of a mean falls with the root of the number of samples.
    certainty = 1.0 - 1.0 / math.sqrt(samples + 1)
    return coverage * completeness * certainty


#: Fitted constants of AGI, from its source (see the module's docstring).
ALPHA = 24.021653821773356
BETA = 3.093540559022677
GAMMA = 2.0510278298480444
LAMBDA = 11.44627875155378

_FLOPS = ("PIPE_FP16_ACTIVE", "PIPE_FP32_ACTIVE", "PIPE_FP64_ACTIVE", "PIPE_TENSOR_ACTIVE")


def agi(
    active: NDArray[np.float64], flops: NDArray[np.float64], occupancy: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the AGI of fractions from 0 to 1: SM_ACTIVE, the sum of floating-point pipes, SM_OCCUPANCY."""
    work = BETA * flops + GAMMA * occupancy * np.exp(-LAMBDA * flops)
    return 4.0 * (_logistic(ALPHA * active) - 0.5) * (_logistic(work) - 0.5)


def mean_agi(columns: Columns) -> float | None:
    """Return the mean AGI of the samples in which all six metrics are known; None where there is none."""
    flops = sum((columns[name] for name in _FLOPS[1:]), columns[_FLOPS[0]])
    return known_mean(agi(columns["SM_ACTIVE"], flops, columns["SM_OCCUPANCY"]))


def _logistic(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1.0 / (1.0 + np.exp(-x))


#: Minimum number of means of ten samples for a comparison with the samples themselves.
_MIN_MEANS = 2


#: Levels and loss breakdown of each GPU.
_Gpus = Mapping[Device, tuple[Levels, LossBreakdown]]


def score_table(
    table: SampleTable,
    settings: Settings | None = None,
    *,
    ranks: Mapping[int, Sequence[str]] | None = None,
) -> JobScore:
    """Score the samples of a table.

    Parameters
    ----------
    ranks
        UUIDs of the GPUs that each rank's process uses; empty if unknown.

    Returns
    -------
    JobScore
        Without a total where no sample of any GPU could be scored.
    """
    settings = settings or Settings()
    grid = time_grid_of(table)
    gpus = {device: _read_gpu(table, device, settings) for device in table.gpus}
    traces, start_ns = _traces(table, gpus, grid, settings)
    scores = tuple(_gpu_score(table, trace, grid, settings) for trace in traces)
    scored = [score for score in scores if score.total is not None]
    totals = {score.device.uuid: score.total for score in scored if score.total is not None}
    return JobScore(
        Total.mean(list(totals.values()), [score.weight for score in scored]),
        scores,
        tuple(_rank_score(rank, uuids, scores) for rank, uuids in sorted((ranks or {}).items())),
        _spread(totals),
        float(np.mean([score.confidence for score in scores])) if scores else 0.0,
        (start_ns - grid.first_ns) / 1e9,
        grid.interval,
        FINE_INTERVAL if any(trace.levels.recorded_parts for trace in traces) else grid.interval,
        grid.first_ns if totals else None,
        grid.last_ns if totals else None,
        table.simulated,
        tuple(notes_of(table, scores, traces)),
        traces,
    )


def _read_gpu(table: SampleTable, device: Device, settings: Settings) -> tuple[Levels, LossBreakdown]:
    levels = levels_of(
        table[device.uuid],
        ceilings_of(device.name),
        settings.weights,
        binding_threshold=settings.thresholds.binding,
    )
    return levels, loss_breakdown_of(levels)


def _traces(
    table: SampleTable,
    gpus: _Gpus,
    grid: TimeGrid,
    settings: Settings,
) -> tuple[tuple[Trace, ...], int]:
    """Return each GPU sample by sample, and the UTC time (ns) at which the work began."""
    limits = settings.thresholds
    start_ns = work_start_ns(list(gpus.values()), grid, limits)
    worked = {
        gpu.uuid: (levels, breakdown)
        for gpu, (levels, breakdown) in gpus.items()
        if (breakdown.running >= limits.works).any()
    }
    watts = {gpu.uuid: ceilings_of(gpu.name).watts for gpu in gpus}
    reader = IndicatorReader(table, grid, limits, worked, watts)
    intervals = intervals_of(table, grid)
    traces = tuple(
        Trace(
            gpu,
            levels,
            losses_of(
                levels,
                breakdown,
                reader.indicators_of(gpu) if gpu.uuid in worked else None,
                levels.time_ns < start_ns - int(grid.interval * 5e8),
            ),
            levels.known,
            durations_of(levels.time_ns, intervals)
            * recorded_or(levels.recorded_parts, "SCORE_SHARE", np.ones(len(levels.time_ns))),
        )
        for gpu, (levels, breakdown) in gpus.items()
    )
    return traces, start_ns


def _gpu_score(table: SampleTable, trace: Trace, grid: TimeGrid, settings: Settings) -> GpuScore:
    columns = table[trace.device.uuid]
    samples = int(trace.scored.sum())
    expected = max(samples, grid.expected)
    return GpuScore(
        trace.device,
        _total(trace, _mean_of_means(trace, columns, grid, settings)) if samples else None,
        {name: known_mean(trace.levels.resources[name][trace.scored]) for name in RESOURCES},
        known_mean(column(columns, "GPU_UTIL")),
        mean_agi(columns),
        samples,
        expected - samples,
        confidence(samples, expected, trace.levels.completeness),
        ceilings_of(trace.device.name).model,
        _held_seconds(trace) * slice_of(trace.device.name),
    )


def _held_seconds(trace: Trace) -> float:
    """Return the seconds from the first sample of a GPU to its last."""
    times = trace.levels.time_ns[trace.scored]
    return float(times[-1] - times[0]) / 1e9 + float(trace.seconds[0]) if len(times) else 0.0


def _mean_of_means(trace: Trace, columns: Columns, grid: TimeGrid, settings: Settings) -> float | None:
    """Return the mean saturation of means of ten samples; None if a comparison would be meaningless."""
    if trace.levels.recorded_parts or grid.interval <= settings.thresholds.fine:
        return None
    coarse = coarsen_columns(columns, int(COARSENING * grid.interval * 1e9))
    if len(coarse["time_ns"]) < _MIN_MEANS:
        return None
    return known_mean(saturation_of(coarse, ceilings_of(trace.device.name), settings.weights))


def _total(trace: Trace, coarse: float | None) -> Total:
    chosen, seconds = trace.scored, trace.seconds[trace.scored]
    share = seconds / seconds.sum()
    score = 100.0 * float(share @ trace.levels.saturation[chosen])
    return Total(
        score,
        {name: 100.0 * float(share @ trace.losses[name][chosen]) for name in LOSSES},
        {name: float(share @ trace.levels.binding_share[name][chosen]) for name in RESOURCES},
        {name: 100.0 * float(share @ trace.levels.points[name][chosen]) for name in RESOURCES},
        100.0 * float(share @ trace.levels.lower_bound[chosen]),
        100.0 * float(share @ trace.levels.upper_bound[chosen]),
        {name: 100.0 * float(share @ trace.levels.sequential_points[name][chosen]) for name in RESOURCES},
        0.0 if coarse is None else score - 100.0 * coarse,
    )


def _rank_score(rank: int, uuids: Sequence[str], scores: Sequence[GpuScore]) -> RankScore:
    own = [score for score in scores if score.device.uuid in set(uuids)]
    scored = [score for score in own if score.total is not None]
    total = Total.mean(
        [score.total for score in scored if score.total is not None], [score.weight for score in scored]
    )
    trust = float(np.mean([score.confidence for score in own])) if own else 0.0
    return RankScore(rank, tuple(uuids), total, trust)


def _spread(totals: Mapping[str, Total]) -> Spread | None:
    if not totals:
        return None
    worst = min(totals, key=lambda uuid: totals[uuid].score)
    scores = [total.score for total in totals.values()]
    low = totals[worst].score
    return Spread(float(np.percentile(scores, 10)), low, worst, max(scores) - low)


#: Difference of the two scores, in points, from which it is reported.
_MIN_DIFFERENCE = 1.0


@dataclass(frozen=True)
class CoarserScore:
    """Score of means of ten samples, for comparison with the score of the samples.

    Activity that alternates within an interval looks like its mean: where the difference is large, a still
    shorter interval would change the score again.
    """

    interval: float
    score: float
    difference: float

    def to_json(self) -> dict[str, Any]:
        """Return the value of the key ``coarser_score`` in the score's document."""
        return {
            "interval_s": round(self.interval, 4),
            "score": round(self.score, 4),
            "difference": round(self.difference, 4),
        }

    @property
    def sentence(self) -> str:
        """A sentence about a large difference; empty where it is small."""
        if abs(self.difference) < _MIN_DIFFERENCE:
            return ""
        points = f"{abs(self.difference):.0f}"
        return (
            f"With samples every {self.interval:g} s the score would be {self.score:.0f}: "
            f"{self.interval / COARSENING:g} s shows {points} {'point' if points == '1' else 'points'} of "
            "activity that alternates faster."
        )


def score_coarser_samples(
    table: SampleTable,
    score: float | None,
    settings: Settings | None = None,
    *,
    ranks: Mapping[int, Sequence[str]] | None = None,
) -> CoarserScore | None:
    """Return the score at ten times the interval; None where too few samples were recorded.

    Parameters
    ----------
    score
        Score of the table at its own interval.
    """
    coarse = _without_parts(table) or coarsen(table, COARSENING)
    other = score_table(coarse, settings, ranks=ranks).total
    if score is None or other is None or coarse.rows < 2 * len(coarse.devices):
        return None
    return CoarserScore(coarse.interval, other.score, score - other.score)


def _without_parts(table: SampleTable) -> SampleTable | None:
    """Return the table without ``SCORE_*`` columns, so that its own samples are scored; None without any."""
    if not any("SCORE_SHARE" in table[gpu.uuid] for gpu in table.gpus):
        return None
    columns = {
        device.uuid: {name: each for name, each in table[device.uuid].items() if name not in SCORE_PARTS}
        for device in table.devices
    }
    return replace(table, columns=columns)
