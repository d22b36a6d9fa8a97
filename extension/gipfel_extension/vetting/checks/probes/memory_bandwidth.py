"""Measure copies within the memory of each GPU, one after the other, or of the host.

Request: device ("cuda" or "cpu"), bytes, samples, seconds (per sample, at most). Answer: devices, each with
samples in B/s (read and written) without the first, and the number of wrong values.
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
        answer["devices"] = on_gpus(request) if request["device"] == "cuda" else [on_host(request)]
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
    devices = []
    for index in range(torch.cuda.device_count()):
        devices.append(on_gpu(torch, index, request))
        torch.cuda.empty_cache()
    return devices


def on_gpu(torch: Any, index: int, request: Any) -> Any:
    """Measure one GPU."""
    torch.cuda.set_device(index)
    free = torch.cuda.mem_get_info(index)[0]
    count = min(request["bytes"], free // 4) // 4
    source = torch.arange(count, device=f"cuda:{index}", dtype=torch.int32)
    target = torch.zeros_like(source)
    samples = timed(lambda: target.copy_(source), torch.cuda.synchronize, 8 * count, request)
    properties = torch.cuda.get_device_properties(index)
    uuid = getattr(properties, "uuid", None)
    return {
        "samples": samples, "wrong": int((source != target).sum().item()), "index": index,
        "name": properties.name, "uuid": f"GPU-{uuid}" if uuid else "",
    }  # fmt: skip


def on_host(request: Any) -> Any:
    """Measure the host's memory, with torch or, without it, numpy."""
    count = request["bytes"] // 4
    try:
        import torch  # noqa: PLC0415 - a missing module is reported
    except ImportError:
        return with_numpy(count, request)
    source = torch.arange(count, dtype=torch.int32)
    target = torch.zeros_like(source)
    samples = timed(lambda: target.copy_(source), lambda: None, 8 * count, request)
    return {"samples": samples, "wrong": int((source != target).sum().item())}


def with_numpy(count: int, request: Any) -> Any:
    """Measure the host's memory without torch."""
    import numpy as np  # noqa: PLC0415 - a missing module is reported

    source = np.arange(count, dtype=np.int32)
    target = np.zeros_like(source)
    samples = timed(lambda: np.copyto(target, source), lambda: None, 8 * count, request)
    return {"samples": samples, "wrong": int((source != target).sum())}


def timed(copy: Any, wait: Any, size: Any, request: Any) -> Any:
    """Return the samples of a copy that moves `size` bytes, without the first."""
    repeat, samples = 1, []
    for _ in range(request["samples"] + 1):
        wait()
        start = time.perf_counter()
        for _ in range(repeat):
            copy()
        wait()
        seconds = max(time.perf_counter() - start, 1e-9)
        samples.append(size * repeat / seconds)
        repeat = max(1, min(500, int(repeat * request["seconds"] / seconds)))
    return samples[1:]


if __name__ == "__main__":
    main()
