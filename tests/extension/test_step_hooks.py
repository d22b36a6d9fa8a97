"""Step hooks that a launch arms: what they log, and that a training's results are the same with them."""

import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from peer_environment import PEERS

from gipfel_extension.diagnosis.steps import steps_of_run
from gipfel_extension.job.run_roles import roles_of_run
from gipfel_extension.training import step_hooks
from gipfel_extension.training.launch import Launch, launch
from gipfel_extension.training.record.spec import LaunchSpec
from gipfel_extension.training.step_hooks import MetricsFile, StepHooks, StepLog, Waits

_PROGRAM = """
import time, torch
import torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(0)
layers = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 1))
WRAP
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
samples = torch.Generator().manual_seed(dist.get_rank())
for step in range(16):
    time.sleep(0.05 + 0.1 * dist.get_rank())
    loss = model(torch.randn(16, 8, generator=samples)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    dist.all_reduce(loss.detach())
    print("LOSS", loss.item().hex(), flush=True)
dist.destroy_process_group()
"""


_WRAPPERS = {
    "ddp": "model = torch.nn.parallel.DistributedDataParallel(layers)",
    "fsdp2": """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
model = fully_shard(layers, mesh=mesh)
""",
}


@pytest.mark.parametrize("wrapper", _WRAPPERS)
def test_ranks_log_steps_and_own_work_and_losses_stay_the_same(tmp_path: Path, wrapper: str) -> None:
    run = tmp_path / "alps-1"
    run.mkdir()
    (tmp_path / "train.py").write_text(_PROGRAM.replace("WRAP", _WRAPPERS[wrapper]))
    environment = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(tmp_path),
        "GIPFEL_RUNS": str(tmp_path), "GIPFEL_RUN": str(run), "GIPFEL_SCHEDULER": "local",
    }  # fmt: skip
    losses = []
    for hooked in (False, True):
        spec = LaunchSpec(
            target="train.py", launcher="srun", gpus_per_node=2, preflight=False, step_hooks=hooked
        )
        started = launch(spec, environment, directory=tmp_path)
        assert isinstance(started, Launch)
        assert started.wait(90) == 0, [line.text for line in started.logs().lines]
        losses.append(sorted((line.rank, line.text) for line in started.logs().lines if "LOSS" in line.text))
        assert (run / "metrics.jsonl").exists() == hooked
    assert losses[0] == losses[1]
    assert len(losses[0]) == 32
    table, notes = steps_of_run(run)
    assert table is not None
    assert (table.ranks.tolist(), notes) == ([0, 1], ())
    # Together they take 150 ms; rank 0 waits for two thirds of that.
    after = table.part(2)
    assert 0.14 < float(after.step_s.min()) < float(after.step_s.max()) < 0.6
    assert float(after.work_s[1].min()) > 0.14
    assert float(after.work_s[0].min()) < 0.11
    assert (after.work_s[0] < 0.8 * after.work_s[1]).all()


class _Written(list[tuple[int, float, float | None]]):
    def __call__(self, step: int, step_s: float, work_s: float | None) -> None:
        self.append((step, round(step_s, 6), None if work_s is None else round(work_s, 6)))


def test_quick_steps_are_logged_as_means_at_the_same_steps_of_all_ranks() -> None:
    found = []
    for pace in (0.01, 0.0101):
        written, waits = _Written(), Waits()
        log = StepLog(waits, written, 0.5)
        for step in range(1, 1000):
            waits.host_s += 0.004
            log.on_step(pace * step)
        found.append(written)
        assert len(written) < 20
        assert written[-1][1] == pytest.approx(pace)
        assert written[-1][2] == pytest.approx(pace - 0.004)
    assert [each[0] for each in found[0]] == [each[0] for each in found[1]]
    slow = _Written()
    log = StepLog(Waits(), slow, 0.5)
    for step in range(1, 5):
        log.on_step(2.0 * step, measures_work=False)
    assert slow == [(2, 2.0, None), (3, 2.0, None), (4, 2.0, None)]


class _Event:
    """Stand-in of a CUDA event: it is reached when the test says so."""

    reached = 0.0

    def __init__(self, at_s: float) -> None:
        self.at_s = at_s

    def query(self) -> bool:
        return self.at_s <= _Event.reached

    def elapsed_time(self, later: "_Event") -> float:
        return (later.at_s - self.at_s) * 1e3


def test_a_gpus_steps_are_written_once_its_stream_has_reached_them() -> None:
    written, waits, now = _Written(), Waits(), [0.0]
    waits.mark = lambda: _Event(now[0])
    log = StepLog(waits, written, 0.5)
    for step in range(1, 6):
        now[0] = 1.0 * step
        waits.pairs.append((_Event(now[0] - 0.25), _Event(now[0])))
        # The host is done long before the GPU.
        log.on_step(0.001 * step)
    assert written == []
    _Event.reached = 4.0
    log.on_step(0.006)
    # The first step has the start-up in it; later ones are logged together while the host looks quick.
    assert written
    assert {each[1:] for each in written} == {(1.0, 0.75)}


