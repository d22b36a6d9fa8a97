"""Simulated hardware counters of a job: programs of phases on a grid of 10 ms, which are then sampled.

This module does not depend on how a score is computed. A phase maps metrics to their levels; missing metrics
are 0. Sampling takes means over an interval, as counters do, with noise. `shape` registers a workload shape.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gipfel_extension.telemetry.metric_table import GPU_METRICS, HOST_METRICS
from gipfel_extension.telemetry.sample import Device, SampleTable

GRID_S = 0.01
START_NS = 1_760_000_000 * 10**9
#: The kernel's pressure files are averages over ten seconds.
_PRESSURE_S = 10.0

Phase = Mapping[str, float]
#: Pairs of seconds and phase, in the order in which they run.
Program = Sequence[tuple[float, Phase]]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Model:
    """A GPU model: NVML's name, maximum SM clock (MHz), power limit (W), memory (bytes)."""

    name: str = "NVIDIA H100 80GB HBM3"
    clock: float = 1980.0
    watts: float = 700.0
    memory: float = 80e9


H100 = Model()
GH200 = Model("NVIDIA GH200 120GB", 1980.0, 900.0, 96e9)
L40S = Model("NVIDIA L40S", 2520.0, 350.0, 48e9)
T4 = Model("Tesla T4", 1590.0, 70.0, 16e9)


