"""Indicators that count as use of a server."""

import math
import os
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

from gipfel_extension.server.activity import (
    Idleness,
    Indicators,
    ProgramWatch,
    busy_with,
    current_activity,
    gpu_share,
)
from gipfel_extension.server.responses import GpuActivity
from gipfel_extension.telemetry.sample import Device, SampleTable

NOW_NS = 1_000_000_000_000


def gpu(uuid: str, *, simulated: bool = False) -> Device:
    return Device(uuid=uuid, kind="gpu", name="H200", index=0, simulated=simulated)


def table(**devices: dict[str, list[float]]) -> SampleTable:
    columns = {}
    for uuid, given in devices.items():
        ages = np.array(given.pop("age_s"))
        columns[uuid] = {"time_ns": NOW_NS - (ages * 1e9).astype(np.int64)}
        columns[uuid] |= {name: np.array(values, dtype=float) for name, values in given.items()}
    return SampleTable(columns=columns)


@pytest.mark.parametrize(
    ("signs", "words"),
    [
        (Indicators(), ()),
        (Indicators(busy_kernels=1), ("1 busy kernel",)),
        (Indicators(busy_kernels=3), ("3 busy kernels",)),
        (Indicators(gpu_share=0.04), ()),
        (Indicators(gpu_share=0.05), ("GPU 5%",)),
        (Indicators(gpu_share=math.nan), ("GPUs without recent samples",)),
        (Indicators(steps=("srun", "srun", "mpirun")), ("a step (mpirun)", "a step (srun)")),
        (Indicators(cores=0.4), ()),
        (Indicators(cores=7.25), ("7.2 CPU cores",)),
    ],
)
def test_each_kind_of_work_is_named(signs, words):
    assert busy_with(signs, 0.05) == words


def test_idleness_begins_with_the_last_use_and_ends_with_the_next():
    idleness = Idleness(100.0)
    idleness.update(Indicators(last_used=90), 160)
    assert idleness.since == 100
    idleness.update(Indicators(last_used=170), 200)
    assert idleness.since == 170
    idleness.update(Indicators(last_used=170, gpu_share=0.9), 260)
    assert (idleness.since, idleness.busy_with) == (260, ("GPU 90%",))
    idleness.update(Indicators(last_used=170), 300)
    assert (idleness.since, idleness.busy_with) == (260, ())
    idleness.since = 310
    idleness.update(Indicators(last_used=999), 320)
    assert idleness.since == 320


def test_the_busiest_gpu_of_the_last_minute_counts():
    seen = table(
        a={"age_s": [200, 50, 10], "SM_ACTIVE": [1.0, 0.0, 0.0], "GPU_UTIL": [1.0, 1.0, 1.0]},
        b={"age_s": [50, 10], "SM_ACTIVE": [0.2, 0.4], "GPU_UTIL": [0.0, 0.0]},
    )
    assert gpu_share(seen, [gpu("a"), gpu("b")], NOW_NS) == pytest.approx(0.3)
    assert gpu_share(seen, [gpu("a")], NOW_NS) == 0.0


def test_utilization_counts_where_nothing_better_is_known():
    seen = table(a={"age_s": [10, 5], "SM_ACTIVE": [math.nan, math.nan], "GPU_UTIL": [0.5, 0.7]})
    assert gpu_share(seen, [gpu("a")], NOW_NS) == pytest.approx(0.6)


def test_a_silent_gpu_is_not_an_idle_one():
    old = table(a={"age_s": [400], "SM_ACTIVE": [0.0]}, b={"age_s": [4], "SM_ACTIVE": [0.0]})
    assert math.isnan(gpu_share(old, [gpu("a")], NOW_NS) or 0)
    assert math.isnan(gpu_share(old, [gpu("a"), gpu("b")], NOW_NS) or 0)
    assert math.isnan(gpu_share(SampleTable(columns={}), [gpu("c")], NOW_NS) or 0)


def test_no_gpu_and_a_simulated_one_say_nothing():
    seen = table(a={"age_s": [4], "SM_ACTIVE": [1.0]})
    assert gpu_share(seen, [], NOW_NS) is None
    assert gpu_share(seen, [gpu("a", simulated=True)], NOW_NS) is None


def test_a_programs_name_and_its_cores_are_seen():
    burn = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    step = subprocess.Popen(["bash", "-c", f"exec -a srun {sys.executable} -c 'input()'"], stdin=-1)
    try:
        watch = ProgramWatch(os.getpid())
        watch.read(0.0)
        # A busy machine may give it little of a core: on this clock it has got half of one.
        times = psutil.Process(burn.pid).cpu_times
        began = sum(times()[:2])
        while sum(times()[:2]) - began < 0.5:
            time.sleep(0.02)
        steps, cores = watch.read(1.0)
        assert steps == ("srun",)
        assert cores > 0.4
    finally:
        for each in (burn, step):
            each.kill()
            each.communicate()


def test_a_script_of_an_interpreter_has_its_own_name(tmp_path):
    (tmp_path / "torchrun").write_text("input()")
    for command in ([str(tmp_path / "torchrun")], ["-u", str(tmp_path / "torchrun")]):
        step = subprocess.Popen([sys.executable, *command], stdin=-1)
        try:
            assert ProgramWatch(os.getpid()).read(0.0)[0] == ("torchrun",)
        finally:
            step.kill()
            step.communicate()


@pytest.mark.parametrize(
    ("devices", "share", "metric"),
    [
        ({}, None, ""),
        ({"a": {"age_s": [60.0], "SM_ACTIVE": [0.9]}}, None, ""),
        ({"a": {"age_s": [2.0, 1.0], "SM_ACTIVE": [0.2, 0.4]}}, 0.3, "SM_ACTIVE"),
        ({"a": {"age_s": [60.0, 1.0], "SM_ACTIVE": [0.9, 0.5]}}, 0.5, "SM_ACTIVE"),
        (
            {
                "a": {"age_s": [1.0], "SM_ACTIVE": [0.2], "GPU_UTIL": [1.0]},
                "b": {"age_s": [1.0], "SM_ACTIVE": [0.6], "GPU_UTIL": [1.0]},
            },
            0.4,
            "SM_ACTIVE",
        ),
        ({"a": {"age_s": [1.0], "SM_ACTIVE": [math.nan], "GPU_UTIL": [0.7]}}, 0.7, "GPU_UTIL"),
    ],
)
def test_the_current_activity_is_a_mean_of_the_most_telling_metric(devices, share, metric):
    found = current_activity(table(**devices), [gpu("a"), gpu("b", simulated=True)], NOW_NS)
    assert found == {"gpus": 2, "share": share, "metric": metric, "simulated": True}
    GpuActivity.model_validate(found)


def test_the_current_activity_without_a_gpu_counts_none():
    host = Device(uuid="host", kind="host", name="host", index=None)
    found = current_activity(table(), [host], NOW_NS)
    assert found == {"gpus": 0, "share": None, "metric": "", "simulated": False}
