"""Vetting on a real GPU: figures beside the best that are known, values, and a foreign process."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from machine import EXTENSION, Skipped, environment, torch

from gipfel_extension.vetting.attribution.statistics import summary
from gipfel_extension.vetting.figures import best_known
from gipfel_extension.vetting.gpus.nvml import Nvml

PROBES = EXTENSION / "gipfel_extension/vetting/checks/probes"
#: As in the protocol "quick".
SHORT = {"device": "cuda", "samples": 5, "seconds": 0.05}
MATMUL = {**SHORT, "shapes": [[8192, 8192, 8192], [6144, 17920, 2816]]}
MEMORY = {**SHORT, "bytes": 2**31}
HOST = {"bytes": 2**28, "samples": 5, "seconds": 0.05}


def probe(name: str, request: dict[str, object]) -> dict[str, object]:
    """What a probe says of this machine; with the Python of these tests."""
    done = subprocess.run(
        [sys.executable, str(PROBES / f"{name}.py")], input=json.dumps(request), capture_output=True,
        text=True, env=environment(), timeout=300, check=False,
    )  # fmt: skip
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    assert not answer.get("error"), answer["error"]
    return answer


def figures(name: str, request: dict[str, object]) -> list[tuple[str, float]]:
    """Name and median of each GPU; all values are right."""
    found = []
    for device in probe(name, request)["devices"]:  # type: ignore[attr-defined]
        assert device["wrong"] == 0, device
        assert device["uuid"] in {gpu.uuid for gpu in Nvml(os.environ).read()} or not device["uuid"]
        found.append((device["name"], summary(device["samples"]).median))
    return found


def test_rates_are_near_the_best_known(tmp_path: Path) -> None:
    torch()
    unknown = []
    for check, request in (
        ("matmul", MATMUL | {"samples": 9, "seconds": 0.2}), ("memory_bandwidth", MEMORY | {"samples": 9}),
    ):  # fmt: skip
        for name, median in figures(check, request):
            best = best_known(check, name)
            print(json.dumps({"check": check, "gpu": name, "median": median, "best": best and best.value}))
            if best is None:
                unknown.append(name)
                continue
            assert 0.9 <= median / best.value <= 1.2, best.source
    if unknown:
        raise Skipped(f"no figure is known for {unknown[0]}")


def test_copies_from_the_host(tmp_path: Path) -> None:
    torch()
    for name, median in figures("host_copy", HOST):
        best = best_known("host_copy", name)
        print(json.dumps({"check": "host_copy", "gpu": name, "median": median, "best": best and best.value}))
        assert median > 1e9


def test_the_probes_of_quick_fit_into_half_a_minute(tmp_path: Path) -> None:
    torch()
    start = time.monotonic()
    readings = Nvml(os.environ).read()
    for name, request in (("container", {}), ("memory_bandwidth", MEMORY), ("matmul", MATMUL)):
        probe(name, request)
    seconds = time.monotonic() - start
    print(json.dumps({"quick_seconds": round(seconds, 1), "gpus": len(readings)}))
    assert seconds < 30


def test_a_reading_knows_what_the_checks_need(tmp_path: Path) -> None:
    for gpu in Nvml(os.environ).read():
        for needed in ("memory_total", "temperature_c", "compute_mode", "power_limit_w", "power_default_w"):
            assert getattr(gpu, needed), (needed, gpu)
        assert gpu.clock_reasons is not None
        assert gpu.processes is not None


def test_a_foreign_process_is_noticed(tmp_path: Path) -> None:
    torch()
    before = {process.pid for gpu in Nvml(os.environ).read() for process in gpu.processes or ()}
    used = Nvml(os.environ).read()[0].memory_used
    code = "import sys, torch; held = torch.zeros(2**30, dtype=torch.uint8, device='cuda:0');"
    code += "print('up', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
            reading = Nvml(os.environ).read()[0]
            seen = {each.pid for each in reading.processes or ()} - before
            # In a container of its own, NVML may give the host's number for it, or none at all.
            print(json.dumps({"pid": process.pid, "seen": sorted(seen)}))
            assert reading.memory_used - used >= 2**30
            if not seen:
                raise Skipped("NVML shows no processes to this container; the memory in use was noticed")
        finally:
            process.kill()
