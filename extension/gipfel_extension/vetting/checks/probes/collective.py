"""Run one rank of a collective of torch.distributed, and check the values.

Environment: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT (or GIPFEL_INIT_METHOD).
Request: method, device ("cuda" or "cpu"), payload (bytes), samples, warmup_payload, warmup_runs, seconds (the
time limit of torch.distributed).
Answer: samples in B/s as this rank measured them, without the first; the number of wrong values; and in the
evidence the node's network and the one that NCCL uses.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any


def main() -> None:
    """Answer one request."""
    request = json.loads(sys.stdin.read())
    answer = {"gipfel_probe": 1, "unit": "B/s"}
    try:
        import torch  # noqa: PLC0415 - a missing module is reported
        import torch.distributed as dist  # noqa: PLC0415

        answer.update(measured(torch, dist, request))
    except ImportError as error:
        answer.update(error=f"the image lacks a module: {error}", missing=error.name or "torch")
    except Exception as error:  # noqa: BLE001 - every error is reported
        answer["error"] = f"{type(error).__name__}: {str(error)[:500]}"
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    # Threads of a library must not keep the process alive.
    os._exit(0)


def measured(torch: Any, dist: Any, request: Any) -> Any:
    """Return samples, the number of wrong values, and evidence."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    gpu = request["device"] == "cuda"
    if gpu and not torch.cuda.is_available():
        raise RuntimeError("torch sees no GPU")
    device = "cpu"
    if gpu:
        local = int(os.environ.get("LOCAL_RANK", "0"))
        if local >= torch.cuda.device_count():
            raise RuntimeError(f"rank {rank} has no GPU: torch sees {torch.cuda.device_count()}")
        torch.cuda.set_device(local)
        device = f"cuda:{local}"
    log = enable_nccl_log() if gpu else ""
    dist.init_process_group(
        "nccl" if gpu else "gloo", init_method=os.environ.get("GIPFEL_INIT_METHOD", "env://"), rank=rank,
        world_size=world, timeout=datetime.timedelta(seconds=request["seconds"]),
    )  # fmt: skip
    warm = Collective(torch, dist, request["method"], request["warmup_payload"], device)
    for _ in range(request["warmup_runs"]):
        warm.run()
    real = Collective(torch, dist, request["method"], request["payload"], device)
    samples = [real.run() for _ in range(request["samples"] + 1)]
    wrong = warm.wrong + real.wrong
    dist.barrier()
    dist.destroy_process_group()
    # The first sample includes the warm-up.
    evidence = {"rank": rank, "world": world, "backend": "nccl" if gpu else "gloo", "first": samples[0]}
    evidence["network"] = {**adapters(), "transport": transport(log) if gpu else "gloo"}
    return {"samples": samples[1:], "wrong": wrong, "evidence": evidence}


def enable_nccl_log() -> Any:
    """Make NCCL log which network it uses; return the log file."""
    descriptor, path = tempfile.mkstemp(prefix="gipfel-nccl-")
    os.close(descriptor)
    os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET", NCCL_DEBUG_FILE=path)
    return path


def transport(path: Any) -> Any:
    """Return the network in NCCL's log, such as "AWS Libfabric" or "Socket"; empty if there is none."""
    try:
        with Path(path).open(errors="replace") as log:
            found = re.findall(r"Using network (\S[^\r\n]*)", log.read(1 << 20))
        Path(path).unlink()
    except OSError:
        found = []
    return found[-1].strip()[:80] if found else ""


def adapters(root: str = "/sys/class") -> Any:
    """Return the node's fastest network: its type, the number of adapters, and the bits per second of one."""
    slingshot = list(Path(root).glob("cxi/*"))
    if slingshot:
        return {"fabric": "slingshot", "adapters": len(slingshot), "rate": 200e9}
    rates: Counter[tuple[str, float]] = Counter()
    for port in sorted(Path(root).glob("infiniband/*/ports/*")):
        kind = {"InfiniBand": "infiniband", "Ethernet": "roce"}.get(first_line(f"{port}/link_layer"), "")
        rate = re.match(r"(\d+(?:\.\d+)?) Gb/sec", first_line(f"{port}/rate"))
        if kind and rate and "ACTIVE" in first_line(f"{port}/state"):
            rates[kind, float(rate[1]) * 1e9] += 1
    if not rates:
        return {"fabric": "", "adapters": 0, "rate": 0.0}
    # Prefer InfiniBand, then the highest total rate: adapters for management or storage are slower or fewer.
    kind, rate_of_one = max(rates, key=lambda key: (key[0] == "infiniband", key[1] * rates[key]))
    return {"fabric": kind, "adapters": rates[kind, rate_of_one], "rate": rate_of_one}


def first_line(path: str) -> str:
    """Return the first line of a file; empty if it can't be read."""
    try:
        with Path(path).open() as file:
            return file.readline(200).strip()
    except OSError:
        return ""


class Collective:
    """A collective that is run repeatedly on the same memory and checked each time."""

    def __init__(self, torch: Any, dist: Any, method: Any, payload: Any, device: Any) -> None:
        self.torch, self.dist, self.method, self.gpu = torch, dist, method, device != "cpu"
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.count = max(1, payload // 4)
        self.size = 4 * self.count
        self.data = torch.empty(self.count, dtype=torch.float32, device=device)
        self.parts = None
        if method == "gather" and self.rank == 0:
            self.parts = [torch.empty_like(self.data) for _ in range(self.world)]
        self.wrong = 0

    def run(self) -> Any:
        """Return the bytes per second of one run; for an all-reduce, the bus bandwidth as in nccl-tests."""
        self.data.fill_(float(self.rank + 1))
        self.wait()
        self.dist.barrier()
        self.wait()
        start = time.perf_counter()
        getattr(self, self.method)()
        self.wait()
        if self.method != "allreduce":
            # The sender returns when its buffer can be reused, not when the data has arrived.
            self.dist.barrier()
            self.wait()
        seconds = max(time.perf_counter() - start, 1e-9)
        self.check()
        factor = 2.0 * (self.world - 1) / self.world if self.method == "allreduce" else float(self.world - 1)
        return self.size * (1.0 if self.method == "send" else factor) / seconds

    def wait(self) -> None:
        """Wait until the GPU has finished."""
        if self.gpu:
            self.torch.cuda.synchronize()

    def allreduce(self) -> None:
        """Sum up over all ranks."""
        self.dist.all_reduce(self.data)

    def broadcast(self) -> None:
        """Send from the first rank to all."""
        self.dist.broadcast(self.data, 0)

    def gather(self) -> None:
        """Send from all ranks to the first."""
        self.dist.gather(self.data, self.parts, dst=0)

    def send(self) -> None:
        """Send from the first rank to the last."""
        if self.rank == 0:
            self.dist.send(self.data, self.world - 1)
        elif self.rank == self.world - 1:
            self.dist.recv(self.data, 0)

    def check(self) -> None:
        """Count wrong values."""
        expected = float(self.rank + 1)
        if self.method == "allreduce":
            expected = self.world * (self.world + 1) / 2.0
        elif self.method == "broadcast" or (self.method == "send" and self.rank == self.world - 1):
            expected = 1.0
        self.wrong += int((self.data != expected).sum().item())
        for number, part in enumerate(self.parts or ()):
            self.wrong += int((part != float(number + 1)).sum().item())


if __name__ == "__main__":
    main()
