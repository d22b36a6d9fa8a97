"""Measure copies between the host's pinned memory and each GPU, one GPU after the other.

Request: bytes, samples, seconds (per sample, at most).
Answer: devices, each with samples in B/s to the GPU and to the host, and the number of wrong values.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def main() -> None:
    """Answer one request."""
    request = json.loads(sys.stdin.read())
    answer = {"gipfel_probe": 1, "unit": "B/s"}
    try:
        answer["devices"] = on_gpus(request)
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
    count = request["bytes"] // 4
    source = torch.arange(count, dtype=torch.int32).pin_memory()
    target = torch.zeros_like(source).pin_memory()
    return [on_gpu(torch, index, source, target, request) for index in range(torch.cuda.device_count())]


def on_gpu(torch: Any, index: int, source: Any, target: Any, request: Any) -> Any:
    """Measure one GPU in both directions."""
    torch.cuda.set_device(index)
    on_device = torch.zeros(len(source), device=f"cuda:{index}", dtype=torch.int32)
    target.zero_()
    size = 4 * len(source)
    to_gpu = timed(lambda: on_device.copy_(source, non_blocking=True), torch, size, request)
    to_host = timed(lambda: target.copy_(on_device, non_blocking=True), torch, size, request)
    properties = torch.cuda.get_device_properties(index)
    uuid = getattr(properties, "uuid", None)
    return {
        "samples": to_gpu, "to_host": to_host,
        "wrong": int((source != target).sum().item()), "index": index, "name": properties.name,
        "uuid": f"GPU-{uuid}" if uuid else "",
    }  # fmt: skip


def timed(copy: Any, torch: Any, size: Any, request: Any) -> Any:
    """Return the samples of a copy of `size` bytes, without the first."""
    repeat, samples = 1, []
    for _ in range(request["samples"] + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(repeat):
            copy()
        torch.cuda.synchronize()
        seconds = max(time.perf_counter() - start, 1e-9)
        samples.append(size * repeat / seconds)
        repeat = max(1, min(200, int(repeat * request["seconds"] / seconds)))
    return samples[1:]


if __name__ == "__main__":
    main()
