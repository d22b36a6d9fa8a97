"""What a pre-flight says of GPUs that others use, of engines and of protocols, on this machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from slurm_commands import unconfigured_slurm

from gipfel_cluster.model import GipfelError
from gipfel_extension.training.launch import DryRun, launch
from gipfel_extension.training.record.spec import LaunchSpec

_NVIDIA_SMI = """\
#!/bin/sh
case "$1" in
  --query-gpu=*) echo "0, GPU-a, {mode}"; echo "1, GPU-b, Default" ;;
  *) echo "{pid}, GPU-a, python3" ;;
esac
"""


def _environment(folder: Path, **more: str) -> dict[str, str]:
    run = folder / "alps-7"
    run.mkdir(exist_ok=True)
    path = f"{folder}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
    kept = {"HOME": str(folder), "PATH": path, "GIPFEL_RUN": str(run), "CUDA_VISIBLE_DEVICES": "0,1"}
    return {**kept, **more}


@pytest.mark.parametrize(("mode", "verdict"), [("Default", "warn"), ("Exclusive_Process", "fail")])
def test_a_kernel_that_holds_a_gpu_is_named_by_its_notebook(tmp_path: Path, mode: str, verdict: str) -> None:
    (tmp_path / "train.py").touch()
    kernel = subprocess.Popen(
        ["sleep", "1000"], env={"PATH": os.environ["PATH"], "JPY_SESSION_NAME": "/home/ada/big.ipynb"}
    )
    try:
        program = tmp_path / "bin" / "nvidia-smi"
        program.parent.mkdir()
        program.write_text(_NVIDIA_SMI.format(mode=mode, pid=kernel.pid))
        program.chmod(0o755)
        spec = LaunchSpec(target="train.py", in_job=True, launcher="srun")
        made = launch(spec, _environment(tmp_path), directory=tmp_path, dry_run=True)
    finally:
        kernel.kill()
        kernel.wait()
    assert isinstance(made, DryRun)
    (gpus,) = [each for each in made.preflight if each.check == "gpus"]
    assert gpus.verdict == verdict
    assert f"pid {kernel.pid} (the kernel of /home/ada/big.ipynb)" in gpus.message
    assert "Shut Down Kernel" in gpus.fix


def test_slurms_commands_without_a_cluster_leave_the_launch_to_this_machine(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    unconfigured_slurm(tmp_path / "bin")
    environment = {**_environment(tmp_path), "GIPFEL_RUN": "", "GIPFEL_SCHEDULER": ""}
    made = launch(LaunchSpec(target="train.py"), environment, directory=tmp_path, dry_run=True)
    assert isinstance(made, DryRun)
    (found,) = [each for each in made.preflight if each.check == "scheduler"]
    assert found.verdict == "warn"
    assert found.message.endswith("The job runs on this machine.")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"vetting": "nowhere"}, "There is no protocol 'nowhere'"), ({"engine": "nope"}, "no engine 'nope'")],
)
def test_names_that_nobody_knows_start_nothing(tmp_path: Path, wrong: dict[str, str], said: str) -> None:
    (tmp_path / "train.py").touch()
    spec = LaunchSpec.model_validate({"target": "train.py", "in_job": True, **wrong})
    with pytest.raises(GipfelError, match=said):
        launch(spec, _environment(tmp_path), directory=tmp_path)
    assert not list((tmp_path / "alps-7" / "launches").iterdir())
