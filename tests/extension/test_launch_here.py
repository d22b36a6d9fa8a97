"""A launch on this machine, without a container: its Python, its variables, and reasons of restarts."""

import json
import platform
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

from gipfel_cluster.model import GipfelError
from gipfel_cluster.workloads.submission import ChosenRuntime, submission_context
from gipfel_extension.saturation.advice.checkpoint import daly
from gipfel_extension.saturation.settings import Settings
from gipfel_extension.telemetry.user_metrics import read_metrics
from gipfel_extension.training.launch import DryRun, Launch, launch
from gipfel_extension.training.launches.planning import caller_python
from gipfel_extension.training.record.spec import LaunchSpec
from gipfel_extension.vetting.history.store import History, HistoryEntry, VettingRecord
from gipfel_extension.vetting.model import Scope, Verdict

_PROGRAM = """
import json, os, sys, time
names = ("OMP_NUM_THREADS", "TORCH_FR_BUFFER_SIZE", "PYTHONUNBUFFERED", "VIRTUAL_ENV", "PATH")
print("TOLD " + json.dumps([sys.prefix, *map(os.environ.get, names)]), flush=True)
if os.environ["RANK"] == "0":
    open("told", "w").close()
elif "GIPFEL_RESUME" not in os.environ:
    while not os.path.exists("told"):
        time.sleep(0.05)
    raise RuntimeError("the disk is full")
"""

_CELL = {
    "cell_type": "code",
    "metadata": {},
    "source": "import os, sys\nprint('TOLD', os.environ['RANK'], sys.prefix)",
    "outputs": [],
    "execution_count": None,
}


@pytest.fixture
def virtual(tmp_path: Path) -> Path:
    """A virtual environment without any packages."""
    folder = tmp_path / "own venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder


def test_metrics_in_the_lines_of_logs_are_those_of_the_run_by_rank(tmp_path: Path) -> None:
    lines = (
        "import os\nfor n in range(30): print(f'step {n} loss {5 - n / 10 + int(os.environ[\"RANK\"])}')\n"
    )
    (tmp_path / "train.py").write_text(lines)
    environment = {
        "PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "GIPFEL_RUNS": str(tmp_path / "runs"),
        "GIPFEL_SCHEDULER": "local",
    }  # fmt: skip
    pattern = r"step (?P<step>\d+) loss (?P<train__loss>\S+)"
    spec = LaunchSpec(target="train.py", launcher="srun", gpus_per_node=2, metrics_pattern=pattern)
    started = launch(spec, environment, directory=tmp_path)
    assert isinstance(started, Launch)
    assert started.wait(60) == 0, started.state
    found = read_metrics(Path(started.state.run))
    for rank in (0, 1):
        series = found.find("train/loss", rank)
        assert series is not None
        assert series.values.tolist() == pytest.approx([5 - n / 10 + rank for n in range(30)])
        assert series.launch.endswith(f"/{started.folder.name}")
    with pytest.raises(ValueError, match="no named group"):
        LaunchSpec(target="train.py", metrics_pattern="loss .*")


def test_ranks_run_in_the_activated_environment_and_a_restart_says_why(tmp_path: Path, virtual: Path) -> None:
    (tmp_path / "train.py").write_text(_PROGRAM)
    environment = {
        "PATH": f"{virtual}/bin:/usr/bin:/bin", "VIRTUAL_ENV": str(virtual), "HOME": str(tmp_path),
        "GIPFEL_RUNS": str(tmp_path / "runs"), "GIPFEL_SCHEDULER": "local", "OMP_NUM_THREADS": "3",
        "TORCH_FR_BUFFER_SIZE": "7",
    }  # fmt: skip
    spec = LaunchSpec(target="train.py", launcher="srun", gpus_per_node=2, restarts=1)
    started = launch(spec, environment, directory=tmp_path)
    assert isinstance(started, Launch)
    assert started.wait(60) == 0, started.state
    told = [json.loads(line.text[5:]) for line in started.logs().lines if line.text.startswith("TOLD ")]
    path = environment["PATH"]
    assert told == [[str(virtual), "3", "7", "1", str(virtual), path]] * len(told)
    assert len(told) == 4
    assert f"'{virtual}/bin/python3'" in started.command
    assert started.resumed_spec.python == f"{virtual}/bin/python3"
    state = started.state
    assert state.restarts == 1
    (why,) = state.restarted
    assert why.startswith("restart 1: rank 1 on ")
    assert "RuntimeError: the disk is full" in why
    shown, listed = (
        subprocess.run(
            [sys.executable, "-m", "gipfel_extension.cli", "launch", *words],
            env=environment, capture_output=True, text=True, check=True,
        ).stdout
        for words in (["show", started.folder.name], ["list"])
    )  # fmt: skip
    assert f"1 restart ({why})" in shown
    assert f"train.py; {why[:119]}" in listed


