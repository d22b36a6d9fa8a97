"""Simulated runs with samples: what moves with a change, and phases between steps."""

from collections import Counter
from collections.abc import Callable

import numpy as np
from step_tables import TRIED as NOISE
from step_tables import Floats

from gipfel_extension.diagnosis.phases import find_phases
from gipfel_extension.diagnosis.series_changes import find_explanation, find_series_changes
from gipfel_extension.diagnosis.steps import StepTable
from gipfel_extension.telemetry.sample import Device, SampleTable

Measure = Callable[[np.random.Generator, str], Counter[str]]
_START_NS = 1_800_000_000_000_000_000
#: Series of a GPU and of a host: usual level and the share that they scatter by.
_GPU = {"SM_CLOCK": (1900, 0.01), "MEM_CLOCK": (2600, 0.002), "GPU_TEMP": (55, 0.02), "POWER": (500, 0.1),
        "SM_ACTIVE": (0.8, 0.1), "PIPE_TENSOR_ACTIVE": (0.4, 0.2), "DRAM_ACTIVE": (0.3, 0.2),
        "PCIE_RX_BYTES": (1e9, 0.5)}  # fmt: skip
_HOST = {"CPU_UTIL": (0.3, 0.2), "PRESSURE_IO": (0.02, 0.5), "PRESSURE_CPU": (0.03, 0.5),
         "IO_WRITE_BYTES": (2e6, 1.0), "IO_READ_BYTES": (5e7, 0.5), "MEMORY_USED": (2e11, 0.02)}  # fmt: skip
_SERIES = {"gpu": _GPU, "host": _HOST}
#: How the level of a series moves when it does.
_MOVES = {"SM_CLOCK": 0.8, "PRESSURE_IO": 10.0, "IO_READ_BYTES": 0.4, "GPU_TEMP": 1.25}


def cells() -> dict[str, Measure]:
    """Return the measurement of one draw of each cell."""
    found: dict[str, Measure] = {f"moved.{count}.of-{gpus}": _moved(count, gpus) for count in (0, 2)
                                 for gpus in (4, 32)}  # fmt: skip
    return found | {f"phases.0.{kind}": _phases(kind) for kind in ("none", "sampled", "bare")}


