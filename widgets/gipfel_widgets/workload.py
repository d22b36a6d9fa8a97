"""Work of a known kind, to see what it looks like."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from gipfel_cluster.model import GipfelError

#: Edge of the square matrices: large enough to saturate, small enough to stop on time.
_GPU_EDGE, _CPU_EDGE = 8192, 1024
_GPU_BURST = 8
_TURN_S = 0.2

WORKLOADS = ("matmul", "sleep")


def run_workload(name: str, seconds: float, progress: Callable[[str], None] = lambda _: None) -> str:
    """Work for a while.

    Parameters
    ----------
    name
        ``matmul``: square matrices, by torch on the GPU where it sees one, else by numpy on the CPU;
        ``sleep``: nothing.
    progress
        Called about once a second with a line that says how far it is.

    Returns
    -------
    str
        What was done, and where.

    Raises
    ------
    GipfelError
        There is no such workload.
    """
    if name not in WORKLOADS:
        raise GipfelError(f"There is no workload {name!r}.", f"Choose one of {', '.join(WORKLOADS)}.")
    what, turn = ("sleep", _sleep) if name == "sleep" else _matmul()
    started = told = time.monotonic()
    turns = 0
    progress(f"{what}: 0 of {seconds:g} s")
    while (passed := time.monotonic() - started) < seconds:
        turn(seconds - passed)
        turns += 1
        if time.monotonic() - told >= 1:
            told = time.monotonic()
            progress(f"{what}: {min(seconds, told - started):.0f} of {seconds:g} s")
    done = f"{what}: {time.monotonic() - started:.1f} s, {turns} turns"
    progress(done)
    return done


def _sleep(left: float) -> None:
    time.sleep(min(_TURN_S, max(0.0, left)))


def _matmul() -> tuple[str, Callable[[float], object]]:
    return _matmul_on_gpu() or _matmul_on_cpu()


def _matmul_on_gpu() -> tuple[str, Callable[[float], object]] | None:
    torch = _torch()
    if torch is None or not torch.cuda.is_available():
        return None
    left, right = (torch.randn(_GPU_EDGE, _GPU_EDGE, device="cuda", dtype=torch.bfloat16) for _ in range(2))

    def turn(_: float) -> None:
        for _ in range(_GPU_BURST):
            torch.matmul(left, right)
        # Without it the queue would run on long after the time is up.
        torch.cuda.synchronize()

    name = torch.cuda.get_device_name()
    return f"matmul {_GPU_EDGE}² bfloat16 on {name} (torch)", turn


def _matmul_on_cpu() -> tuple[str, Callable[[float], object]]:
    draw = np.random.default_rng(0)
    left, right = (draw.standard_normal((_CPU_EDGE, _CPU_EDGE), np.float32) for _ in range(2))
    return f"matmul {_CPU_EDGE}² float32 on the CPU (numpy)", lambda _: left @ right


def _torch() -> Any:
    try:
        # An image may have it, our own environment needn't; and it takes seconds to import.
        import torch  # noqa: PLC0415
    except Exception:  # noqa: BLE001 - a broken torch fails in many ways, and the CPU is still there
        return None
    return torch
