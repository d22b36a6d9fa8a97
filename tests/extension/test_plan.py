"""Memory estimate of a layout plan, compared with torch's tracker for the same model with fake tensors."""

import json
import subprocess
import sys

import pytest

from gipfel_cluster.model import GipfelError
from gipfel_extension.cli.main import main
from gipfel_extension.training.layout_plan import Transformer, layouts, plan, step_of
from gipfel_extension.training.layout_plan.layout import Layout, StepWork, machine_of

#: Maximum deviation of the estimate from torch's tracker: temporaries are not in the formulas.
TOLERANCE = 0.10

_STEP = """
import json, os, sys
import torch
from torch import nn
from torch.nn import functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

# The imports take longer than a step: each case is a process that has them already.
for case in json.loads(sys.argv[1]):
    child = os.fork()
    if child == 0:
        break
    assert os.waitpid(child, 0)[1] == 0
else:
    sys.exit()
layers, hidden, heads, ffn, vocabulary, sequence, batch, gated, replicas = case

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(hidden, bias=False), nn.LayerNorm(hidden, bias=False)
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.up = nn.Linear(hidden, ffn, bias=False)
        self.gate = nn.Linear(hidden, ffn, bias=False) if gated else None
        self.down = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(self.before(x)).chunk(3, -1)
        q, k, v = (each.unflatten(-1, (heads, -1)).transpose(1, 2) for each in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        y = self.between(x)
        y = F.silu(self.gate(y)) * self.up(y) if gated else F.gelu(self.up(y))
        return x + self.down(y)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(vocabulary, hidden)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.LayerNorm(hidden, bias=False)
        self.head = nn.Linear(hidden, vocabulary, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens):
        x = self.table(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

if replicas > 1:
    # A group of which only this rank is there: its collectives give back what they get.
    dist.init_process_group("fake", rank=0, world_size=replicas, store=FakeStore())
    mesh = init_device_mesh("cpu", (replicas,))

with FakeTensorMode():
    model = Model()
    if replicas > 1:
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    tokens = torch.randint(0, vocabulary, (batch, sequence))
    def step():
        logits = model(tokens)
        F.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    step()  # the optimizer's state is made by the first one
    tracker = MemTracker()
    tracker.track_external(model, optimizer, tokens)
    with tracker:
        step()
    found = tracker.get_tracker_snapshot("peak")
    (device,) = found
    sizes = {str(kind).rpartition(".")[2]: size for kind, size in found[device].items()}
    print(json.dumps([sizes, sum(each.numel() for each in model.parameters())]), flush=True)
    os._exit(0)
"""
#: Model, sequence, samples of a step on a rank, replicas.
_CASES = (
    (Transformer(layers=6, hidden=256, heads=8, vocabulary=2048), 256, 4, 1),
    (Transformer(layers=12, hidden=768, heads=12, vocabulary=8192), 512, 1, 1),
    (Transformer(layers=4, hidden=512, heads=8, ffn=1408, gated=True, vocabulary=4096), 128, 8, 1),
    (Transformer(layers=12, hidden=768, heads=12, vocabulary=8192), 512, 1, 4),
    (Transformer(layers=8, hidden=512, heads=8, ffn=1408, gated=True, vocabulary=4096), 128, 8, 8),
)


@pytest.fixture(scope="module")
def tracked() -> list[tuple[dict[str, int], int]]:
    """Return the peak memory by kind, and the number of parameters, of each case by torch's tracker."""
    cases = []
    for model, sequence, micro, replicas in _CASES:
        sizes = (model.layers, model.hidden, model.heads, model.width, model.vocabulary)
        cases.append((*sizes, sequence, micro, int(model.gated), replicas))
    argv = [sys.executable, "-c", _STEP, json.dumps(cases)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("case", range(len(_CASES)))
def test_the_memory_is_that_of_torchs_tracker(case: int, tracked: list[tuple[dict[str, int], int]]) -> None:
    model, sequence, micro, replicas = _CASES[case]
    peak, parameters = tracked[case]
    batch = micro * replicas
    work = StepWork(model=model, sequence=sequence, batch=batch, micro=micro, precision="fp32")
    memory = Layout(dp=replicas, zero=3 if replicas > 1 else 0).memory(work)
    assert parameters == model.parameters
    assert memory.total == pytest.approx(peak["Total"], rel=TOLERANCE)


def test_every_layout_uses_all_gpus_and_holds_less_the_more_is_sharded() -> None:
    model = Transformer(
        layers=32, hidden=4096, heads=32, ffn=11008, gated=True, tied=False, vocabulary=32_000
    )
    # LLaMA's own count, arXiv:2302.13971, table 2.
    assert model.parameters == pytest.approx(6.74e9, rel=0.001)
    machine = machine_of("GH200")
    work = StepWork(model=model, sequence=4096, batch=128)
    found = list(layouts(16, work, machine))
    assert {each.gpus for each in found} == {16}
    assert all(each.tp <= machine.gpus_per_node for each in found)
    states = [Layout(dp=16, zero=zero).memory(work).state for zero in (0, 1, 2, 3)]
    # 16 bytes a parameter, of which 12, then 2, then 2 are sharded; one gathered layer remains.
    assert states[0] == 16 * model.parameters
    assert states == sorted(states, reverse=True)
    whole, half = Layout(dp=8).memory(work), Layout(dp=4, tp=2).memory(work)
    assert half.state == pytest.approx(whole.state / 2)
    assert half.activations == pytest.approx(whole.activations / 2)
    small = Layout(dp=8, recompute=True).memory(work)
    assert small.activations < whole.activations / 4
    pipeline = Layout(dp=4, pp=4)
    assert pipeline.bubble(work) == pytest.approx(3 / (32 + 3))
    step = step_of(pipeline, work, machine)
    assert step.seconds > step.compute > 0


def test_a_plan_is_the_fastest_that_fits_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    found = plan(7e9, gpus=16)
    speeds = [each.tokens_per_second for each in found.candidates]
    assert speeds == sorted(speeds, reverse=True)
    assert all(each.memory.total < found.machine.memory for each in found.candidates)
    assert found.checkpoint.bytes == 14 * found.work.model.parameters
    assert main(["plan", "--model", "7B", "--gpus", "16"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert main(["plan", "--model", "405B", "--gpus", "8192", "--gpu", "A100"]) == 0
    lines += capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert main(["plan", "--model", "7B", "--gpus", "16", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["candidates"][0]["layout"] == found.best.layout.model_dump()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--model", "70B", "--gpus", "8"), "The model does not fit"),
        (("--model", "7B", "--gpus", "8", "--gpu", "abacus"), "is unknown. Choose one of"),
        (("--layers", "2", "--hidden", "100", "--heads", "3", "--gpus", "8"), "multiple of heads"),
        (("--gpus", "8"), "Give --model, or --layers"),
        (("--model", "x", "--gpus", "8"), "not a number of parameters"),
        (("--model", "9" * 400, "--gpus", "8"), "Give smaller numbers"),
        (("--model", "7B", "--gpus", "8", "--memory", "nan"), "Give smaller numbers"),
        (("--model", "7B", "--gpus", "7", "--batch", "3"), "No layout divides"),
    ],
)
def test_what_cant_be_planned_is_one_line(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *words]) in {1, 2}
    refused = capsys.readouterr().err
    assert said in refused
    assert len(refused.splitlines()) == 1


def test_a_size_is_refused_where_it_is_none() -> None:
    with pytest.raises(GipfelError, match="at least 1"):
        plan(0, gpus=8)
