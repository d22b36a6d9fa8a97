"""Capped clocks, and checkpoints."""

import numpy as np

from .phases import APPLICATION_CLOCKS, HOT, OFF, POWER_CAP, kernel, matmul, transformer
from .recording import Job, Phase, Program, shape

Rng = np.random.Generator
_PRECISION = ("quarter-precision", "half-precision")
_LOADER_ADVICE = ("loader-workers", "pinned-memory")


def _clocked(rng: Rng, phase: Phase, clock: float, reasons: int, **job: object) -> Job:
    made = Job(rng, seconds=60.0, **job)  # type: ignore[arg-type]
    made.run(0, [(0.5, OFF), (60.0, {**phase, "SM_CLOCK": clock, "CLOCKS_EVENT_REASONS": float(reasons)})])
    made.serve(0, [(60.0, {"CPU_CORES_USED": 0.5})])
    return made


@shape(
    "capped",
    "compute",
    why="a power cap halves the clock of a full pipe",
    bounds={"capped": (35, 58)},
    unwanted_advice=_PRECISION,
)
def power_cap(rng: Rng) -> Job:
    return _clocked(rng, matmul(rng), rng.uniform(900, 1150), POWER_CAP)


@shape(
    "capped",
    why="heat takes five sixths of the clock",
    bounds={"capped": (65, 90)},
    unwanted_advice=_PRECISION,
)
def thermal_slowdown(rng: Rng) -> Job:
    return _clocked(rng, matmul(rng), rng.uniform(240, 450), HOT)


@shape(
    "capped",
    "compute",
    why="the clock was set to two thirds",
    bounds={"capped": (20, 45)},
    unwanted_advice=_PRECISION,
)
def clock_was_set_low(rng: Rng) -> Job:
    return _clocked(rng, matmul(rng), rng.uniform(1150, 1400), APPLICATION_CLOCKS)


@shape(
    "unexplained",
    "occupancy",
    why="latency binds, and the clock is near its maximum though the bit is set",
    bounds={"capped": (0, 5)},
    unwanted_advice=("capping",),
)
def latency_at_full_clock(rng: Rng) -> Job:
    phase = kernel(pipe="FP32", load=rng.uniform(0.2, 0.3), dram=0.2, occupancy=0.4)
    return _clocked(rng, phase, rng.uniform(1900, 1960), POWER_CAP)


@shape(
    "compute",
    "unexplained",
    why="training at the power limit runs a tenth below the maximum clock",
    bounds={"capped": (2, 15)},
    unwanted_advice=("capping",),
)
def training_at_the_power_limit(rng: Rng) -> Job:
    phase = kernel(load=rng.uniform(0.42, 0.55), dram=0.35, active=0.96, POWER_USAGE=695.0)
    return _clocked(rng, phase, rng.uniform(1720, 1850), POWER_CAP)


@shape("memory", why="memory-bound work does not need the clock that a cap takes", bounds={"capped": (0, 8)})
def copy_under_a_power_cap(rng: Rng) -> Job:
    phase = kernel(pipe="FP32", load=0.05, dram=rng.uniform(0.84, 0.91), active=0.98, occupancy=0.9)
    return _clocked(rng, phase, rng.uniform(1200, 1500), POWER_CAP)


def _checkpoints(rng: Rng, write: Phase, *, nodes: int = 1, writers: int = 1, waits: bool = True) -> Job:
    """Return forty to fifty seconds of training, then a checkpoint of six to twelve seconds, three times."""
    made = Job(rng, seconds=180.0, gpus=4 * nodes, nodes=nodes)
    work, pause = rng.uniform(42, 52), rng.uniform(6, 12)
    training = transformer(rng)
    program: Program = [(work, training), (pause, OFF if waits else training)] * 4
    for number in range(made.gpus):
        made.run(number, program)
    for node in range(nodes):
        quiet = {"CPU_CORES_USED": 4.0}
        made.serve(node, [(work, quiet), (pause, {**quiet, **(write if node < writers else {})})] * 4)
    return made


_BOUNDS = {"checkpoint": (8.0, 22.0)}


@shape(
    "compute",
    "unexplained",
    why="checkpoints to a local disk, while GPUs wait",
    bounds=_BOUNDS,
    unwanted_advice=_LOADER_ADVICE,
)
def checkpoint_to_disk(rng: Rng) -> Job:
    return _checkpoints(rng, {"IO_WRITE_BYTES": rng.uniform(8e8, 5e9)})


@shape(
    "compute",
    "unexplained",
    why="checkpoints to Lustre, while GPUs wait",
    bounds=_BOUNDS,
    unwanted_advice=_LOADER_ADVICE,
)
def checkpoint_to_lustre(rng: Rng) -> Job:
    return _checkpoints(rng, {"LUSTRE_WRITE_BYTES": rng.uniform(1e9, 2e10)})


@shape(
    "compute",
    "unexplained",
    why="checkpoints to NFS, while GPUs wait",
    bounds=_BOUNDS,
    unwanted_advice=_LOADER_ADVICE,
)
def checkpoint_to_nfs(rng: Rng) -> Job:
    return _checkpoints(rng, {"NFS_WRITE_BYTES": rng.uniform(5e8, 2e9)})


@shape(
    "compute",
    "unexplained",
    why="one node writes, the GPUs of all nodes wait",
    bounds=_BOUNDS,
    unwanted_advice=_LOADER_ADVICE,
)
def checkpoint_by_one_node(rng: Rng) -> Job:
    return _checkpoints(rng, {"LUSTRE_WRITE_BYTES": rng.uniform(1e9, 1e10)}, nodes=2)


@shape(
    "compute",
    "unexplained",
    why="checkpoints are written while training goes on",
    bounds={"checkpoint": (0, 3)},
    unwanted_advice=("asynchronous-checkpoint", *_LOADER_ADVICE),
)
def checkpoint_in_the_background(rng: Rng) -> Job:
    return _checkpoints(rng, {"IO_WRITE_BYTES": rng.uniform(8e8, 3e9)}, waits=False)
