"""Vetting on a real GPU: rates compared with the best known ones, values, and a foreign process."""

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from machine import EXTENSION, Skipped, environment, torch

from gipfel_extension.vetting.gpus import Nvml
from gipfel_extension.vetting.reference_values import gpu_reference

PROBES = EXTENSION / "gipfel_extension/vetting/checks/probes"
#: As in the protocol "quick".
SHORT = {"device": "cuda", "samples": 5, "seconds": 0.05}
MATMUL = {**SHORT, "shapes": [[8192, 8192, 8192], [6144, 17920, 2816]]}
MEMORY = {**SHORT, "bytes": 2**31}
HOST = {"bytes": 2**28, "samples": 5, "seconds": 0.05}


def argv_of(name: str) -> list[str]:
    """Return the program and the argument of a measurement, or of the report on the environment."""
    return [str(PROBES / ("container.py" if name == "environment" else "throughput.py")), name]


def probe(name: str, request: dict[str, object]) -> dict[str, object]:
    """Return what a probe says of this machine; with the Python of these tests."""
    done = subprocess.run(
        [sys.executable, *argv_of(name)], input=json.dumps(request), capture_output=True,
        text=True, env=environment(), timeout=300, check=False,
    )  # fmt: skip
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    assert not answer.get("error"), answer["error"]
    return answer


def forked(*asked: tuple[str, dict[str, object]]) -> list[dict[str, object]]:
    """Return answers of probes that are forked one by one from a process that has imported torch."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    argv = [sys.executable, str(PROBES / "fork_server.py"), str(theirs.fileno()), str(os.getpid())]
    answers = []
    with subprocess.Popen(argv, pass_fds=[theirs.fileno()], env=environment()) as server, ours:
        theirs.close()
        assert json.loads(ours.recv(1 << 16))["error"] == ""
        for name, request in asked:
            control, child = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as output, control, child:
                given.write(json.dumps(request).encode())
                given.seek(0)
                wanted = {"argv": argv_of(name), "environment": {}}
                streams = [given.fileno(), output.fileno(), 2, child.fileno()]
                socket.send_fds(ours, [json.dumps(wanted).encode()], streams)
                child.close()
                while "status" not in json.loads(control.recv(1 << 16)):
                    pass
                output.seek(0)
                answers.append(json.loads(output.read().splitlines()[-1]))
        server.kill()
    return answers


def figures(name: str, request: dict[str, object]) -> list[tuple[str, float]]:
    """Name and median of each GPU; all values are right."""
    found = []
    for device in probe(name, request)["devices"]:  # type: ignore[attr-defined]
        assert device["wrong"] == 0, device
        assert device["uuid"] in {gpu.uuid for gpu in Nvml(os.environ).read()} or not device["uuid"]
        found.append((device["name"], statistics.median(device["samples"])))
    return found


def test_rates_are_near_the_best_known(tmp_path: Path) -> None:
    torch()
    unknown = []
    for check, request in (
        ("matmul", MATMUL | {"samples": 9, "seconds": 0.2}), ("memory_bandwidth", MEMORY | {"samples": 9}),
    ):  # fmt: skip
        for name, median in figures(check, request):
            best = gpu_reference(check, name)
            print(json.dumps({"check": check, "gpu": name, "median": median, "best": best and best.value}))
            if best is None:
                unknown.append(name)
                continue
            assert 0.9 <= median / best.value <= 1.2, best.source
    if unknown:
        raise Skipped(f"no reference value is known for {unknown[0]}")


def test_copies_from_the_host(tmp_path: Path) -> None:
    torch()
    for name, median in figures("host_copy", HOST):
        best = gpu_reference("host_copy", name)
        print(json.dumps({"check": "host_copy", "gpu": name, "median": median, "best": best and best.value}))
        assert median > 1e9


def test_the_probes_of_quick_use_the_gpu_behind_one_import_within_half_a_minute(tmp_path: Path) -> None:
    torch()
    start = time.monotonic()
    names = {gpu.uuid for gpu in Nvml(os.environ).read()}
    container, *measured = forked(("environment", {}), ("memory_bandwidth", MEMORY), ("matmul", MATMUL))
    seconds = time.monotonic() - start
    print(json.dumps({"quick_seconds": round(seconds, 1), "gpus": len(names)}))
    assert (container.get("error"), container["evidence"]["gpus"]) == (None, len(names))  # type: ignore[index]
    for answer in measured:
        assert not answer.get("error"), answer
        for device in answer["devices"]:  # type: ignore[attr-defined]
            assert (device["wrong"], device["uuid"] in names or not device["uuid"]) == (0, True), device
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
