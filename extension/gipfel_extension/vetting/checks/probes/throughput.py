"""Measure the throughput of a node's devices with the image's torch, one device after the other.

The argument names what is measured:

``matmul``
    Matrix products, whose values are checked. Request: device ("cuda" or "cpu"), shapes ([m, n, k], the
    fastest counts), samples, seconds (per sample, at most), heat (seconds for which all GPUs compute before).
    Answer: devices, each with samples in FLOP/s.
``memory_bandwidth``
    Copies within the memory of each GPU, or of the host. Request: device, bytes, samples, seconds. Answer:
    devices, each with samples in B/s, read and written.
``host_copy``
    Copies between the host's pinned memory and each GPU. Request: bytes, samples, seconds. Answer: devices,
    each with samples in B/s to the GPU, and `to_host`.

Samples are without the first, which includes the warm-up; each device also has the number of wrong values.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from typing import Any


def main() -> None:
    """Answer one request."""
    request = json.loads(sys.stdin.read())
    unit, on_gpus, on_cpu = MEASUREMENTS[sys.argv[1]]
    answer = {"gipfel_probe": 1, "unit": unit}
    try:
        on_gpu = request.get("device", "cuda") == "cuda"
        answer["devices"] = on_gpus(visible_gpus(), request) if on_gpu else [on_cpu(request)]
    except ImportError as error:
        answer.update(error=f"the image lacks a module: {error}", missing=error.name or "torch")
    except Exception as error:  # noqa: BLE001 - every error is reported
        answer["error"] = f"{type(error).__name__}: {str(error)[:500]}"
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def visible_gpus() -> Any:
    """Return torch, which sees a GPU."""
    import torch  # noqa: PLC0415 - a missing module is reported

    if not torch.cuda.is_available() or not torch.cuda.device_count():
        raise RuntimeError("torch sees no GPU")
    return torch


def each_gpu(torch: Any, measure: Any) -> Any:
    """Return what `measure` returns for the index of every GPU that torch sees, with index, name and UUID."""
    devices = []
    for index in range(torch.cuda.device_count()):
        torch.cuda.set_device(index)
        found = measure(index)
        properties = torch.cuda.get_device_properties(index)
        uuid = getattr(properties, "uuid", None)
        found.update(index=index, name=properties.name, uuid=f"GPU-{uuid}" if uuid else "")
        devices.append(found)
        torch.cuda.empty_cache()
    return devices


def timed(run: Any, wait: Any, size: Any, request: Any, most: int = 200) -> Any:
    """Return the rates of an operation that moves or computes `size`, without the first one.

    Each sample repeats the operation up to `most` times, to last as long as requested.
    """
    repeat, samples = 1, []
    for _ in range(request["samples"] + 1):
        wait()
        start = time.perf_counter()
        for _ in range(repeat):
            run()
        wait()
        seconds = max(time.perf_counter() - start, 1e-9)
        samples.append(size * repeat / seconds)
        repeat = max(1, min(most, int(repeat * request["seconds"] / seconds)))
    return samples[1:]


def matmul_on_gpus(torch: Any, request: Any) -> Any:
    """Measure the matrix products of every GPU that torch sees."""
    heat(torch, request.get("heat", 0.0))
    return each_gpu(torch, lambda index: products(torch, f"cuda:{index}", torch.bfloat16, request))


def heat(torch: Any, seconds: float) -> None:
    """Load all GPUs for some seconds, so that they are measured at their operating temperature."""
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


def matmul_on_cpu(request: Any) -> Any:
    """Measure the CPU, with torch or, without it, numpy."""
    try:
        import torch  # noqa: PLC0415 - a missing module is reported
    except ImportError:
        return matmul_with_numpy(request)
    return products(torch, "cpu", torch.float32, request)


def products(torch: Any, device: Any, dtype: Any, request: Any) -> Any:
    """Return the samples of the fastest shape, and the number of wrong values over all shapes."""
    wait = waiter(torch, device)
    best: list[float] = []
    wrong = 0
    for m, n, k in request["shapes"]:
        wrong += wrong_values(torch, device, dtype, (m, n, k))
        left = torch.randn(m, k, device=device, dtype=dtype)
        right = torch.randn(k, n, device=device, dtype=dtype)
        out = left @ right
        # Repeated products must have the same bits: a difference shows intermittent errors.
        first = out.clone()
        samples = timed(partial(torch.mm, left, right, out=out), wait, 2.0 * m * n * k, request)
        wrong += int((out != first).sum().item())
        wrong += wrong_values(torch, device, dtype, (m, n, k))
        del left, right, out, first
        if not best or sorted(samples)[len(samples) // 2] > sorted(best)[len(best) // 2]:
            best = samples
    return {"samples": best, "wrong": wrong}


def waiter(torch: Any, device: str) -> Any:
    """Return the function that waits until a device has finished."""
    return torch.cuda.synchronize if device != "cpu" else lambda: None


def wrong_values(torch: Any, device: Any, dtype: Any, shape: Any) -> Any:
    """Return the number of wrong rows of a product of small integers, multiplied exactly by a vector."""
    m, n, k = shape

    def integers(rows: Any, columns: Any) -> Any:
        # The matrices are sparse, so that no sum needs more than the eight bits of bfloat16.
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


def matmul_with_numpy(request: Any) -> Any:
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


def copies_on_gpus(torch: Any, request: Any) -> Any:
    """Measure copies within the memory of every GPU that torch sees."""
    return each_gpu(torch, partial(copies_on_gpu, torch, request))


def copies_on_gpu(torch: Any, request: Any, index: int) -> Any:
    """Measure copies within the memory of one GPU."""
    free = torch.cuda.mem_get_info(index)[0]
    count = min(request["bytes"], free // 4) // 4
    return copies(torch, f"cuda:{index}", count, request)


def copies_on_host(request: Any) -> Any:
    """Measure the host's memory, with torch or, without it, numpy."""
    count = request["bytes"] // 4
    try:
        import torch  # noqa: PLC0415 - a missing module is reported
    except ImportError:
        return copies_with_numpy(count, request)
    return copies(torch, "cpu", count, request)


