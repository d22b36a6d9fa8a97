"""Simulated GPUs: replay of a recording, and synthetic load computed from the time alone.

Synthetic load has typical patterns, for use in training courses; all recorders see the same values at a time.
"""

import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from ..metric_table import GPU_METRICS
from ..sample import FINE_INTERVAL, Device, Sample, SampleTable, SourceError, values_at
from ..store.segments import read_parquet, read_samples, read_segment
from . import Clock, Source, SourceRequest

GIB = 1024.0**3
_DEFAULT_GPUS = 4
_MAX_GPUS = 1024
_FRACTIONS = tuple(name for name, unit in GPU_METRICS.items() if unit == "1")


class ReplaySource(Source):
    """The devices of a recording, replayed at its original speed in a loop.

    A read returns the newest sample of the elapsed part of the recording, so any interval is possible.

    Parameters
    ----------
    path
        A segment (``.arrows``), a telemetry directory, or a Parquet file of :func:`segments.write_parquet`.

    Raises
    ------
    SourceError
        The recording cannot be read, or has no sample.
    """

    simulated = True

    def __init__(self, path: Path, *, clock: Clock) -> None:
        self.name = f"replay:{path.name}"
        self._clock = clock
        self._started_ns = clock.monotonic_ns()
        table = _load(path)
        # New UUIDs: the recording may be of the same GPUs that are recorded at the same time.
        self._uuids = {device.uuid: f"replay-{device.uuid}" for device in table.devices}
        self.devices: tuple[Device, ...] = tuple(
            replace(device, uuid=self._uuids[device.uuid], simulated=True) for device in table.devices
        )
        self._table = table
        #: True for a recording at 10 Hz, which is replayed at 10 Hz.
        self.fine = 0 < table.interval <= FINE_INTERVAL
        times = [table[d.uuid]["time_ns"] for d in table.devices]
        self._first_ns = int(min(t[0] for t in times if len(t)))
        self._length_ns = (
            int(max(t[-1] for t in times if len(t))) - self._first_ns + int(table.interval * 1e9)
        )

    def read(self) -> list[Sample]:
        """Return the recorded values for the elapsed time, with the current time."""
        time_ns, monotonic_ns = self._clock.time_ns(), self._clock.monotonic_ns()
        due_ns = self._first_ns + (monotonic_ns - self._started_ns) % max(1, self._length_ns)
        samples = []
        for device in self._table.devices:
            columns = self._table[device.uuid]
            row = int(np.searchsorted(columns["time_ns"], due_ns, side="right")) - 1
            if row >= 0:
                uuid, values = self._uuids[device.uuid], values_at(columns, row)
                samples.append(Sample(time_ns, monotonic_ns, uuid, values))
        return samples


def open_replay(argument: str, request: SourceRequest) -> ReplaySource:
    """Open ``replay:FILE``."""
    if not argument:
        raise SourceError("The source replay needs a recording.", "Use replay:FILE.")
    return ReplaySource(Path(argument).expanduser(), clock=request.clock)


def _load(path: Path) -> SampleTable:
    try:
        if path.is_dir():
            table = read_samples(path)
        elif path.suffix == ".parquet":
            table = read_parquet(path)
        else:
            table = read_segment(path)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise SourceError(
            f"The recording {path} can't be read: {error}.",
            "Use a segment (.arrows), a directory of segments or a Parquet file.",
        ) from error
    if not table.rows:
        raise SourceError(
            f"The recording {path} has no samples.",
            "Use a segment, a directory of segments or a Parquet file.",
        )
    return table


