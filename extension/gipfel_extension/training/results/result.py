"""Results of runs in a run folder, to compare with later runs, and indicators that advice was followed."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from gipfel_cluster.model import Frozen

from ...saturation import JobScore, Settings
from ...saturation.advice.checkpoint import write_bursts_of
from ...saturation.levels import column
from ...saturation.report.document import SCHEMA_VERSION
from ...telemetry.files import modified_ns, read_object, read_record_file
from ...telemetry.sample import SampleTable
from ...telemetry.user_metrics import METRICS_FILE, UserMetric, UserMetrics, read_metrics
from .program import IRRELEVANT_OPTIONS, RULE_OPTIONS, Program, program_of_run, workload_of

MAX_BYTES = 16 << 20
#: Largest number of runs that are searched for one of the same program, the newest first.
_MAX_RUNS = 300
_MAX_FOLDERS = 20_000
#: Mean and standard error of each rate, by name.
Rates = dict[str, tuple[float, float]]
STEPS = "steps_per_s"
_ENDINGS = ("_per_s", "_per_sec", "_per_second", "/s")
#: Size from which a file takes too long to read at the end of a job.
_MAX_METRICS_BYTES = 64 << 20
_MAX_RATES = 16
#: Share of the log that is left out as warm-up: compilation, caches, the loader's first batches.
_WARM_UP = 0.25
#: Minimum number of logged values from which a rate is computed.
_MIN_VALUES = 8
#: A loss has decreased if it is lower by this many points of the score and by this fraction of its value;
#: smaller changes are noise.
_POINTS, _SHARE = 3.0, 1 / 3
#: Activity below which tensor pipes count as unused; minimum change of memory use (a share) and of an
#: interval (relative) that count as a change.
_UNUSED, _MEMORY, _APART = 0.05, 0.05, 0.25
Observed = Mapping[str, float | None]
#: Rule to the loss that its change reduces.
LOSS_OF = {
    "loader-workers": "input",
    "pinned-memory": "input",
    "video-decoder": "input",
    "compile": "launch",
    "cuda-graphs": "launch",
    "batch-size": "occupancy",
    "activation-checkpointing": "occupancy",
    "bucket-size": "communication",
    "placement": "communication",
    "slow-rank": "imbalance",
    "asynchronous-checkpoint": "checkpoint",
    "capping": "capped",
}
#: Rules whose change can be detected by a lower loss. For others there are more causes: a warm page cache
#: speeds up input, and other nodes change communication and clocks.
_SEEN_BY_LOSS = frozenset(
    ("compile", "cuda-graphs", "asynchronous-checkpoint", "slow-rank", "loader-workers")
)
#: Factor by which the use of host cores rises with more loader workers.
_MORE_CORES = 1.2
#: Rules that advise to increase a value; a lower value does not follow the advice.
_UPWARDS = frozenset(("loader-workers", "batch-size", "bucket-size"))
_NUMBER = re.compile(r"[0-9]{1,12}")


class SavedSetting(Frozen, extra="ignore"):
    """Setting that an advice is about."""

    name: str = Field(max_length=200)


class SavedAdvice(Frozen, extra="ignore", allow_inf_nan=False):
    """A piece of advice of an earlier run, with the bounds of its speedup."""

    rule: str = Field(max_length=64)
    knob: SavedSetting
    gain: float = Field(ge=0, le=100)
    speedup: tuple[float, float] | None = None


class SavedGpu(Frozen, extra="ignore"):
    """A GPU of the run."""

    name: str = Field("", max_length=200)


class SavedResult(Frozen, extra="ignore", allow_inf_nan=False):
    """The part of ``score.json`` that is compared with a later run.

    ``losses`` are points of the score by cause. ``interval_s`` is the interval of the samples, ``weights``
    are those of the score. ``observed`` is the result of `observed_of`, ``rates`` that of `rates_of`;
    ``seconds`` is the duration of the run's command.
    """

    score: float | None = Field(ge=0, le=100)
    losses: dict[str, float | None]
    confidence: float | None
    simulated: bool
    interval_s: float | None = None
    weights: dict[str, float] = Field(default={})
    advice: tuple[SavedAdvice, ...] = Field(max_length=100)
    gpus: tuple[SavedGpu, ...] = Field(max_length=100_000)
    observed: dict[str, float | None] = Field(default={})
    rates: dict[str, tuple[float, float]] = Field(default={})
    seconds: float | None = Field(None, ge=0)

    @property
    def steady(self) -> float:
        """Return the share of the time after startup, whose length does not depend on the work."""
        return max(0.01, 1.0 - (self.losses.get("start_up") or 0.0) / 100.0)


class Result(Frozen):
    """Result of a run, with its program and image."""

    run: str
    started: str
    program: Program
    image: str
    saved: SavedResult


def result_of(run: Path, document: Any) -> Result | None:
    """Return the result of a run whose document is known; None if its program is unknown."""
    record, program = read_record_file(run), program_of_run(run)
    started = record.get("started")
    if program is None or not isinstance(started, str):
        return None
    image = record.get("image")
    digest = image.get("digest") if isinstance(image, dict) else None
    with suppress(ValidationError):
        saved = SavedResult.model_validate(document)
        return Result(run=run.name, started=started, program=program, image=str(digest or ""), saved=saved)
    return None


def earlier_result(now: Result, runs: Path) -> Result | None:
    """Return the newest scored result of an earlier run of the same program; None without one."""
    found = [
        each
        for each in _results(runs, now.run)
        if each.started < now.started and each.program.name == now.program.name
    ]
    return max(found, key=lambda each: each.started, default=None)


def observed_of(table: SampleTable, job: JobScore, settings: Settings) -> dict[str, float | None]:
    """Return means of the measurements that changes of a program affect; None if not recorded.

    ``memory_used`` is a share, ``host_cores`` is per GPU, ``checkpoint_every_s`` in seconds; the others are
    levels from 0 to 1.
    """
    traces = [trace for trace in job.traces if trace.scored.any()]
    tables = [(table[trace.device.uuid], trace) for trace in traces]
    with np.errstate(divide="ignore", invalid="ignore"):
        used = [column(own, "FB_USED") / column(own, "FB_TOTAL") for own, _ in tables]
    cores = [_mean(column(table[host.uuid], "CPU_CORES_USED")) for host in table.hosts]
    known = [each for each in cores if each is not None]
    writes = write_bursts_of(table, settings.thresholds, job.interval) if traces else None
    return {
        "tensor": _mean(*(column(own, "PIPE_TENSOR_ACTIVE")[trace.scored] for own, trace in tables)),
        "fp32": _mean(*(column(own, "PIPE_FP32_ACTIVE")[trace.scored] for own, trace in tables)),
        "memory_used": max((value for each in used if (value := _most(each)) is not None), default=None),
        "host_cores": sum(known) / len(traces) if known and traces else None,
        "checkpoint_every_s": None if writes is None else writes.distance,
    }


def seconds_of(run: Path) -> float | None:
    """Return the duration of a run's command; None if it has not ended successfully."""
    record = read_record_file(run)
    with suppress(KeyError, TypeError, ValueError):
        if record["exit_status"] == 0:
            started, ended = (datetime.fromisoformat(record[name]) for name in ("started", "ended"))
            return round((ended - started).total_seconds(), 3)
    return None