def copies(torch: Any, device: str, count: int, request: Any) -> Any:
    """Measure copies of this many numbers within the memory of a device."""
    source = torch.arange(count, device=device, dtype=torch.int32)
    target = torch.zeros_like(source)
    samples = timed(lambda: target.copy_(source), waiter(torch, device), 8 * count, request, 500)
    return {"samples": samples, "wrong": int((source != target).sum().item())}


def copies_with_numpy(count: int, request: Any) -> Any:
    """Measure the host's memory without torch."""
    import numpy as np  # noqa: PLC0415 - a missing module is reported

    source = np.arange(count, dtype=np.int32)
    target = np.zeros_like(source)
    samples = timed(lambda: np.copyto(target, source), lambda: None, 8 * count, request, 500)
    return {"samples": samples, "wrong": int((source != target).sum())}


def host_copies_on_gpus(torch: Any, request: Any) -> Any:
    """Measure copies between pinned memory and every GPU that torch sees."""
    count = request["bytes"] // 4
    source = torch.arange(count, dtype=torch.int32).pin_memory()
    target = torch.zeros_like(source).pin_memory()
    return each_gpu(torch, partial(host_copies_on_gpu, torch, source, target, request))


def host_copies_on_gpu(torch: Any, source: Any, target: Any, request: Any, index: int) -> Any:
    """Measure one GPU in both directions."""
    on_device = torch.zeros(len(source), device=f"cuda:{index}", dtype=torch.int32)
    target.zero_()
    size, wait = 4 * len(source), torch.cuda.synchronize
    to_gpu = timed(lambda: on_device.copy_(source, non_blocking=True), wait, size, request)
    to_host = timed(lambda: target.copy_(on_device, non_blocking=True), wait, size, request)
    wrong = int((source != target).sum().item())
    return {"samples": to_gpu, "to_host": to_host, "wrong": wrong}


#: Measurements by name: the unit, and the functions that measure GPUs and the CPU.
MEASUREMENTS: dict[str, Any] = {
    "matmul": ("FLOP/s", matmul_on_gpus, matmul_on_cpu),
    "memory_bandwidth": ("B/s", copies_on_gpus, copies_on_host),
    "host_copy": ("B/s", host_copies_on_gpus, None),
}

if __name__ == "__main__":
    main()
