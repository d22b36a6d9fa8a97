"""Pre-flight outcomes about GPUs in use, engines and protocols, on this machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from slurm_commands import unconfigured_slurm

from gipfel_cluster.model import GipfelError
from gipfel_extension.gate.scan import verdict as verdicts
from gipfel_extension.training.launch import DryRun, launch
from gipfel_extension.training.preflight.context import Context, ProbeResult
from gipfel_extension.training.preflight.gpus import check_gpus
from gipfel_extension.training.probe_program import _gpus
from gipfel_extension.training.record.spec import LaunchPlan, LaunchSpec

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


_GPUS = (("gpu", "0", "GPU-aa11", "Default"), ("gpu", "1", "GPU-bb22", "Default"))


@pytest.mark.parametrize(
    ("visible", "rows", "verdict"),
    [
        ("0,1", _GPUS, "pass"),
        ("GPU-bb22,GPU-aa11", _GPUS, "pass"),
        ("GPU-a,GPU-b", _GPUS, "pass"),
        # CUDA takes the beginning of a UUID only if it is unique.
        ("GPU-,GPU-b", _GPUS, "unknown"),
        ("MIG-5c89852c-d268-c3f3-1b07-005d5ae1dc3f,1", _GPUS, "unknown"),
        ("0,1", _GPUS[:1], "unknown"),
        ("0,1", (), "unknown"),
        ("0,1", None, "unknown"),
        ("GPU-a,1", (*_GPUS, ("process", "1", "GPU-aa11", "python3")), "warn"),
    ],
)
def test_gpus_pass_only_if_they_were_listed(
    tmp_path: Path, visible: str, rows: tuple[tuple[str, ...], ...] | None, verdict: str
) -> None:
    probe = None if rows is None else ProbeResult(python="3.12", gpus=rows)
    environment = {"CUDA_VISIBLE_DEVICES": visible, "GIPFEL_NODE": "nid1"}
    for nodes in (1, 2):
        spec = LaunchSpec(target="train.py", in_job=True, launcher="srun", gpus_per_node=2, nodes=nodes)
        plan = LaunchPlan.model_construct(spec=spec)
        found = check_gpus(Context(plan, tmp_path, None, environment, probe))
        assert found is not None
        assert found.verdict == verdict
        if verdict != "warn":
            assert ("only nid1 is examined" in found.message) == (nodes == 2)


@pytest.mark.parametrize("failing", ["", "gpu", "compute-apps"])
def test_a_failed_query_is_not_an_idle_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"""\
#!/bin/sh
case "$1" in
  --query-{failing or "nothing"}=*) exit 9 ;;
  --query-gpu=*) echo "0, GPU-a, Default" ;;
esac
""")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert _gpus() == ([] if failing else [["gpu", "0", "GPU-a", "Default"]])


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


_HOSTILE = b"cos\nsystem\n(S'true'\ntR."


@pytest.mark.parametrize("policy", ["warn", "refuse"])
@pytest.mark.parametrize(
    ("name", "argument"),
    [
        ("w.pt", "w.pt"),
        ("w.pt", "--model=w.pt"),
        ("w.distcp", "--resume=w.distcp"),
        ("w.nemo", "w.nemo"),
        ("w.safetensors", "--weights=w.safetensors"),
        ("models/step-1/w.distcp", "--resume=models"),
        ("models/pytorch_model.bin", "models/"),
    ],
)
def test_a_hostile_model_among_the_arguments_stops_the_launch(
    tmp_path: Path, name: str, argument: str, policy: str
) -> None:
    (tmp_path / "train.py").touch()
    model = tmp_path / name
    model.parent.mkdir(parents=True, exist_ok=True)
    model.write_bytes(_HOSTILE)
    environment = _environment(tmp_path, GIPFEL_SCAN_POLICY=policy)
    spec = LaunchSpec(target="train.py", in_job=True, launcher="srun", arguments=("--lr=1", argument))
    made = launch(spec, environment, directory=tmp_path, dry_run=True)
    assert isinstance(made, DryRun)
    (found,) = [each for each in made.preflight if each.check == "security"]
    assert found.verdict == ("fail" if policy == "refuse" else "warn")
    assert str(model) in found.message
    if policy == "refuse":
        with pytest.raises(GipfelError, match="malicious"):
            launch(spec, environment, directory=tmp_path)


def test_models_that_were_left_out_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        (tmp_path / f"{number}.safetensors").write_bytes(b"\x02" + bytes(7) + b"{}")
    judge = verdicts.judge_files
    assert judge([tmp_path], {}) is judge([tmp_path], {"GIPFEL_SCAN_POLICY": "refuse"}) is None
    monkeypatch.setattr(verdicts, "_MOST_FILES", 3)
    for policy, level in (("warn", "unknown"), ("refuse", "fail")):
        found = judge([tmp_path], {"GIPFEL_SCAN_POLICY": policy})
        assert found is not None
        assert (found.level, "1 of 4 model files, which were left out" in found.line) == (level, True)
    monkeypatch.setattr(verdicts, "_MOST_FILES", 10)
    monkeypatch.setattr(verdicts, "_MOST_ENTRIES", 2)
    found = judge([tmp_path], {})
    assert found is not None
    assert found.level == "unknown"
    assert f"could not be judged: {tmp_path}: stopped after 2 entries." in found.line
    monkeypatch.setattr(verdicts, "_MOST_WALK_S", -1.0)
    found = judge([tmp_path], {})
    assert found is not None
    assert found.level == "unknown"
    assert f"could not be judged: {tmp_path}: stopped after 0 entries and -1 s." in found.line
