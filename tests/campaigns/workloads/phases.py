"""Phases of which programs consist: counters during one kind of work.

Levels follow from what the hardware does: a kernel at a pipe's roof keeps that pipe busy in almost every
cycle; a tiny kernel leaves most SMs without a block; a collective runs on a few SMs and moves bytes over
links.
"""

import numpy as np

from .recording import Phase, Program

Rng = np.random.Generator
OFF: Phase = {}
#: NVML's bits of reasons for lower clocks: power cap, hardware slowdown for heat, clocks set by the user.
POWER_CAP, HOT, APPLICATION_CLOCKS = 0x04, 0x40, 0x02


def kernel(
    *,
    pipe: str = "TENSOR",
    load: float,
    dram: float = 0.2,
    active: float = 0.97,
    occupancy: float = 0.3,
    engine: float = 1.0,
    **more: float,
) -> Phase:
    """Return large kernels: a pipe's activity, memory's, and how many SMs have work."""
    return {
        "GR_ENGINE_ACTIVE": engine,
        "SM_ACTIVE": active,
        "SM_OCCUPANCY": occupancy,
        f"PIPE_{pipe}_ACTIVE": load,
        "DRAM_ACTIVE": dram,
        **more,
    }


def tiny(rng: Rng, *, engine: float, active: float, **more: float) -> Phase:
    """Return kernels too small for the GPU, launched one by one: gaps between them, few SMs with work."""
    pipes = {"PIPE_TENSOR_ACTIVE": 0.2 * active, "PIPE_FP32_ACTIVE": 0.15 * active}
    return {
        "GR_ENGINE_ACTIVE": engine,
        "SM_ACTIVE": active,
        "SM_OCCUPANCY": active * rng.uniform(0.2, 0.5),
        "DRAM_ACTIVE": 0.4 * active,
        "GPU_UTIL": min(1.0, engine + rng.uniform(0.2, 0.4)),
        **pipes,
        **more,
    }


def collective(rng: Rng, *, nvlink: float = 0.0, pcie: float = 0.0) -> Phase:
    """Return the kernel of a collective: 8 to 32 of 132 SMs, bytes per second in each direction."""
    share = rng.uniform(8, 32) / 132
    return {
        "GR_ENGINE_ACTIVE": 1.0,
        "SM_ACTIVE": share,
        "SM_OCCUPANCY": share * 0.3,
        "DRAM_ACTIVE": 0.05 + nvlink / 4e12,
        "PIPE_INT_ACTIVE": 0.02,
        "NVLINK_TX_BYTES": nvlink,
        "NVLINK_RX_BYTES": nvlink,
        "PCIE_TX_BYTES": pcie,
        "PCIE_RX_BYTES": pcie,
    }


def repeat(program: Program, seconds: float, rng: Rng, *, jitter: float = 0.03) -> Program:
    """Return a repeated program, with small random changes of the phases' lengths."""
    found: list[tuple[float, Phase]] = []
    total = 0.0
    while total < seconds:
        for length, phase in program:
            drawn = max(0.0, length * (1.0 + jitter * rng.standard_normal()))
            found.append((drawn, phase))
            total += drawn
    return found


def in_step(
    programs: list[Program], wait: Phase, seconds: float, rng: Rng, *, jitter: float = 0.004
) -> list[Program]:
    """Return programs of several GPUs whose steps end together: faster ones spend the rest in ``wait``."""
    found: list[list[tuple[float, Phase]]] = [[] for _ in programs]
    total = 0.0
    while total < seconds:
        drawn = [
            [(max(0.0, s * (1.0 + jitter * rng.standard_normal())), phase) for s, phase in program]
            for program in programs
        ]
        longest = max(sum(s for s, _ in each) for each in drawn)
        for own, each in zip(found, drawn, strict=True):
            own.extend(each)
            own.append((longest - sum(s for s, _ in each), wait))
        total += longest
    return found


def transformer(rng: Rng, *, scale: float = 1.0) -> Phase:
    """Return forward and backward of a large transformer layer, as a mean over its kernels."""
    return kernel(
        load=scale * rng.uniform(0.5, 0.65),
        dram=rng.uniform(0.3, 0.42),
        active=rng.uniform(0.92, 0.98),
        occupancy=rng.uniform(0.2, 0.35),
    )


def matmul(rng: Rng) -> Phase:
    """Return a large matrix product."""
    return kernel(load=rng.uniform(0.88, 0.95), dram=rng.uniform(0.15, 0.35), active=0.98, occupancy=0.2)


def stream(rng: Rng) -> Phase:
    """Return a copy or an elementwise kernel at the memory bandwidth."""
    return kernel(
        pipe="FP32", load=rng.uniform(0.03, 0.12), dram=rng.uniform(0.85, 0.93), active=0.98, occupancy=0.85
    )