def test_only_what_the_program_does_not_log_itself_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = types.ModuleType("gipfel_widgets.log")
    monkeypatch.setitem(sys.modules, "gipfel_widgets.log", own)
    file = MetricsFile(
        str(tmp_path), {"RANK": "3", "GIPFEL_NODE": "n1", "GIPFEL_LAUNCH": "/r/alps-1/launches/7"}
    )
    file.write(1, 0.5, 0.25)
    own.logs_steps = True  # type: ignore[attr-defined]
    file.write(2, 0.5, None)
    own.logs_durations = True  # type: ignore[attr-defined]
    file.write(3, 0.5, 0.25)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["values"] for line in lines] == [
        {"step": 1, "step_s": 0.5, "work_s": 0.25},
        {"optimizer_step": 2, "step_s": 0.5},
    ]
    assert {(line["rank"], line["node"], line["launch"]) for line in lines} == {(3, "n1", "alps-1/7")}
    # A disk that can't be written, and a link in place of the file.
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "metrics.jsonl").symlink_to(tmp_path / "elsewhere")
    MetricsFile(str(tmp_path / "other"), {}).write(1, 0.5, None)
    assert not (tmp_path / "elsewhere").exists()


class _Optimizer:
    """Stand-in of an optimizer."""

    param_groups: tuple[Any, ...] = ()


def test_an_error_of_a_hook_stays_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    hooks = StepHooks({"RANK": "0"})
    optimizer = _Optimizer()
    calls: list[int] = []

    def broken() -> None:
        calls.append(1)
        raise RuntimeError("it broke")

    hooks.callbacks.append(broken)
    for _ in range(3):
        hooks._after_step(optimizer, (), {})
    assert calls == [1]
    assert "no longer logged (RuntimeError: it broke)" in capsys.readouterr().err
    assert step_hooks.arm_step_hooks({"GIPFEL_STEP_HOOKS": "0"}) is None


def test_steps_are_those_of_the_optimizer_that_is_used() -> None:
    hooks = StepHooks({})
    first, second = _Optimizer(), _Optimizer()
    for optimizer in (first, second, first, second):
        hooks._after_step(optimizer, (), {})
    assert hooks.log.count == 2
    for _ in range(25):
        hooks._after_step(second, (), {})
    assert hooks.log.count > 5


_LIGHTNING = """
import time
import torch
from lightning import LightningModule, Trainer

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch, _):
        time.sleep(0.05 + 0.1 * self.global_rank)
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

data = torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=2)
trainer = Trainer(
    accelerator="cpu", strategy="ddp", devices=2, max_epochs=1, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(Model(), data)
"""


@pytest.fixture(scope="module")
def lightning() -> Path:
    """Lightning in a directory of its own, beside this environment's torch; skipped where pip fails."""
    folder = PEERS / "lightning"
    names = ["lightning==2.6.6", "pytorch-lightning==2.6.6", "lightning-utilities", "torchmetrics"]
    if not (folder / "installed").exists():
        argv = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder, *names]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            pytest.skip("lightning can't be installed here")
        (folder / "installed").touch()
    return folder


def test_lightnings_ranks_log_steps_and_own_work_without_a_change_of_the_program(
    tmp_path: Path, lightning: Path
) -> None:
    run = tmp_path / "alps-1"
    run.mkdir()
    (tmp_path / "train.py").write_text(_LIGHTNING)
    environment = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(tmp_path),
        "GIPFEL_RUNS": str(tmp_path), "GIPFEL_RUN": str(run), "GIPFEL_SCHEDULER": "local",
    }  # fmt: skip
    spec = LaunchSpec(
        target="train.py", launcher="torchrun", gpus_per_node=2, preflight=False,
        environment={"PYTHONPATH": str(lightning)},
    )  # fmt: skip
    started = launch(spec, environment, directory=tmp_path)
    assert isinstance(started, Launch)
    assert started.wait(150) == 0, [line.text for line in started.logs().lines]
    table, notes = steps_of_run(run)
    assert table is not None
    assert (table.ranks.tolist(), notes) == ([0, 1], ())
    after = table.part(2)
    # Quick steps are logged as means.
    assert len(after.steps) >= 2
    assert float(after.work_s[1].min()) > 0.1
    assert float(np.median(after.work_s[0])) < 0.8 * float(np.median(after.work_s[1]))
    found = roles_of_run(run)
    assert (found.source, dict(found.roles.coordinates)) == ("wrapper", {0: {"dp": 0}, 1: {"dp": 1}})
