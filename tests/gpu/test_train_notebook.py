"""The training cell of ``train-ddp`` on every GPU by NCCL: loss, pace, and the score of its samples."""

import json
import os
import subprocess
import sys
from pathlib import Path

from machine import EXTENSION, Skipped, environment, recorder, torch

from gipfel_extension.saturation import score_table
from gipfel_extension.telemetry.store.segments import read_samples

_REPOSITORY = EXTENSION.parent
#: Large enough that a GPU's tensor cores have something to do, small enough for any.
_SIZE = {
    "steps": 60,
    "batch": 16,
    "sequence": 512,
    "vocabulary": 1024,
    "width": 1024,
    "heads": 16,
    "layers": 8,
}


def script(folder: Path, **values: object) -> Path:
    """The parameters and the launched cell of the notebook as a script."""
    content = json.loads((_REPOSITORY / "notebooks" / "train-ddp.ipynb").read_text())
    cells = {cell["id"]: "".join(cell["source"]) for cell in content["cells"]}
    given = "".join(f"{name} = {value!r}\n" for name, value in values.items())
    path = folder / "train.py"
    path.write_text(f"{cells['parameters']}\n{given}{cells['train'].partition(chr(10))[2]}\n")
    return path


def train(folder: Path, precision: str) -> list[dict[str, float]]:
    """Train on all GPUs; what was logged."""
    count = torch().cuda.device_count()
    path = script(folder, precision=precision, learning_rate=3e-4, log_every=5, checkpoint_every=30, **_SIZE)
    variables = environment()
    variables["PYTHONPATH"] = os.pathsep.join([str(_REPOSITORY / "widgets"), variables["PYTHONPATH"]])
    variables |= {"GIPFEL_RUN": str(folder), "GIPFEL_CHECKPOINT": str(folder)}
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={count}",
        str(path),
    ]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["values"] for line in lines]


def test_bf16_trains_and_is_scored(tmp_path: Path) -> None:
    torch()
    telemetry = tmp_path / "telemetry"
    telemetry.mkdir()
    with recorder(telemetry, interval=0.2):
        said = train(tmp_path, "bf16")
    assert said[-1]["step"] == _SIZE["steps"]
    assert said[-1]["loss"] < said[0]["loss"] - 0.5
    assert said[-1]["tokens_per_s"] > 0
    assert list(tmp_path.glob("step-*"))
    job = score_table(read_samples(telemetry))
    assert job.total is not None
    assert 0 < job.total.score <= 100
    assert abs(job.total.score + sum(job.total.losses.values()) - 100) < 1e-6
    print(
        f"bf16: {said[-1]['tokens_per_s']:,.0f} tokens/s, score {job.total.score:.0f}, {job.total.bottleneck}"
    )


def test_fp8_learns_what_bf16_does(tmp_path: Path) -> None:
    if torch().cuda.get_device_capability() < (8, 9):
        raise Skipped("this GPU has no FP8")
    ends = []
    for precision in ("bf16", "fp8"):
        folder = tmp_path / precision
        folder.mkdir()
        ends.append(train(folder, precision)[-1]["loss"])
    assert abs(ends[1] - ends[0]) < 0.1 * ends[0] + 0.1
