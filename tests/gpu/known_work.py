"""Work with a known load on a GPU, and the expected score."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from machine import copy, multiply, tiny_kernels, torch

#: Cost of a sample where the loader is the bottleneck: CPU work of one process.
_LOADER_SECONDS = 0.05


@dataclass(frozen=True)
class Expected:
    """Bounds of the score (0 to 100), which resource binds, and the largest loss; empty: none is claimed."""

    least: float = 0.0
    most: float = 100.0
    binding: str = ""
    loss: str = ""


def idle(seconds: float) -> None:
    """Nothing."""
    time.sleep(seconds)


def starved(seconds: float) -> int:
    """Training steps that wait for a loader: one process makes each batch while the GPU has nothing to do."""
    module = torch()

    class Slow(module.utils.data.Dataset):  # type: ignore[misc,name-defined]
        def __len__(self) -> int:
            return 10**9

        def __getitem__(self, index: int) -> object:
            ends = time.perf_counter() + _LOADER_SECONDS
            values = module.full((256,), float(index % 7))
            while time.perf_counter() < ends:
                values = (values * 1.0001).sin()
            return values

    layers = (module.nn.Linear(256, 4096), module.nn.ReLU(), module.nn.Linear(4096, 1))
    model = module.nn.Sequential(*layers).cuda()
    optimizer = module.optim.AdamW(model.parameters())
    # In this process: that it is the loader that works is seen on the host's CPU.
    loader = module.utils.data.DataLoader(Slow(), batch_size=4)
    done, ends = 0, time.monotonic() + seconds
    for batch in loader:
        optimizer.zero_grad(set_to_none=True)
        model(batch.cuda()).square().mean().backward()
        optimizer.step()
        done += 1
        if time.monotonic() > ends:
            break
    module.cuda.synchronize()
    return done


def training(seconds: float, *, fused: bool) -> float:
    """Steps per second of one model with a fused or a plain optimizer, on many small tensors."""
    module = torch()
    module.manual_seed(0)
    layers = [module.nn.Linear(512, 512) for _ in range(96)]
    model = module.nn.Sequential(*layers).cuda().bfloat16()
    how = {"fused": True} if fused else {"fused": False, "foreach": False}
    optimizer = module.optim.AdamW(model.parameters(), lr=1e-5, **how)
    batch = module.randn(256, 512, device="cuda", dtype=module.bfloat16)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(batch).square().mean().backward()
        optimizer.step()

    for _ in range(5):
        step()
    module.cuda.synchronize()
    done, began = 0, time.monotonic()
    while time.monotonic() - began < seconds:
        for _ in range(10):
            step()
        module.cuda.synchronize()
        done += 10
    return done / (time.monotonic() - began)


def fused(seconds: float) -> float:
    """Training steps per second with the fused optimizer."""
    return training(seconds, fused=True)


def unfused(seconds: float) -> float:
    """Training steps per second with one kernel per tensor and operation."""
    return training(seconds, fused=False)


#: By name of the trace. Work returns how much of it was done, in a unit of its own.
WORK: Mapping[str, tuple[Callable[[float], object], Expected]] = {
    "matmul-bf16": (multiply, Expected(least=80.0, binding="compute")),
    "device-copy": (copy, Expected(least=80.0, binding="memory")),
    "tiny-kernels": (tiny_kernels, Expected(most=25.0, loss="launch")),
    "starved": (starved, Expected(most=30.0, loss="input")),
    "idle": (idle, Expected(most=0.5, loss="idle")),
    "optimizer-fused": (fused, Expected()),
    "optimizer-unfused": (unfused, Expected()),
}
