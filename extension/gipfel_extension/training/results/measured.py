"""What a run's result keeps beside its score, for a later run of the same program to be compared with."""

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...saturation import JobScore, Settings
from ...saturation.checkpoint_interval import writes_of
from ...saturation.levels import column
from ...telemetry.files import read_record_file
from ...telemetry.metrics import METRICS_FILE, UserMetric, UserMetrics, read_metrics
from ...telemetry.sample import SampleTable

#: Name to mean and standard error.
Pace = dict[str, tuple[float, float]]

STEPS = "steps_per_s"
_ENDINGS = ("_per_s", "_per_sec", "_per_second", "/s")
#: A longer file takes longer to read than the end of a job may take.
MOST_METRICS_BYTES = 64 << 20
_MOST_RATES = 16
#: Of what was logged, the first quarter is warm-up: compilation, caches, the loader's first batches.
_WARM_UP = 0.25
_FEWEST = 8


def observed_of(table: SampleTable, job: JobScore, settings: Settings) -> dict[str, float | None]:
    """Return the means of what changes of a program show in; None where it was not recorded.

    ``memory_used`` is a share, ``host_cores`` is per GPU, ``checkpoint_every_s`` in seconds; the others are
    levels from 0 to 1.
    """
    traces = [trace for trace in job.traces if trace.scored.any()]
    tables = [(table.of(trace.device.uuid), trace) for trace in traces]
    with np.errstate(divide="ignore", invalid="ignore"):
        used = [column(own, "FB_USED") / column(own, "FB_TOTAL") for own, _ in tables]
    cores = [_mean(column(table.of(host.uuid), "CPU_CORES_USED")) for host in table.hosts]
    known = [each for each in cores if each is not None]
    writes = writes_of(table, settings.thresholds, job.interval) if traces else None
    return {
        "tensor": _mean(*(column(own, "PIPE_TENSOR_ACTIVE")[trace.scored] for own, trace in tables)),
        "fp32": _mean(*(column(own, "PIPE_FP32_ACTIVE")[trace.scored] for own, trace in tables)),
        "memory_used": max((value for each in used if (value := _most(each)) is not None), default=None),
        "host_cores": sum(known) / len(traces) if known and traces else None,
        "checkpoint_every_s": None if writes is None else writes.distance,
    }


def _mean(*parts: NDArray[np.float64]) -> float | None:
    values = np.concatenate([np.zeros(0), *parts])
    values = values[np.isfinite(values)]
    return round(float(values.mean()), 4) if len(values) else None


def _most(values: NDArray[np.float64]) -> float | None:
    values = values[np.isfinite(values)]
    return round(float(values.max()), 4) if len(values) else None


def seconds_of(run: Path) -> float | None:
    """Return how long a run's command took; None where it has not ended, or not well."""
    record = read_record_file(run)
    with suppress(KeyError, TypeError, ValueError):
        if record["exit_status"] == 0:
            started, ended = (datetime.fromisoformat(record[name]) for name in ("started", "ended"))
            return round((ended - started).total_seconds(), 3)
    return None


def pace_of_run(run: Path) -> Pace:
    """Return the rates that a run's processes logged; empty where there are none, or too much to read."""
    with suppress(OSError, ValueError):
        if (run / METRICS_FILE).stat().st_size <= MOST_METRICS_BYTES:
            return pace_of(read_metrics(run))
    return {}


def pace_of(metrics: UserMetrics) -> Pace:
    """Return the steady rates of the lowest rank: its steps a second, and the rates that it logs itself."""
    return dict(_rates(metrics))


def _rates(metrics: UserMetrics) -> Iterator[tuple[str, tuple[float, float]]]:
    step = metrics.of("step")
    if step is not None and (found := _slope(step)) is not None:
        yield STEPS, found
    named = [name for name in metrics.names if name.endswith(_ENDINGS) and name != STEPS]
    for name in named[:_MOST_RATES]:
        rate = metrics.of(name)
        values = _steady(rate.values[np.isfinite(rate.values)]) if rate is not None else np.zeros(0)
        if len(values) >= _FEWEST and values.mean() > 0:
            means = [float(block.mean()) for block in np.array_split(values, _blocks(values))]
            yield name, (float(values.mean()), _error(means))


def _slope(step: UserMetric) -> tuple[float, float] | None:
    known = np.isfinite(step.values)
    times, steps = _steady(step.time_ns[known] / 1e9), _steady(step.values[known])
    if len(steps) < _FEWEST or (np.diff(steps) < 0).any() or times[-1] <= times[0] or steps[-1] <= steps[0]:
        return None
    edges = np.linspace(0, len(steps) - 1, _blocks(steps) + 1).round().astype(int)
    spans = np.diff(times[edges])
    if (spans <= 0).any():
        return None
    slopes = np.diff(steps[edges]) / spans
    return float((steps[-1] - steps[0]) / (times[-1] - times[0])), _error(slopes.tolist())


def _blocks(values: NDArray[np.float64]) -> int:
    return 8 if len(values) >= 32 else 4


def _steady(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values[int(_WARM_UP * len(values)) :]


def _error(means: list[float]) -> float:
    """Return the standard error of a mean from those of blocks, whose noise is not that of single steps."""
    return float(np.std(means, ddof=1) / np.sqrt(len(means)))
