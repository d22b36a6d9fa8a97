"""Score a table of samples: every GPU, every rank, and the job.

How far a score can be trusted, from 0 to 1: how many samples, how much of them was missing.

The one public score formula: Alps GPU Insight, commit cf13c7a of 2024-03-14, ``docs/usage.md``.

It was fitted on synthetic data and dropped by its authors. Its maximum is about 0.913, and at F = 0 occupancy
alone still gives 0.77, so a copy kernel looks good. It stands here for comparison, under its own name.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..telemetry.sample import FINE_INTERVAL, Columns, Device, SampleTable
from .causes import Observer, losses_of
from .ceilings import ceilings_of, slice_of
from .levels import Flags, Floats, Levels, column, kept, levels_of
from .loss_breakdown import Staircase, staircase_of, work_begins
from .notes import notes_of
from .result import GpuScore, JobScore, RankScore, Spread, Total, Trace
from .settings import LOSSES, RESOURCES, Settings
from .time_grid import COARSER, Beats, beats_of, column_means, durations_of, intervals_of


def confidence(samples: int, expected: int, completeness: float) -> float:
    """Coverage x completeness x certainty.

    Parameters
    ----------
    samples, expected
        Samples that were scored, and that the window would hold at its interval.
    completeness
        Share of the expected metrics that the scored samples hold.
    """
    if samples <= 0:
        return 0.0
    coverage = min(1.0, samples / max(1, expected))
    # The standard error of a mean falls with the root of the number of samples.
    certainty = 1.0 - 1.0 / math.sqrt(samples + 1)
    return coverage * completeness * certainty


ALPHA = 24.021653821773356
BETA = 3.093540559022677
GAMMA = 2.0510278298480444
LAMBDA = 11.44627875155378

_FLOPS = ("PIPE_FP16_ACTIVE", "PIPE_FP32_ACTIVE", "PIPE_FP64_ACTIVE", "PIPE_TENSOR_ACTIVE")


def agi(
    active: NDArray[np.float64], flops: NDArray[np.float64], occupancy: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The formula on fractions from 0 to 1: SM_ACTIVE, the sum of the floating-point pipes, SM_OCCUPANCY."""
    work = BETA * flops + GAMMA * occupancy * np.exp(-LAMBDA * flops)
    scores: NDArray[np.float64] = 4.0 * (_logistic(ALPHA * active) - 0.5) * (_logistic(work) - 0.5)
    return scores


def agi_mean(columns: Columns) -> float | None:
    """Mean over the samples in which all six metrics are known; None where there is none."""
    flops = sum((columns[name] for name in _FLOPS[1:]), columns[_FLOPS[0]])
    scores = agi(columns["SM_ACTIVE"], flops, columns["SM_OCCUPANCY"])
    known = scores[np.isfinite(scores)]
    return float(known.mean()) if len(known) else None


def _logistic(x: NDArray[np.float64]) -> NDArray[np.float64]:
    result: NDArray[np.float64] = 1.0 / (1.0 + np.exp(-x))
    return result


#: Means of ten samples that are compared with the samples, at the fewest.
_FEWEST_MEANS = 2


@dataclass(frozen=True)
class _Gpu:
    device: Device
    levels: Levels
    steps: Staircase

    def works(self, least: float) -> Flags:
        with np.errstate(invalid="ignore"):
            return self.steps.running >= least


def score_table(
    table: SampleTable,
    settings: Settings | None = None,
    *,
    ranks: Mapping[int, Sequence[str]] | None = None,
    window: tuple[int, int] | None = None,
) -> JobScore:
    """Score what a table holds.

    Parameters
    ----------
    ranks
        Rank to the UUIDs of the GPUs that its process uses; empty where nobody knows.
    window
        First and last UTC time that are scored; start-up and evidence are still those of the whole table.

    Returns
    -------
    JobScore
        Without a total where no sample of any GPU could be scored.
    """
    settings = settings or Settings()
    beats = beats_of(table)
    gpus = [_read(table, device, settings) for device in table.gpus]
    first_ns, last_ns = window or (beats.first_ns, beats.last_ns)
    first_ns, last_ns = max(first_ns, beats.first_ns), min(last_ns, beats.last_ns)
    traces, start_ns = _traces(table, gpus, beats, settings, (first_ns, last_ns))
    scores = tuple(_gpu_score(table, trace, beats, settings, (first_ns, last_ns)) for trace in traces)
    scored = [score for score in scores if score.total is not None]
    totals = {score.device.uuid: score.total for score in scored if score.total is not None}
    return JobScore(
        Total.mean(list(totals.values()), [score.weight for score in scored]),
        scores,
        tuple(_rank_score(rank, uuids, scores) for rank, uuids in sorted((ranks or {}).items())),
        _spread(totals),
        float(np.mean([score.confidence for score in scores])) if scores else 0.0,
        (start_ns - beats.first_ns) / 1e9,
        beats.interval,
        FINE_INTERVAL if any(trace.levels.parts for trace in traces) else beats.interval,
        first_ns if totals else None,
        last_ns if totals else None,
        table.simulated,
        notes_of(table, scores, traces),
        traces,
    )


