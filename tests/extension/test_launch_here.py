"""A launch on this machine, without a container: its Python, its variables, and reasons of restarts."""

import json
import platform
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from gipfel_cluster.model import GipfelError
from gipfel_cluster.workloads.submission import ChosenRuntime, submission_context
from gipfel_extension.training.launch import DryRun, Launch, launch
from gipfel_extension.training.launches.planning import caller_python
from gipfel_extension.training.record.spec import LaunchSpec

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


def test_a_runtime_for_images_takes_no_rank_of_this_machine(tmp_path: Path) -> None:
    """It lacks what is installed beside the command, such as torch."""
    python = tmp_path / "runtime" / "bin" / "python3"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\nexit 9\n")
    python.chmod(0o755)
    about = {"version": "1", "arch": platform.machine(), "key": "k", "distributions": {}}
    prefix = str(tmp_path / "runtime")
    (tmp_path / "runtime" / "runtime.json").write_text(json.dumps({**about, "prefix": prefix}))
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
    assert job.runtime("", "slurm") == ChosenRuntime(root=prefix, python=str(python))


def test_every_rank_of_a_notebook_runs_the_activated_environment(tmp_path: Path, virtual: Path) -> None:
    about = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    content = {"nbformat": 4, "nbformat_minor": 4, "metadata": about, "cells": [_CELL]}
    (tmp_path / "train.ipynb").write_text(json.dumps(content))
    environment = {
        "PATH": f"{virtual}/bin:/usr/bin:/bin", "VIRTUAL_ENV": str(virtual), "HOME": str(tmp_path),
        "GIPFEL_RUNS": str(tmp_path / "runs"), "GIPFEL_SCHEDULER": "local",
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
