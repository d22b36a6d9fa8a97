"""Simulated GPUs: shapes that a learner meets, computed from the time alone, so that two runs agree."""

import math
import random
from collections.abc import Callable

from ..sample import GPU_METRICS, Device, Sample, SourceError
from .protocol import Clock, SourceRequest

GIB = 1024.0**3

_GPUS = 4
_MOST_GPUS = 1024
_FRACTIONS = tuple(name for name, unit in GPU_METRICS.items() if unit == "1")


def _levels(sm: float, tensor: float, dram: float) -> dict[str, float]:
    """GPU activity whose other metrics follow from three."""
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
    """Compute-bound steps; input stalls two GPUs of four every 20 s, a checkpoint all every 60 s."""
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
    """A kernel always runs, so utilization says 100 %, but little of the GPU has work."""
    wave = 0.5 + 0.5 * math.sin(2 * math.pi * seconds / 5.0 + gpu)
    return _levels(0.08 + 0.14 * wave, 0.03 + 0.05 * wave, 0.05 + 0.06 * wave)


_SHAPES: dict[str, tuple[Callable[[float, int], dict[str, float]], float]] = {
    "training": (_training, 71.0),
    "idle": (_idle, 0.6),
    "starved": (_starved, 18.0),
}


class SyntheticSource:
    """Made-up GPUs.

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

    def __init__(self, name: str, *, clock: Clock, gpus: int = _GPUS) -> None:
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
        """One sample per GPU, a pure function of the time."""
        time_ns, monotonic_ns = self._clock.time_ns(), self._clock.monotonic_ns()
        return [
            Sample(time_ns, monotonic_ns, device.uuid, self._values(time_ns, number))
            for number, device in enumerate(self.devices)
        ]

    def close(self) -> None:
        """Hold nothing, give nothing back."""

    def _values(self, time_ns: int, gpu: int) -> dict[str, float | None]:
        levels = self._shape(time_ns / 1e9, gpu)
        # Noise from the time, not from a state: the same instant looks the same in every recorder.
        noise = random.Random(time_ns * _MOST_GPUS + gpu)  # noqa: S311
        values: dict[str, float | None] = {}
        for metric, level in levels.items():
            moved = level * (1.0 + 0.02 * noise.uniform(-1, 1))
            values[metric] = min(1.0, moved) if metric in _FRACTIONS else moved
        values["FB_USED"] = self._memory * GIB
        values["FB_TOTAL"] = 96.0 * GIB
        return values


def open_synthetic(argument: str, request: SourceRequest) -> SyntheticSource:
    """``synthetic:NAME`` or ``synthetic:NAME:N``."""
    name, colon, number = argument.partition(":")
    if colon and not (number.isascii() and number.isdecimal() and 1 <= int(number[:5]) <= _MOST_GPUS):
        raise SourceError(
            f"{number!r} is no number of simulated GPUs.",
            f"Use synthetic:{name}:N with N from 1 to {_MOST_GPUS}.",
        )
    return SyntheticSource(name, clock=request.clock, gpus=int(number) if colon else _GPUS)
