"""Copies between the host's pinned memory and each GPU, one after the other.

Asks: bytes, samples, seconds (per sample, at most).
Answers: devices, each with samples in B/s to the GPU and of the way back, and how many values are wrong.
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
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
        answer["error"] = f"{type(error).__name__}: {str(error)[:500]}"
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def on_gpus(request: Any) -> Any:
    """Measure every GPU that torch sees."""
    import torch  # noqa: PLC0415 - its absence is an answer

    if not torch.cuda.is_available() or not torch.cuda.device_count():
        raise RuntimeError("torch sees no GPU")
    count = request["bytes"] // 4
    there = torch.arange(count, dtype=torch.int32).pin_memory()
    back = torch.zeros_like(there).pin_memory()
    return [on_gpu(torch, index, there, back, request) for index in range(torch.cuda.device_count())]


def on_gpu(torch: Any, index: int, there: Any, back: Any, request: Any) -> Any:
    """Measure one GPU in both directions."""
    torch.cuda.set_device(index)
    held = torch.zeros(len(there), device=f"cuda:{index}", dtype=torch.int32)
    back.zero_()
    size = 4 * len(there)
    to_gpu = timed(lambda: held.copy_(there, non_blocking=True), torch, size, request)
    to_host = timed(lambda: back.copy_(held, non_blocking=True), torch, size, request)
    properties = torch.cuda.get_device_properties(index)
    uuid = getattr(properties, "uuid", None)
    return {
        "samples": to_gpu, "to_host": to_host,
        "wrong": int((there != back).sum().item()), "index": index, "name": properties.name,
        "uuid": f"GPU-{uuid}" if uuid else "",
    }  # fmt: skip


def timed(copy: Any, torch: Any, size: Any, request: Any) -> Any:
    """Return samples of a copy of so many bytes, without the first."""
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