class SyntheticSource(Source):
    """GPUs with synthetic load.

    Parameters
    ----------
    name
        ``training``: compute-bound, with input stalls on half of the GPUs and checkpoints; ``idle``;
        ``starved``: utilization 100 %, hardly any work.
    gpus
        Number of GPUs.

    Raises
    ------
    SourceError
        There is no synthetic load with this name.
    """

    simulated = True

    def __init__(self, name: str, *, clock: Clock, gpus: int = _DEFAULT_GPUS) -> None:
        if name not in _LOADS:
            raise SourceError(
                f"There is no simulated source {name!r}.", f"Choose one of {', '.join(_LOADS)}."
            )
        self.name = f"synthetic:{name}"
        self._clock = clock
        self._load, self._memory = _LOADS[name]
        self.devices: tuple[Device, ...] = tuple(
            Device(f"GPU-simulated-{name}-{index}", "gpu", "simulated GPU", index, simulated=True)
            for index in range(gpus)
        )

    def read(self) -> list[Sample]:
        """Return one sample per GPU, which depends only on the time."""
        time_ns, monotonic_ns = self._clock.time_ns(), self._clock.monotonic_ns()
        return [
            Sample(time_ns, monotonic_ns, device.uuid, self._values(time_ns, number))
            for number, device in enumerate(self.devices)
        ]

    def _values(self, time_ns: int, gpu: int) -> dict[str, float | None]:
        levels = self._load(time_ns / 1e9, gpu)
        # Seed with the time, so that every recorder sees the same values at the same time.
        noise = random.Random(time_ns * _MAX_GPUS + gpu)  # noqa: S311
        values: dict[str, float | None] = {}
        for metric, level in levels.items():
            noisy = level * (1.0 + 0.02 * noise.uniform(-1, 1))
            values[metric] = min(1.0, noisy) if metric in _FRACTIONS else noisy
        # Values depend on the time alone, so there is no energy counter: energy is integrated from power.
        values["TOTAL_ENERGY"] = None
        values["FB_USED"] = self._memory * GIB
        values["FB_TOTAL"] = 96.0 * GIB
        return values


def open_synthetic(argument: str, request: SourceRequest) -> SyntheticSource:
    """Open ``synthetic:NAME`` or ``synthetic:NAME:N``."""
    name, colon, number = argument.partition(":")
    if colon and not (number.isascii() and number.isdecimal() and 1 <= int(number[:5]) <= _MAX_GPUS):
        raise SourceError(
            f"{number!r} is not a valid number of simulated GPUs.",
            f"Use synthetic:{name}:N with N from 1 to {_MAX_GPUS}.",
        )
    return SyntheticSource(name, clock=request.clock, gpus=int(number) if colon else _DEFAULT_GPUS)


def _levels(sm: float, tensor: float, dram: float) -> dict[str, float]:
    """Return all metrics of a GPU, derived from three of them."""
    busy = 1.0 if sm > 0.02 else sm
    return {
        "GPU_UTIL": busy,
        "GR_ENGINE_ACTIVE": busy,
        "SM_ACTIVE": sm,
        "SM_OCCUPANCY": 0.35 * sm,
        "PIPE_TENSOR_ACTIVE": tensor,
        "DRAM_ACTIVE": dram,
        "PIPE_FP64_ACTIVE": 0.0,
        "PIPE_FP32_ACTIVE": 0.12 * sm,
        "PIPE_FP16_ACTIVE": 0.04 * sm,
        "PCIE_TX_BYTES": 2e8 * sm,
        "PCIE_RX_BYTES": 9e8 * sm,
        "NVLINK_TX_BYTES": 8e10 * sm,
        "NVLINK_RX_BYTES": 8e10 * sm,
        "POWER_USAGE": 95.0 + 560.0 * (0.5 * sm + 0.4 * tensor + 0.1 * dram),
        "GPU_TEMP": 34.0 + 30.0 * sm,
        "SM_CLOCK": 1980.0 - 180.0 * tensor,
        "PIPE_INT_ACTIVE": 0.05 * sm,
        "C2C_TX_ALL_BYTES": 0.0,
        "C2C_RX_ALL_BYTES": 0.0,
        "CLOCKS_EVENT_REASONS": 0.0,
        "MAX_SM_CLOCK": 1980.0,
    }


def _training(seconds: float, gpu: int) -> dict[str, float]:
    """Return compute-bound training with input stalls on half of the GPUs and checkpoints on all."""
    phase = seconds % 60.0
    if phase >= 54.0:
        return _levels(0.01, 0.0, 0.02)
    if gpu % 4 >= 2 and seconds % 20.0 >= 15.0:
        return _levels(0.16, 0.08, 0.10)
    wave = 0.03 * math.sin(2 * math.pi * seconds / 7.0 + gpu)
    return _levels(0.90 + wave, 0.62 + wave, 0.44 + wave)


def _idle(_seconds: float, _gpu: int) -> dict[str, float]:
    return _levels(0.0, 0.0, 0.0)


def _starved(seconds: float, gpu: int) -> dict[str, float]:
    """Return the levels of a GPU with 100 % utilization: a kernel always runs, but has little work."""
    wave = 0.5 + 0.5 * math.sin(2 * math.pi * seconds / 5.0 + gpu)
    return _levels(0.08 + 0.14 * wave, 0.03 + 0.05 * wave, 0.05 + 0.06 * wave)


_LOADS: dict[str, tuple[Callable[[float, int], dict[str, float]], float]] = {
    "training": (_training, 71.0),
    "idle": (_idle, 0.6),
    "starved": (_starved, 18.0),
}