def rates_of_run(run: Path, launch: str | None = None, since_ns: int = 0, until_ns: int = 2**63 - 1) -> Rates:
    """Return the rates that a run's processes have logged; empty without any, or if the file is too large.

    Parameters
    ----------
    launch
        Name of a launch, to return only what its ranks have logged.
    """
    with suppress(OSError, ValueError):
        if (run / METRICS_FILE).stat().st_size <= _MAX_METRICS_BYTES:
            logged = read_metrics(run).between(since_ns, until_ns).series
            return rates_of(UserMetrics(tuple(each for each in logged if launch in (None, each.launch))))
    return {}


def rates_of(metrics: UserMetrics) -> Rates:
    """Return the rates of the lowest rank after warm-up: steps per second, and rates that it logs."""
    return dict(_steady_rates(metrics))


def _results(runs: Path, without: str) -> Iterator[Result]:
    folders: list[Path] = []
    with suppress(OSError):
        folders += [each for each in islice(runs.iterdir(), _MAX_FOLDERS) if each.name != without]
    folders.sort(key=lambda each: modified_ns(each / "score.json"), reverse=True)
    for folder in folders[:_MAX_RUNS]:
        document = read_object(folder / "score.json", MAX_BYTES)
        result = result_of(folder, document) if document.get("schema_version") == SCHEMA_VERSION else None
        if result is not None and result.saved.score is not None:
            yield result


def _mean(*parts: NDArray[np.float64]) -> float | None:
    values = np.concatenate([np.zeros(0), *parts])
    values = values[np.isfinite(values)]
    return round(float(values.mean()), 4) if len(values) else None


def _most(values: NDArray[np.float64]) -> float | None:
    values = values[np.isfinite(values)]
    return round(float(values.max()), 4) if len(values) else None


def _steady_rates(metrics: UserMetrics) -> Iterator[tuple[str, tuple[float, float]]]:
    step = metrics.find("step")
    if step is not None and (found := _slope(step)) is not None:
        yield STEPS, found
    named = [name for name in metrics.names if name.endswith(_ENDINGS) and name != STEPS]
    for name in named[:_MAX_RATES]:
        rate = metrics.find(name)
        values = _steady(rate.values[np.isfinite(rate.values)]) if rate is not None else np.zeros(0)
        if len(values) >= _MIN_VALUES and values.mean() > 0:
            means = [float(block.mean()) for block in np.array_split(values, _blocks(values))]
            yield name, (float(values.mean()), _error(means))