def test_without_an_activated_environment_path_decides_unless_only_ours_has_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another test of this process may have loaded it: in a notebook, the kernel's own Python is meant.
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    for name, has in (("with", 0), ("without", 1)):
        program = tmp_path / name / "python3"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\nexit {has}\n")
        program.chmod(0o755)
    assert caller_python({"PATH": f"{tmp_path}/with:/bin"}) == f"{tmp_path}/with/python3"
    # This test's own Python has torch.
    assert caller_python({"PATH": f"{tmp_path}/without:/bin"}) == ""
    assert caller_python({"PATH": str(Path(sys.executable).parent)}) == ""
    assert caller_python({"PATH": str(tmp_path)}) == ""


def _runtime(folder: Path, interpreter: str) -> str:
    """Make a runtime without kernels for images, whose interpreter is a line of shell; return its prefix."""
    python = folder / "runtime" / "bin" / "python3"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{interpreter}\n")
    python.chmod(0o755)
    about = {"version": "1", "arch": platform.machine(), "key": "k", "distributions": {}}
    prefix = str(folder / "runtime")
    (folder / "runtime" / "runtime.json").write_text(json.dumps({**about, "prefix": prefix}))
    return prefix


def test_a_runtime_for_images_takes_no_rank_of_this_machine(tmp_path: Path) -> None:
    """It lacks what is installed beside the command, such as torch."""
    prefix = _runtime(tmp_path, "exit 9")
    (tmp_path / "train.py").touch()
    environment = {
        "PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "GIPFEL_RUNTIME": prefix, "GIPFEL_SCHEDULER": "local",
    }  # fmt: skip
    made = launch(LaunchSpec(target="train.py"), environment, directory=tmp_path, dry_run=True)
    assert isinstance(made, DryRun)
    (image,) = [each for each in made.preflight if each.check == "image"]
    assert image.verdict == "pass", image
    job = submission_context(environment)
    assert job.runtime("", "local") == ChosenRuntime(root=prefix, python=sys.executable)
    assert job.runtime("", "slurm") == ChosenRuntime(root=prefix, python=f"{prefix}/bin/python3")


def test_every_rank_of_a_notebook_runs_the_activated_environment(tmp_path: Path, virtual: Path) -> None:
    about = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    content = {"nbformat": 4, "nbformat_minor": 4, "metadata": about, "cells": [_CELL]}
    (tmp_path / "train.ipynb").write_text(json.dumps(content))
    environment = {
        "PATH": f"{virtual}/bin:/usr/bin:/bin", "VIRTUAL_ENV": str(virtual), "HOME": str(tmp_path),
        "GIPFEL_RUNS": str(tmp_path / "runs"), "GIPFEL_SCHEDULER": "local",
        # A runtime of the source tree would have a kernel for this Python.
        "GIPFEL_RUNTIME": _runtime(tmp_path, f"exec '{sys.executable}' \"$@\""),
    }  # fmt: skip
    spec = LaunchSpec(target="train.ipynb", kind="notebook", launcher="srun", gpus_per_node=2)
    with pytest.raises(GipfelError, match="venv/bin/python3 can't be the kernel of rank 0: it has no ipyk"):
        launch(spec, environment, directory=tmp_path)
    # The same where set-up steps activate it, which a path that is named alone can't tell.
    steps = tmp_path / ".edf" / "steps.setup"
    steps.parent.mkdir()
    steps.with_suffix(".toml").write_text('workdir = "/tmp"\n')
    steps.write_text(f". '{virtual}/bin/activate'\n")
    plain = {**environment, "PATH": "/usr/bin:/bin", "VIRTUAL_ENV": ""}
    by_steps = launch(spec.model_copy(update={"edf": "steps"}), plain, directory=tmp_path, dry_run=True)
    assert isinstance(by_steps, DryRun)
    refused = [str(each.message) for each in by_steps.preflight if each.verdict == "fail"]
    assert refused == [
        f"The ranks' Python {virtual}/bin/python3 can't be the kernel of rank 0: it has no ipykernel."
    ]
    # The packages of this environment, ipykernel among them, but the interpreter of its own.
    (site,) = virtual.glob("lib/python3*/site-packages")
    (site / "more.pth").write_text(sysconfig.get_path("purelib") + "\n")
    started = launch(spec, environment, directory=tmp_path)
    assert isinstance(started, Launch)
    assert started.wait(120) == 0, started.state
    told = sorted(line.text for line in started.logs().lines if line.text.startswith("TOLD "))
    assert told == [f"TOLD {rank} {virtual}" for rank in (0, 1)]