def _series(rng: np.random.Generator, count: int) -> Floats:
    """Return noise of one deviation: white, with memory, drifting, in bursts, or in two levels."""
    white = rng.normal(0, 1, count)
    kind = rng.integers(5)
    if kind == 1:
        memory = rng.uniform(0.5, 0.9)
        for index in range(1, count):
            white[index] = memory * white[index - 1] + np.sqrt(1 - memory**2) * white[index]
    elif kind == 2:
        white = white / 2 + np.linspace(-1.5, 1.5, count) * rng.choice([-1, 1])
    elif kind == 3:
        white = white / 2 + (rng.random(count) < 0.1) * rng.exponential(3, count)
    elif kind == 4:
        length = int(rng.integers(3, 12))
        white = white / 3 + 1.5 * (np.arange(count) // length % 2)
    return white


def _samples(rng: np.random.Generator, gpus: int, count: int, at: int, moved: list[str]) -> SampleTable:
    """Return samples of a node each second; a moved series changes on all devices that have it, or on one."""
    devices = [Device(f"GPU-{n}", "gpu", "H100", n, "n0") for n in range(gpus)] + [
        Device("host", "host", "host", None, "n0")
    ]
    time_ns = _START_NS + np.arange(count) * 1_000_000_000
    alone = {metric: rng.random() < 0.5 for metric in moved}
    columns = {}
    for device in devices:
        own = {"time_ns": time_ns, "monotonic_ns": time_ns - _START_NS}
        for metric, (level, share) in _SERIES[device.kind].items():
            values = level * np.maximum(0.0, 1 + share * _series(rng, count))
            if metric in moved and (device.kind == "host" or not alone[metric] or device.index == 1):
                values[at:] *= _MOVES[metric]
            own[metric] = values
        columns[device.uuid] = own
    return SampleTable(tuple(devices), columns, interval=1.0)


def _moved(count: int, gpus: int) -> Measure:
    def measure(rng: np.random.Generator, _: str) -> Counter[str]:
        at = int(rng.integers(60, 140))
        moved = rng.choice(sorted(_MOVES), count, replace=False).tolist()
        table = _samples(rng, gpus, 200, at, moved)
        times = [int(_START_NS + 1e9 * each) for each in (at, max(0, at - 50), min(199, at + 50))]
        found = {each.metric for each in find_series_changes(table, *times)}
        explanation = find_explanation(table, *times, slower=True)
        explains = [each for each in moved if each != "IO_READ_BYTES"]
        return Counter(
            {
                "false": bool(found - set(moved)),
                "found": count > 0 and set(moved) <= found,
                "one found": bool(explanation) if explains else 0,
                "of one": bool(explains),
                "one false": explanation is not None and explanation.metric not in moved,
            }
        )

    return measure


def _phases(kind: str) -> Measure:
    """Return runs with set-up and, unless `kind` is "none", checkpoints, evaluations and a pause."""

    def measure(rng: np.random.Generator, noise: str) -> Counter[str]:
        count, step_s = int(rng.integers(200, 500)), float(rng.uniform(0.5, 6))
        noise = noise if noise != "crowds" else "coarse"  # whose steps that wait for files are pauses
        seconds = step_s * NOISE[noise](rng, (1, count), rng.uniform(0.01, 0.08))[0]
        extra, kinds = np.zeros(count), np.full(count, "", dtype="<U10")
        every, cost = int(rng.integers(20, 60)), float(rng.uniform(3, 12)) * step_s
        if kind != "none":
            extra[every::every] = cost * rng.uniform(0.9, 1.1, len(extra[every::every]))
            kinds[every::every] = "checkpoint"
        if kind == "sampled":
            own = slice(every + every // 2, None, 3 * every)
            extra[own] = 2 * cost * rng.uniform(0.9, 1.1, len(extra[own]))
            kinds[own] = "evaluation"
            pause = every + 3 + int(rng.integers(every // 4))
            extra[pause], kinds[pause] = 3 * cost, "pause"
        start = float(rng.uniform(20, 200))
        ends = start + np.cumsum(seconds + extra)
        table = StepTable(np.arange(2), np.arange(count), (_START_NS + ends * 1e9).astype(np.int64),
                          np.tile(seconds + extra, (2, 1)), np.tile(seconds, (2, 1)))  # fmt: skip
        samples = None if kind == "bare" else _samples_of(rng, ends, extra, kinds)
        found = find_phases(table, samples, _START_NS)
        assert found is not None
        told = {each.kind: each for each in found.phases}
        truth = {name: float(extra[kinds == name].sum()) for name in ("checkpoint", "evaluation", "pause")}
        if kind == "bare":
            truth = {"regular": truth["checkpoint"]}
        truth = {name: cost for name, cost in truth.items() if cost}
        right = {name for name, cost in truth.items() if name in told and _near(told[name].seconds, cost)}
        named = "regular" if kind == "bare" else "checkpoint"
        regular = kind == "none" or (named in told and told[named].every == every)
        return Counter(
            {
                "false": bool(told.keys() - truth.keys() - {"set_up"}),
                "found": right == truth.keys() and regular,
                "set-up": "set_up" in told and abs(told["set_up"].seconds - start) < 0.1 * start + step_s,
                "pace": abs(found.step_s / float(np.median(seconds)) - 1) < 0.02,
            }
        )

    return measure


def _near(value: float, truth: float) -> bool:
    return abs(value - truth) < 0.1 * truth


def _samples_of(rng: np.random.Generator, ends: Floats, extra: Floats, kinds: np.ndarray) -> SampleTable:
    """Return samples each second: a checkpoint writes, an evaluation works, a pause does neither."""
    count = int(ends[-1]) + 1
    active = np.clip(rng.normal(0.4, 0.05, count), 0, 1)
    write = rng.exponential(1e6, count)
    for end, seconds, kind in zip(ends, extra, kinds, strict=True):
        inside = slice(int(np.ceil(end - seconds)), int(end) + 1)
        if kind:
            active[inside] = rng.normal(0.3, 0.03) if kind == "evaluation" else 0.0
        if kind == "checkpoint":
            write[inside] = rng.uniform(2e8, 2e9)
    time_ns = _START_NS + np.arange(count) * 1_000_000_000
    devices = (Device("GPU-0", "gpu", "H100", 0, "n0"), Device("host", "host", "host", None, "n0"))
    both = {"time_ns": time_ns, "monotonic_ns": time_ns - _START_NS}
    columns = {"GPU-0": {**both, "SM_ACTIVE": active}, "host": {**both, "IO_WRITE_BYTES": write}}
    return SampleTable(devices, columns, interval=1.0)
