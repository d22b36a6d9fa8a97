"""The training notebooks on CPUs with gloo: values, and resuming from a checkpoint."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from notebook_runs import Executed, losses
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from gipfel_extension.data.checkpoints import find_checkpoints

Execute = Callable[..., Executed]
Cell = Callable[..., list[dict[str, Any]]]


def test_data_parallel_goes_on_from_a_checkpoint_as_if_nothing_had_been(
    execute_notebook: Execute, run_cell: Cell, tmp_path: Path
) -> None:
    apart, whole = tmp_path / "apart", tmp_path / "whole"
    undisturbed = losses(run_cell("train-ddp", 2, whole, steps=12, checkpoint_every=6, log_every=1))
    # As a run that was ended after its sixth step has left it.
    shutil.copytree(whole / "step-6", apart / "step-6")
    done = execute_notebook("train-ddp", steps=12, checkpoint=str(apart), resume=True, log_every=1)
    assert losses(done.logged) == pytest.approx({step: undisturbed[step] for step in range(7, 13)}, rel=1e-4)
    ends = []
    for folder in (apart, whole):
        assert [(each.step, each.state) for each in find_checkpoints(folder, verify=True)][-1] == (
            12,
            "verified",
        )
        dcp_to_torch_save(folder / "step-12", tmp_path / "end.pt")
        ends.append(torch.load(tmp_path / "end.pt", weights_only=False)["model"])
    for name, value in ends[1].items():
        torch.testing.assert_close(ends[0][name], value, rtol=1e-3, atol=1e-5)
    assert undisturbed[12] < undisturbed[1] - 0.5
    # Parameters keep their types on the way to the ranks, and the cell's own code is what ran.
    spec = json.loads((done.launch / "spec.json").read_text())
    assert spec["kind"] == "cell"
    assert (spec["parameters"]["steps"], spec["parameters"]["resume"]) == (12, True)
    assert spec["parameters"]["learning_rate"] == pytest.approx(3e-3)
    assert "DistributedDataParallel" in spec["code"]
    ran = json.loads((done.launch / "notebook.ipynb").read_text())
    assert "resumes after step 6" in json.dumps(ran)
    # It shows itself on paper: the launch, the loop's own numbers, and what it lacks for a score.
    assert "completed" in done.text("train")
    assert "step 12" in done.text("train")
    assert "There is no GPU in the recording" in done.text("saturation")
    figures = [o.data["application/vnd.plotly.v1+json"] for o in done.outputs("saturation")[1:]]
    assert {trace["name"] for figure in figures for trace in figure["data"]} & {"loss", "tokens_per_s"}


def test_every_precision_learns_the_same(run_cell: Cell, tmp_path: Path) -> None:
    said = {
        precision: losses(
            run_cell("train-ddp", 1, tmp_path / precision, precision=precision, steps=15, log_every=1)
        )
        for precision in ("bf16", "fp16", "fp8")
    }
    for each in said.values():
        assert each[1] == pytest.approx(said["fp16"][1], rel=0.01)
        assert each[15] == pytest.approx(said["fp16"][15], rel=0.05)
        assert each[15] < each[1] - 0.8
    # They do differ: each rounds in its own way.
    assert len({each[15] for each in said.values()}) == 3


def test_sharded_checkpoints_are_whole_few_and_good_to_go_on_from(
    execute_notebook: Execute, run_cell: Cell, tmp_path: Path
) -> None:
    apart, whole = tmp_path / "apart", tmp_path / "whole"
    shared = {"checkpoint_every": 2, "log_every": 1, "stagger": 0.05}
    undisturbed = losses(run_cell("train-fsdp", 2, whole, steps=12, **shared))
    assert [each.path.name for each in find_checkpoints(whole)] == ["step-10", "step-12"]
    # As a run that was ended after its tenth step has left it.
    shutil.copytree(whole / "step-10", apart / "step-10")
    # A checkpoint that was broken off is newer, and is left alone.
    (apart / "step-11").mkdir()
    (apart / "step-11" / "__0_0.distcp").write_bytes(b"torn")
    done = execute_notebook("train-fsdp", steps=12, checkpoint=str(apart), resume=True, **shared)
    assert losses(done.logged) == pytest.approx({step: undisturbed[step] for step in (11, 12)}, rel=1e-4)
    left = find_checkpoints(apart, verify=True)
    assert [(each.path.name, each.state) for each in left] == [
        ("step-10", "verified"),
        ("step-12", "verified"),
    ]
    stood = [line["checkpoint_s"] for line in done.logged if "checkpoint_s" in line]
    assert len(stood) == 1
    assert "resumes after step 10" in (done.launch / "rank-1.log").read_text()


def test_a_model_cut_both_ways_learns_what_an_uncut_one_does(
    execute_notebook: Execute, run_cell: Cell, tmp_path: Path
) -> None:
    cut, uncut = tmp_path / "cut", tmp_path / "uncut"
    done = execute_notebook(
        "train-tensor-pipeline", steps=6, checkpoint=str(cut), checkpoint_every=6, log_every=1
    )
    alone = losses(run_cell("train-tensor-pipeline", 1, uncut, tensor=1, steps=10, log_every=1))
    assert losses(done.logged) == pytest.approx({step: alone[step] for step in range(1, 7)}, rel=1e-3)
    assert alone[10] < alone[1] - 0.2
    # What four ranks wrote, one reads.
    on = losses(run_cell("train-tensor-pipeline", 1, cut, tensor=1, steps=10, log_every=1, resume=True))
    assert on == pytest.approx({step: alone[step] for step in range(7, 11)}, rel=1e-3)


def test_adapters_learn_a_language_that_the_model_does_not_know(
    execute_notebook: Execute, tmp_path: Path
) -> None:
    done = execute_notebook("finetune", checkpoint=str(tmp_path / "kept"), finetune_steps=30)
    (said,) = (line for line in done.logged if "loss_after" in line)
    assert said["loss_after"] < said["loss_before"] / 2
    assert said["loss_merged"] == pytest.approx(said["loss_after"], rel=1e-3)
    adapters = torch.load(tmp_path / "kept" / "adapters.pt", weights_only=True)
    assert sum(each.numel() for each in adapters.values()) == said["learning"]
    assert all(".narrow." in name or ".wide." in name for name in adapters)
    # Checkpoints have the adapters and their optimizer alone.
    (left,) = find_checkpoints(tmp_path / "kept", verify=True)[-1:]
    assert (left.step, left.state) == (30, "verified")
    assert left.bytes < 2_000_000