_TRAINING = """
import json, os
import torch, torch.distributed as dist
from gipfel_widgets.checkpoints import Checkpoints

dist.init_process_group("gloo")
checkpoints = Checkpoints(every="auto")
checkpoints.load({})
# A step after a minute, when the first checkpoint is due.
checkpoints._last -= 61
due = [checkpoints.due(step) for step in (1, 2)]
checkpoints.save(2, {"weights": torch.ones(1000)})
checkpoints.wait()
if dist.get_rank() == 0:
    values = due, checkpoints.interval_s(), checkpoints._stall_s, checkpoints._write_s
    print("TOLD " + json.dumps([*values, os.environ.get("GIPFEL_FAILURE_S", "")]), flush=True)
checkpoints.close()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("source", ["vettings", "neither"])
def test_checkpoints_are_as_far_apart_as_the_failure_rate_of_vettings_or_the_site_says(
    tmp_path: Path, source: str
) -> None:
    (tmp_path / "train.py").write_text(_TRAINING)
    environment = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(tmp_path),
        "GIPFEL_SCHEDULER": "local", "GIPFEL_RUNS": str(tmp_path / "runs"),
        "GIPFEL_VETTING_HISTORY": str(tmp_path / "vetting"),
    }  # fmt: skip
    ranks, gpu_s = 2, 3600.0 * Settings().gpu_hours_per_failure
    expected = gpu_s / ranks
    if source != "neither":
        environment["GIPFEL_NODE_FAILURE_S"], expected = "7000000", 7e6
    kept = str(tmp_path / "kept")
    spec = LaunchSpec(target="train.py", launcher="torchrun", gpus_per_node=ranks, checkpoint=kept)
    if source == "vettings":
        day_ns = 86_400 * 10**9
        for day, failed in ((0, ""), (10, "n1")):
            at = time.time_ns() - (20 - day) * day_ns
            entry = HistoryEntry(node="n1", check="c", type="gemm", scope=Scope.NODE, verdict=Verdict.FAIL)
            History(tmp_path / "vetting", "local").store(
                VettingRecord(cluster="local", protocol="quick", started_ns=at, ended_ns=at, complete=True,
                              vetted=() if failed else ("n1",), entries=(entry,) * bool(failed))
            )  # fmt: skip
        # One failure in 10 node days corrects the site's number.
        expected = (10 * 86_400 + expected / 2) / 1.5
    started = launch(spec, environment, directory=tmp_path)
    assert isinstance(started, Launch)
    assert started.wait(120) == 0, started.state
    (told,) = (json.loads(line.text[5:]) for line in started.logs().lines if line.text.startswith("TOLD "))
    due, interval_s, stall_s, write_s, failure_s = told
    assert due == [False, True]
    assert failure_s == ("" if source == "neither" else f"{expected:.0f}")
    # The training's own history has no failure and a few seconds, which add half a failure's weight.
    assert interval_s == pytest.approx(max(daly(stall_s, expected), 2 * write_s), rel=0.001)
    assert interval_s > 2 * write_s