@dataclass
class Job:
    """Simulated job: the programs of its GPUs and hosts, which it samples.

    Parameters
    ----------
    rng
        Source of all random numbers.
    seconds
        Length of the recording.
    gpus, nodes
        GPUs of the whole job, on so many nodes.
    mig
        True where each GPU is a MIG instance.
    """

    rng: np.random.Generator
    seconds: float = 60.0
    gpus: int = 1
    nodes: int = 1
    model: Model = H100
    #: Metrics that the simulated machine does not record.
    unrecorded: tuple[str, ...] = ()
    #: Share of the GPU's memory in use.
    filled: float = 0.6
    series: dict[str, dict[str, Floats]] = field(default_factory=dict)

    @property
    def points(self) -> int:
        """Length of the grid."""
        return round(self.seconds / GRID_S)

    def gpu(self, number: int) -> Device:
        """Return the device of a GPU of the job."""
        each = self.gpus // self.nodes
        node = f"n{number // each}"
        return Device(f"GPU-{node}-{number % each}", "gpu", self.model.name, number % each, node=node)

    def host(self, node: int) -> Device:
        """Return the device of a node."""
        return Device(f"host:n{node}", "host", f"n{node}", None, node=f"n{node}", scope="job cgroup")

    def run(self, number: int, program: Program) -> None:
        """Run a program on a GPU; it is cut, or followed by idle time, at the end of the recording."""
        self.series[self.gpu(number).uuid] = self._series_of(program)

    def serve(self, node: int, program: Program) -> None:
        """Run a program on the host of a node."""
        self.series[self.host(node).uuid] = self._series_of(program)

    def _series_of(self, program: Program) -> dict[str, Floats]:
        metrics = {metric for _, phase in program for metric in phase}
        drawn = {metric: np.zeros(self.points) for metric in metrics}
        edges = np.minimum(np.rint(np.cumsum([0.0, *(s for s, _ in program)]) / GRID_S), self.points)
        for (_, phase), first, last in zip(program, edges[:-1], edges[1:], strict=True):
            for metric, level in phase.items():
                drawn[metric][int(first) : int(last)] = level
        return drawn

    def sampled(self, interval: float, *, noise: float = 0.015) -> SampleTable:
        """Return means over an interval (s), each with its own noise; at the grid's 10 ms without noise."""
        columns, devices = {}, []
        for number in range(self.gpus):
            device = self.gpu(number)
            devices.append(device)
            columns[device.uuid] = self._columns(device, self._gpu(device), interval, noise)
        for node in range(self.nodes):
            device = self.host(node)
            devices.append(device)
            columns[device.uuid] = self._columns(device, self._host(device), interval, noise)
        return SampleTable(tuple(devices), columns, "campaign", interval)

    def _gpu(self, device: Device) -> dict[str, Floats]:
        full = np.ones(self.points)
        own = dict.fromkeys((*GPU_METRICS, "PIPE_INT_ACTIVE"), np.zeros(self.points))
        own |= self.series.get(device.uuid, {})
        engine, active = own["GR_ENGINE_ACTIVE"], own["SM_ACTIVE"]
        if not own["GPU_UTIL"].any():
            own["GPU_UTIL"] = np.where(engine > 0, np.maximum(engine, np.minimum(1.0, 2 * engine)), 0.0)
        clock = own["SM_CLOCK"]
        own["SM_CLOCK"] = np.where(clock > 0, clock, self.model.clock)
        own["MAX_SM_CLOCK"] = full * self.model.clock
        pipes = np.maximum.reduce([own[f"PIPE_{pipe}_ACTIVE"] for pipe in ("TENSOR", "FP64", "FP32", "INT")])
        load = 0.3 * active + 0.5 * pipes + 0.2 * own["DRAM_ACTIVE"]
        power = own["POWER_USAGE"]
        own["POWER_USAGE"] = np.where(power > 0, power, self.model.watts * (0.12 + 0.83 * load))
        own["GPU_TEMP"] = 35.0 + 35.0 * load
        own["FB_TOTAL"] = full * self.model.memory
        own["FB_USED"] = full * self.model.memory * self.filled
        return own

    def _host(self, device: Device) -> dict[str, Floats]:
        quiet = np.zeros(self.points)
        own = dict.fromkeys(HOST_METRICS, quiet) | self.series.get(device.uuid, {})
        own["CPU_UTIL"] = np.minimum(1.0, own["CPU_CORES_USED"] / 72.0)
        window = np.full(round(_PRESSURE_S / GRID_S), GRID_S / _PRESSURE_S)
        for metric in ("PRESSURE_CPU", "PRESSURE_IO", "PRESSURE_MEMORY"):
            own[metric] = np.convolve(own[metric], window)[: self.points]
        own["MEMORY_TOTAL"], own["MEMORY_USED"] = quiet + 500e9, quiet + 90e9
        return own

    def _columns(
        self, device: Device, own: Mapping[str, Floats], interval: float, noise: float
    ) -> dict[str, NDArray[np.int64] | Floats]:
        width = max(1, round(interval / GRID_S))
        rows = self.points // width
        spread = noise if width > 1 else 0.0
        times = START_NS + (np.arange(1, rows + 1) * interval * 1e9).astype(np.int64)
        columns: dict[str, NDArray[np.int64] | Floats] = {"time_ns": times, "monotonic_ns": times - START_NS}
        units = GPU_METRICS if device.kind == "gpu" else HOST_METRICS
        for metric, values in own.items():
            blocks = values[: rows * width].reshape(rows, width)
            if metric == "CLOCKS_EVENT_REASONS":
                columns[metric] = np.bitwise_or.reduce(blocks.astype(np.int64), axis=1).astype(np.float64)
                continue
            means = blocks.mean(axis=1) * (1.0 + spread * self.rng.standard_normal(rows))
            fraction = units.get(metric, "1") == "1"
            columns[metric] = np.clip(means, 0.0, 1.0) if fraction else np.maximum(0.0, means)
            if metric in ("MAX_SM_CLOCK", "FB_TOTAL", "SM_CLOCK"):
                columns[metric] = blocks.mean(axis=1)
        for metric in self.unrecorded:
            if metric in columns:
                columns[metric] = np.full(rows, np.nan)
        return columns


@dataclass(frozen=True)
class Shape:
    """Workload shape: a kind of work, and the results that count as right.

    Parameters
    ----------
    accepted
        One or two parts of the score that may be named as the bottleneck; ``unexplained`` is one of them only
        where no recorded metric shows the cause.
    draw
        Function that draws a job of random sizes.
    bounds
        Loss to its lowest and highest accepted points.
    unwanted_advice
        Rules that must not give advice on this work.
    why
        Reason for the accepted causes.
    """

    name: str
    accepted: tuple[str, ...]
    draw: Callable[[np.random.Generator], Job]
    why: str
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    unwanted_advice: tuple[str, ...] = ()


Draw = Callable[[np.random.Generator], Job]
#: Workload shapes by name, which the modules beside this one fill.
SHAPES: dict[str, Shape] = {}


def shape(
    *accepted: str,
    why: str,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    unwanted_advice: tuple[str, ...] = (),
) -> Callable[[Draw], Draw]:
    """Register a function that draws a job as a shape under its own name."""

    def register(draw: Draw) -> Draw:
        name = draw.__name__.replace("_", "-")
        assert name not in SHAPES
        assert 1 <= len(accepted) <= 2
        SHAPES[name] = Shape(name, accepted, draw, why, bounds or {}, unwanted_advice)
        return draw

    return register
