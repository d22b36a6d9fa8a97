"""Measure matrix products and check their values, on each GPU one after the other, or on the CPU.

Request: device ("cuda" or "cpu"), shapes ([m, n, k], the fastest counts), samples, seconds (per sample, at
most), heat (seconds for which all GPUs compute before the measurement).
Answer: devices, each with samples in FLOP/s, without the first, and the number of wrong values.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def main() -> None:
    """Answer one request."""
    request = json.loads(sys.stdin.read())
    answer = {"gipfel_probe": 1, "unit": "FLOP/s"}
    try:
        answer["devices"] = on_gpus(request) if request["device"] == "cuda" else [on_cpu(request)]
    except ImportError as error:
        answer.update(error=f"the image lacks a module: {error}", missing=error.name or "torch")
    except Exception as error:  # noqa: BLE001 - every error is reported
        answer["error"] = f"{type(error).__name__}: {str(error)[:500]}"
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def on_gpus(request: Any) -> Any:
    """Measure every GPU that torch sees."""
    import torch  # noqa: PLC0415 - a missing module is reported

    if not torch.cuda.is_available() or not torch.cuda.device_count():
        raise RuntimeError("torch sees no GPU")
    heat(torch, request.get("heat", 0.0))
    devices = []
    for index in range(torch.cuda.device_count()):
        torch.cuda.set_device(index)
        found = measured(torch, f"cuda:{index}", torch.bfloat16, request)
        properties = torch.cuda.get_device_properties(index)
        uuid = getattr(properties, "uuid", None)
        found.update(index=index, name=properties.name, uuid=f"GPU-{uuid}" if uuid else "")
        devices.append(found)
        torch.cuda.empty_cache()
    return devices


def heat(torch: Any, seconds: float) -> None:
    """Load all GPUs for so many seconds, so that they are measured at their operating temperature."""
    if seconds <= 0:
        return
    buffers = []
    for index in range(torch.cuda.device_count()):
        square = torch.randn(8192, 8192, device=f"cuda:{index}", dtype=torch.bfloat16)
        buffers.append((index, square, torch.empty_like(square)))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for index, square, out in buffers:
            torch.cuda.set_device(index)
            for _ in range(20):
                torch.mm(square, square, out=out)
        for index, _, _ in buffers:
            torch.cuda.synchronize(index)
    buffers.clear()
    torch.cuda.empty_cache()


def on_cpu(request: Any) -> Any:
    """Measure the CPU, with torch or, without it, numpy."""
    try:
        import torch  # noqa: PLC0415 - a missing module is reported
    except ImportError:
        return with_numpy(request)
    return measured(torch, "cpu", torch.float32, request)


def measured(torch: Any, device: Any, dtype: Any, request: Any) -> Any:
    """Return the samples of the fastest shape, and the number of wrong values over all shapes."""
    wait = torch.cuda.synchronize if device != "cpu" else lambda: None
    best: list[float] = []
    wrong = 0
    for m, n, k in request["shapes"]:
        wrong += wrong_values(torch, device, dtype, (m, n, k))
        left = torch.randn(m, k, device=device, dtype=dtype)
        right = torch.randn(k, n, device=device, dtype=dtype)
        out = left @ right
        # Repeated products must have the same bits: a difference shows intermittent errors.
        first = out.clone()
        repeat = 1
        samples = []
        for _ in range(request["samples"] + 1):
            wait()
            start = time.perf_counter()
            for _ in range(repeat):
                torch.mm(left, right, out=out)
            wait()
            seconds = max(time.perf_counter() - start, 1e-9)
            samples.append(2.0 * m * n * k * repeat / seconds)
            repeat = max(1, min(200, int(repeat * request["seconds"] / seconds)))
        wrong += int((out != first).sum().item())
        wrong += wrong_values(torch, device, dtype, (m, n, k))
        del left, right, out, first
        # The first sample includes the warm-up.
        samples = samples[1:]
        if not best or sorted(samples)[len(samples) // 2] > sorted(best)[len(best) // 2]:
            best = samples
    return {"samples": best, "wrong": wrong}


def wrong_values(torch: Any, device: Any, dtype: Any, shape: Any) -> Any:
    """Return the number of wrong rows of a product of small integers, multiplied exactly by a vector."""
    m, n, k = shape

    def integers(rows: Any, columns: Any) -> Any:
        # Sparse, so that no sum needs more than the eight bits of bfloat16.
        ones = torch.randint(0, 4, (rows, columns), device=device, dtype=torch.int8) == 0
        signs = torch.randint(0, 2, (rows, columns), device=device, dtype=torch.int8) * 2 - 1
        return (ones.to(torch.int8) * signs).to(dtype)

    left, right = integers(m, k), integers(k, n)
    vector = torch.randint(-8, 9, (n, 1), device=device).to(torch.float64)
    product = left @ right
    # Sums above 256 would be rounded; with this sparsity they don't occur below k = 20 000.
    found = product.to(torch.float64) @ vector
    exact = left.to(torch.float64) @ (right.to(torch.float64) @ vector)
    return int((found != exact).sum().item())


def with_numpy(request: Any) -> Any:
    """Measure the CPU without torch."""
    import numpy  # noqa: PLC0415 - a missing module is reported

    best: list[float] = []
    wrong = 0
    generator = numpy.random.default_rng()
    for m, n, k in request["shapes"]:
        left = generator.integers(-4, 5, (m, k)).astype(numpy.float32)
        right = generator.integers(-4, 5, (k, n)).astype(numpy.float32)
        vector = generator.integers(-8, 9, n).astype(numpy.float64)
        samples = []
        for _ in range(request["samples"] + 1):
            start = time.perf_counter()
            out = left @ right
            samples.append(2.0 * m * n * k / max(time.perf_counter() - start, 1e-9))
            exact = left.astype(numpy.float64) @ (right.astype(numpy.float64) @ vector)
            wrong += int((out.astype(numpy.float64) @ vector != exact).sum())
        best = max(best, samples[1:], key=lambda each: sorted(each)[len(each) // 2] if each else 0.0)
    return {"samples": best, "wrong": wrong}


if __name__ == "__main__":
    main()