def _slope(step: UserMetric) -> tuple[float, float] | None:
    known = np.isfinite(step.values)
    times, steps = _steady(step.time_ns[known] / 1e9), _steady(step.values[known])
    if (
        len(steps) < _MIN_VALUES
        or (np.diff(steps) < 0).any()
        or times[-1] <= times[0]
        or steps[-1] <= steps[0]
    ):
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
    """Return the standard error of a mean from means of blocks, because single steps are correlated."""
    return float(np.std(means, ddof=1) / np.sqrt(len(means)))


def option_indicator(rule: str, before: Result, now: Result) -> str:
    """Return the changed option that follows the advice of a rule; empty if there is none."""
    pattern = RULE_OPTIONS.get(rule)
    if pattern is None:
        return ""
    if rule in {"half-precision", "quarter-precision"}:
        return _precision(rule, before, now)
    for name in changed_options(before, now):
        first, second = before.program.options.get(name, ""), now.program.options.get(name, "")
        if pattern.search(name) and now.program.is_enabled(name):
            numbers = _NUMBER.fullmatch(first), _NUMBER.fullmatch(second)
            if rule in _UPWARDS and all(numbers) and int(second) <= int(first):
                continue
            return f"option {name}"
    return ""


def _precision(rule: str, before: Result, now: Result) -> str:
    first, second = (workload_of(each.program).precision for each in (before, now))
    wanted = {"fp8"} if rule == "quarter-precision" else {"bf16", "fp16", "tf32"}
    return f"{second} by its options" if second in wanted and first != second else ""


def changed_options(before: Result, now: Result) -> Iterator[str]:
    """Yield the names of options whose values differ, or that only one of the runs has."""
    first, second = before.program.options, now.program.options
    for name in dict.fromkeys((*first, *second)):
        if first.get(name) != second.get(name):
            yield name


def other_options(before: Result, now: Result, rules: set[str]) -> tuple[str, ...]:
    """Return the options that differ, except those of the rules and those that do not affect speed."""
    known = [IRRELEVANT_OPTIONS, *(RULE_OPTIONS[rule] for rule in rules if rule in RULE_OPTIONS)]
    return tuple(
        name for name in changed_options(before, now) if not any(each.search(name) for each in known)
    )


def data_indicator(rule: str, before: Result, now: Result) -> str:
    """Return the change in the samples that follows the advice of a rule; empty without one."""
    own = _OWN.get(rule)
    return own(before.saved.observed, now.saved.observed) if own else _loss_indicator(rule, before, now)


def _loss_indicator(rule: str, before: Result, now: Result) -> str:
    # Losses at different sampling intervals are not comparable.
    if rule not in _SEEN_BY_LOSS or before.saved.interval_s != now.saved.interval_s:
        return ""
    loss, cores = LOSS_OF[rule], _pair("host_cores", before.saved.observed, now.saved.observed)
    if rule == "loader-workers" and not cores[1] >= _MORE_CORES * cores[0]:
        return ""
    # As a share of the time after startup, because startup is a smaller share of a longer run.
    first, second = ((each.saved.losses.get(loss) or 0.0) / each.saved.steady for each in (before, now))
    if first - second < max(_POINTS, _SHARE * first):
        return ""
    return f"{loss} from {first:.0f} to {second:.0f} points"


def _pair(name: str, first: Observed, second: Observed) -> tuple[float, float]:
    """Return the values of both runs; NaN for both if one is unknown, so that no comparison is true."""
    a, b = first.get(name), second.get(name)
    return (math.nan, math.nan) if a is None or b is None else (a, b)


def _tensor(first: Observed, second: Observed) -> str:
    before, now = _pair("tensor", first, second)
    single = _pair("fp32", first, second)
    if before < _UNUSED <= now - _UNUSED and single[1] < 0.5 * single[0]:
        return f"tensor pipes from {100 * before:.0f} to {100 * now:.0f} %"
    return ""


def _memory(first: Observed, second: Observed, *, upwards: bool) -> str:
    before, now = _pair("memory_used", first, second)
    more = now - before if upwards else before - now
    return f"memory in use from {100 * before:.0f} to {100 * now:.0f} %" if more >= _MEMORY else ""


def _interval(first: Observed, second: Observed) -> str:
    before, now = _pair("checkpoint_every_s", first, second)
    if abs(now - before) >= _APART * before:
        return f"checkpoints every {now:.0f} s in place of {before:.0f} s"
    return ""


_OWN: Mapping[str, Callable[[Observed, Observed], str]] = {
    "half-precision": _tensor,
    "batch-size": partial(_memory, upwards=True),
    "activation-checkpointing": partial(_memory, upwards=False),
    "checkpoint-interval": _interval,
}
