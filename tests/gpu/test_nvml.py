"""The NVML source on a real GPU: compared with nvidia-smi, as a plain user, and its cost."""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from machine import Skipped, copy, cpu_seconds, environment, multiply, recorder, torch

from gipfel_extension.telemetry.sources import SourceRequest, open_source
from gipfel_extension.telemetry.store.segments import read_samples

GPM = ("SM_ACTIVE", "SM_OCCUPANCY", "PIPE_TENSOR_ACTIVE", "DRAM_ACTIVE", "GR_ENGINE_ACTIVE")
NOBODY = 65534


def smi(*fields: str) -> list[list[str]]:
    """One row per GPU of ``nvidia-smi --query-gpu``, numbers without units."""
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    return [[cell.strip() for cell in line.split(",")] for line in output.strip().splitlines()]


def test_agrees_with_nvidia_smi(tmp_path: Path) -> None:
    environment_of_all = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    source = open_source("nvml", SourceRequest(environment=environment_of_all))
    rows = smi("uuid", "name", "memory.total", "memory.used", "power.draw", "temperature.gpu")
    samples = {sample.device: sample for sample in source.read()}
    source.close()
    assert [device.uuid for device in source.devices] == [row[0] for row in rows]
    assert [device.name for device in source.devices] == [row[1] for row in rows]
    for uuid, _, total, used, power, temperature in rows:
        values = samples[uuid].values
        assert abs(values["FB_TOTAL"] / 2**20 - float(total)) <= 1
        assert abs(values["FB_USED"] / 2**20 - float(used)) <= 64
        assert abs(values["GPU_TEMP"] - float(temperature)) <= 3
        # Power moves while one looks.
        assert abs(values["POWER_USAGE"] - float(power)) <= 0.35 * float(power) + 25
        assert 0 <= values["GPU_UTIL"] <= 1


def test_only_the_gpus_of_the_job(tmp_path: Path) -> None:
    uuid = smi("uuid")[-1][0]
    for selection in (uuid, uuid[:12] if len(smi("uuid")) == 1 else uuid):
        source = open_source("nvml", SourceRequest(environment={"CUDA_VISIBLE_DEVICES": selection}))
        assert [device.uuid for device in source.devices] == [uuid]
        source.close()
    assert open_source("auto", SourceRequest(environment={"CUDA_VISIBLE_DEVICES": ""})).devices == ()


def test_gpm_follows_the_work(tmp_path: Path) -> None:
    source = open_source("nvml", SourceRequest(environment=os.environ))
    if source.name != "nvml+gpm":
        source.close()
        raise Skipped("this GPU has no GPM (Hopper or later has)")
    torch()
    multiply(1.0)
    source.read()
    multiply(2.0)
    busy = source.read()[0].values
    source.read()
    copy(2.0)
    copied = source.read()[0].values
    source.read()
    time.sleep(2.0)
    idle = source.read()[0].values
    source.close()
    print(json.dumps({"matmul": busy, "copy": copied, "idle": idle}))
    assert busy["SM_ACTIVE"] > 0.8
    assert busy["PIPE_TENSOR_ACTIVE"] > 0.4
    assert copied["DRAM_ACTIVE"] > 0.5
    assert copied["PIPE_TENSOR_ACTIVE"] < 0.05
    assert idle["SM_ACTIVE"] < 0.05


def test_gpm_as_a_plain_user(tmp_path: Path) -> None:
    code = (
        "import os, sys, time, json\n"
        "from gipfel_extension.telemetry.sources import SourceRequest, open_source\n"
        # Imported before: the user nobody may not be able to read the interpreter's own folder.
        "import gipfel_extension.telemetry.sources.nvml, pynvml\n"
        f"if os.getuid() == 0: os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
        "source = open_source('nvml', SourceRequest(environment={}))\n"
        "time.sleep(0.5)\n"
        "print(json.dumps([os.getuid(), source.name, source.read()[0].values]))\n"
        "source.close()\n"
    )
    command = [sys.executable, "-c", code]
    output = subprocess.run(
        command, env=environment(), capture_output=True, text=True, check=True, timeout=60
    ).stdout
    uid, name, values = json.loads(output)
    assert uid != 0
    as_ourselves = open_source("nvml", SourceRequest(environment={}))
    as_ourselves.close()
    assert name == as_ourselves.name
    if name != "nvml+gpm":
        raise Skipped("this GPU has no GPM (Hopper or later has)")
    assert all(values[metric] is not None for metric in GPM), values


def test_sampling_costs_little_of_a_core(tmp_path: Path) -> None:
    for interval, most in ((1.0, 0.02), (0.1, 0.15)):
        folder = tmp_path / str(interval)
        with recorder(folder, interval=interval) as process:
            time.sleep(1.0)
            cpu, wall = cpu_seconds(process.pid), time.monotonic()
            time.sleep(8.0)
            share = (cpu_seconds(process.pid) - cpu) / (time.monotonic() - wall)
        print(json.dumps({"interval": interval, "cpu_seconds_per_second": round(share, 4), "bound": most}))
        assert read_samples(folder).rows >= 8
        assert share <= most


def test_sampling_slows_work_down_by_less_than_two_per_cent(tmp_path: Path) -> None:
    torch()
    multiply(3.0)
    ratios = []
    # Pairs side by side, because clocks drift while a GPU warms up.
    for turn in range(5):
        alone = multiply(2.0)
        with recorder(tmp_path / str(turn), interval=1.0):
            ratios.append(multiply(2.0) / alone)
    print(json.dumps({"with_recorder_over_alone": [round(ratio, 4) for ratio in ratios]}))
    assert statistics.median(ratios) > 0.98
