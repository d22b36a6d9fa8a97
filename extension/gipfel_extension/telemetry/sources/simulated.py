"""Simulated GPUs: a recording played again, and made-up load computed from the time alone.

Made-up GPUs take shapes that a learner meets; two recorders at the same time see the same values.
"""

import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from ..metric_table import GPU_METRICS
from ..sample import FINE_INTERVAL, Device, Sample, SampleTable, SourceError, metric_names
from ..store.segments import read_parquet, read_samples, read_segment
from . import Clock, SourceRequest

GIB = 1024.0**3
_USUAL_GPUS = 4
_MOST_GPUS = 1024
_FRACTIONS = tuple(name for name, unit in GPU_METRICS.items() if unit == "1")


class ReplaySource:
    """The devices of a recording, at the pace at which they were recorded.

    Values are those of the recorded sample before the time that has passed, so the pace of reading is free.

    Parameters
    ----------
    path
        A segment (``.arrows``), a telemetry folder, or Parquet as :func:`segments.write_parquet` makes it.

    Raises
    ------
    SourceError
        The file can't be read, or holds no sample.
    """

    simulated = True

    def __init__(self, path: Path, *, clock: Clock) -> None:
        self.name = f"replay:{path.name}"
        self._clock = clock
        self._started_ns = clock.monotonic_ns()
        table = _load(path)
        # A name of its own: the recording may be of the very GPUs that are recorded beside it.
        self._uuids = {device.uuid: f"replay-{device.uuid}" for device in table.devices}
        self.devices: tuple[Device, ...] = tuple(
            replace(device, uuid=self._uuids[device.uuid], simulated=True) for device in table.devices
        )
        self._table = table
        #: A recording of ten samples a second is replayed as one.
        self.fine = 0 < table.interval <= FINE_INTERVAL
        times = [table.of(d.uuid)["time_ns"] for d in table.devices]
        self._first_ns = int(min(t[0] for t in times if len(t)))
        self._length_ns = (
            int(max(t[-1] for t in times if len(t))) - self._first_ns + int(table.interval * 1e9)
        )

    def read(self) -> list[Sample]:
        """Return the recorded values that are due now, under the present time."""
        time_ns, monotonic_ns = self._clock.time_ns(), self._clock.monotonic_ns()
        due_ns = self._first_ns + (monotonic_ns - self._started_ns) % max(1, self._length_ns)
        samples = []
        for device in self._table.devices:
            columns = self._table.of(device.uuid)
            row = int(np.searchsorted(columns["time_ns"], due_ns, side="right")) - 1
            if row >= 0:
                numbers = {metric: float(columns[metric][row]) for metric in metric_names(columns)}
                values = {metric: None if np.isnan(value) else value for metric, value in numbers.items()}
                samples.append(Sample(time_ns, monotonic_ns, self._uuids[device.uuid], values))
        return samples

    def close(self) -> None:
        """Hold nothing, give nothing back."""


def open_replay(argument: str, request: SourceRequest) -> ReplaySource:
    """Open ``replay:FILE``."""
    if not argument:
        raise SourceError("replay names no recording.", "Use replay:FILE.")
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
            "Name a segment (.arrows), a folder of them or Parquet.",
        ) from error
    if not table.rows:
        raise SourceError(
            f"The recording {path} holds no sample.", "Name a segment, a folder of them or Parquet."
        )
    return table


class SyntheticSource:
    """GPUs with synthetic load.

    Parameters
    ----------
    name
        ``training``: compute-bound, with input stalls on half of the GPUs and checkpoints; ``idle``;
        ``starved``: utilization 100 %, hardly any work.
    gpus
        How many.

    Raises
    ------
    SourceError
        There is no simulated source of that name.
    """

    simulated = True

    def __init__(self, name: str, *, clock: Clock, gpus: int = _USUAL_GPUS) -> None:
        if name not in _SHAPES:
            raise SourceError(
                f"There is no simulated source {name!r}.", f"Choose one of {', '.join(_SHAPES)}."
            )
        self.name = f"synthetic:{name}"
        self._clock = clock
        self._shape, self._memory = _SHAPES[name]
        self.devices: tuple[Device, ...] = tuple(
            Device(f"GPU-simulated-{name}-{index}", "gpu", "simulated GPU", index, simulated=True)
            for index in range(gpus)
        )

    def read(self) -> list[Sample]:
        """Return one sample per GPU, a pure function of the time."""
        time_ns, monotonic_ns = self._clock.time_ns(), self._clock.monotonic_ns()
        return [
            Sample(time_ns, monotonic_ns, device.uuid, self._values(time_ns, number))
            for number, device in enumerate(self.devices)
        ]

    def close(self) -> None:
        """Hold nothing, give nothing back."""

    def _values(self, time_ns: int, gpu: int) -> dict[str, float | None]:
        levels = self._shape(time_ns / 1e9, gpu)
        # Noise from the time, not from a state: the same instant gives the same values in every recorder.
        noise = random.Random(time_ns * _MOST_GPUS + gpu)  # noqa: S311
        values: dict[str, float | None] = {}
        for metric, level in levels.items():
            moved = level * (1.0 + 0.02 * noise.uniform(-1, 1))
            values[metric] = min(1.0, moved) if metric in _FRACTIONS else moved
        values["FB_USED"] = self._memory * GIB
        values["FB_TOTAL"] = 96.0 * GIB
        return values


def open_synthetic(argument: str, request: SourceRequest) -> SyntheticSource:
    """Open ``synthetic:NAME`` or ``synthetic:NAME:N``."""
    name, colon, number = argument.partition(":")
    if colon and not (number.isascii() and number.isdecimal() and 1 <= int(number[:5]) <= _MOST_GPUS):
        raise SourceError(
            f"{number!r} is not a valid number of simulated GPUs.",
            f"Use synthetic:{name}:N with N from 1 to {_MOST_GPUS}.",
        )
    return SyntheticSource(name, clock=request.clock, gpus=int(number) if colon else _USUAL_GPUS)


def _levels(sm: float, tensor: float, dram: float) -> dict[str, float]:
    """Return GPU activity whose other metrics follow from three."""
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
    """Return compute-bound steps; input stalls two GPUs of four every 20 s, a checkpoint all every 60 s."""
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
    """Return levels of a GPU on which a kernel always runs, so utilization is 100 %, but has little work."""
    wave = 0.5 + 0.5 * math.sin(2 * math.pi * seconds / 5.0 + gpu)
    return _levels(0.08 + 0.14 * wave, 0.03 + 0.05 * wave, 0.05 + 0.06 * wave)


_SHAPES: dict[str, tuple[Callable[[float, int], dict[str, float]], float]] = {
    "training": (_training, 71.0),
    "idle": (_idle, 0.6),
    "starved": (_starved, 18.0),
}