def _read(table: SampleTable, device: Device, settings: Settings) -> _Gpu:
    levels = levels_of(
        table.of(device.uuid),
        ceilings_of(device.name),
        settings.weights,
        least=settings.thresholds.binding,
    )
    return _Gpu(device, levels, staircase_of(levels))


def _traces(
    table: SampleTable,
    gpus: Sequence[_Gpu],
    beats: Beats,
    settings: Settings,
    window: tuple[int, int],
) -> tuple[tuple[Trace, ...], int]:
    """Return each GPU sample by sample, and when the work began: UTC, ns."""
    start_ns = work_begins([(gpu.levels, gpu.steps) for gpu in gpus], beats, settings.thresholds)
    start_ns = beats.first_ns if start_ns is None else start_ns
    limits = settings.thresholds
    worked = {gpu.device.uuid: (gpu.levels, gpu.steps) for gpu in gpus if gpu.works(limits.works).any()}
    watts = {gpu.device.uuid: ceilings_of(gpu.device.name).watts for gpu in gpus}
    observer = Observer(table, beats, limits, worked, watts)
    intervals = intervals_of(table, beats)
    traces = tuple(
        Trace(
            gpu.device,
            gpu.levels,
            losses_of(
                gpu.levels,
                gpu.steps,
                observer.signs(gpu.device) if gpu.device.uuid in worked else None,
                gpu.levels.time_ns < start_ns - int(beats.interval * 5e8),
            ),
            gpu.levels.known & _inside(gpu.levels.time_ns, window),
            durations_of(gpu.levels.time_ns, intervals)
            * kept(gpu.levels.parts, "SCORE_SHARE", np.ones(len(gpu.levels.time_ns))),
        )
        for gpu in gpus
    )
    return traces, start_ns


def _gpu_score(
    table: SampleTable, trace: Trace, beats: Beats, settings: Settings, window: tuple[int, int]
) -> GpuScore:
    inside = _inside(trace.levels.time_ns, window)
    columns = {name: values[inside] for name, values in table.of(trace.device.uuid).items()}
    samples = int(trace.scored.sum())
    expected = max(samples, beats.expected(*window))
    return GpuScore(
        trace.device,
        _total(trace, _mean_of_means(trace, columns, beats, settings)) if samples else None,
        {name: _mean(trace.levels.resources[name][trace.scored]) for name in RESOURCES},
        _mean(column(columns, "GPU_UTIL")),
        agi_mean(columns),
        samples,
        expected - samples,
        confidence(samples, expected, trace.levels.completeness),
        ceilings_of(trace.device.name).model,
        _held(trace) * slice_of(trace.device.name),
    )


def _held(trace: Trace) -> float:
    """Return the seconds from the first sample of a GPU to its last."""
    times = trace.levels.time_ns[trace.scored]
    return float(times[-1] - times[0]) / 1e9 + float(trace.seconds[0]) if len(times) else 0.0


def _inside(time_ns: NDArray[np.int64], window: tuple[int, int]) -> Flags:
    return (time_ns >= window[0]) & (time_ns <= window[1])


def _mean_of_means(trace: Trace, columns: Columns, beats: Beats, settings: Settings) -> float | None:
    """Return the level that means of ten samples show; None where that tells nothing."""
    if trace.levels.parts or beats.interval <= settings.thresholds.fine:
        return None
    coarse = column_means(columns, int(COARSER * beats.interval * 1e9))
    if len(coarse["time_ns"]) < _FEWEST_MEANS:
        return None
    return _mean(levels_of(coarse, ceilings_of(trace.device.name), settings.weights).saturation)


def _total(trace: Trace, coarser: float | None) -> Total:
    chosen, seconds = trace.scored, trace.seconds[trace.scored]
    share = seconds / seconds.sum()
    score = 100.0 * float(share @ trace.levels.saturation[chosen])
    return Total(
        score,
        {name: 100.0 * float(share @ trace.losses[name][chosen]) for name in LOSSES},
        {name: float(share @ trace.levels.bound[name][chosen]) for name in RESOURCES},
        {name: 100.0 * float(share @ trace.levels.points[name][chosen]) for name in RESOURCES},
        100.0 * float(share @ trace.levels.least[chosen]),
        100.0 * float(share @ trace.levels.most[chosen]),
        {name: 100.0 * float(share @ trace.levels.in_turn[name][chosen]) for name in RESOURCES},
        0.0 if coarser is None else score - 100.0 * coarser,
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


def _mean(values: Floats) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None
