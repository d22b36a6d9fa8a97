"""Workload of a launch, derived from its program; advice for other workloads is impossible then."""

import json
import zlib

import numpy as np
import pytest
from workloads import SHAPES

from gipfel_extension.saturation import Workload, advise, score_table
from gipfel_extension.training.results import program_of_command, program_of_run, workload_of

RANKS = ["torchrun", "--nproc-per-node", "8"]


def facts(*words: str) -> Workload:
    return workload_of(program_of_command(words, "/home/a/project"))


@pytest.mark.parametrize(
    ("words", "known"),
    [
        (["python", "train.py"], {"kind": "training"}),
        (["python", "infer.py"], {"kind": "inference"}),
        # A name that says both, or neither, says nothing.
        (["python", "train_and_eval.py"], {"kind": None}),
        (["python", "main.py", "--bf16"], {"kind": None, "precision": "bf16"}),
        (["python", "main.py", "--lr=1e-4"], {"kind": "training", "parallelism": None, "ranks": None}),
        ([*RANKS, "main.py"], {"ranks": 8, "parallelism": None}),
        ([*RANKS, "--nnodes=4", "-m", "pkg.train"], {"ranks": 32, "kind": "training"}),
        ([*RANKS, "main.py", "--tp", "8"], {"parallelism": frozenset({"tensor"})}),
        ([*RANKS, "main.py", "--tp", "4"], {"parallelism": frozenset({"tensor", "data"})}),
        ([*RANKS, "main.py", "strategy=fsdp"], {"parallelism": frozenset({"sharded"})}),
        (["torchrun", "--nproc-per-node=1", "main.py"], {"ranks": 1, "parallelism": frozenset()}),
        (
            ["vllm", "serve", "model", "--tensor-parallel-size", "8", "--dtype", "bfloat16"],
            {"kind": "inference", "parallelism": frozenset({"tensor"}), "precision": "bf16"},
        ),
        (["python", "main.py", "--dtype", "float64"], {"precision": "fp64"}),
        (["python", "main.py", "--precision", "16-mixed"], {"precision": "fp16"}),
        (["python", "main.py", "--quantization", "fp8", "--dtype", "bfloat16"], {"precision": "fp8"}),
        (["python", "main.py", "--bf16", "--fp16"], {"precision": None}),
        (["python", "main.py", "--compile", "--pin-memory=false"], {"uses": frozenset({"compile"})}),
        (
            ["python", "main.py", "compile_mode=reduce-overhead"],
            {"uses": frozenset({"compile", "cuda-graphs"})},
        ),
    ],
)
def test_what_a_command_line_says(words, known):
    found = facts(*words)
    assert {name: getattr(found, name) for name in known} == known


def test_a_script_has_a_name_only_where_its_folder_is_known():
    assert program_of_command(["python", "train.py"], "") is None
    assert program_of_command(["python", "./a/../train.py"], "/home/a").name == "/home/a/train.py"
    assert program_of_command(["srun", "-n", "2", "python", "/x/t.py"], "").ranks == 2
    assert program_of_command([], "/home/a") is None


def test_a_record_that_anyone_may_have_written_is_read_with_care(tmp_path):
    for record in (
        [],
        {"kind": "recording", "command": "python train.py"},
        {"kind": "launch", "options": {"launch": ["x"]}},
        {"kind": "launch", "options": {"launch": "/nowhere"}},
        {"kind": "notebook", "options": 7},
        {"kind": "server", "command": ["python", "train.py"]},
    ):
        (tmp_path / "record.json").write_text(json.dumps(record))
        assert program_of_run(tmp_path) is None
    noted = {
        "kind": "notebook",
        "options": {"notebook": "/n/a.ipynb", "parameters": [["batch_size", "8"], 3]},
    }
    (tmp_path / "record.json").write_text(json.dumps(noted))
    assert dict(program_of_run(tmp_path).options) == {"batch_size": "8"}


PRECISION = {"quarter-precision", "half-precision"}
TRAINING = {"activation-checkpointing", "fused-optimizer", "bucket-size", "asynchronous-checkpoint"}


@pytest.mark.parametrize(
    ("shape", "words", "wrong"),
    [
        ("flash-attention", ["python", "train.py", "--bf16"], {"batch-size", "activation-checkpointing"}),
        ("eager-inference", ["python", "infer.py"], {"loader-workers", *TRAINING}),
        ("eager-training", ["python", "train.py"], {"loader-workers"}),
        ("data-parallel-over-slingshot", [*RANKS, "train.py"], {"cuda-graphs", "compile"}),
        ("pipeline-that-spins", [*RANKS, "train.py", "--pp=8"], {"cuda-graphs", "bucket-size"}),
        ("rank-10-percent-slower", [*RANKS, "train.py"], {"batch-size", "compile"}),
        ("rank-20-percent-slower", [*RANKS, "train.py"], {"batch-size", "compile"}),
        ("checkpoint-to-lustre", ["python", "train.py"], {"loader-workers"}),
        ("power-cap", ["python", "train.py"], PRECISION),
        ("thermal-slowdown", ["python", "train.py"], PRECISION),
        ("latency-at-full-clock", ["python", "train.py"], {"capping"}),
        ("training-at-the-power-limit", ["python", "train.py"], {"capping"}),
        ("matmul-fp64-tensor", ["python", "simulate.py", "--dtype", "float64"], PRECISION),
        ("matmul-int8", ["python", "infer.py", "--dtype", "int8"], PRECISION),
        ("training-in-fp8", ["python", "train.py", "--fp8"], PRECISION),
        ("embedding-lookups", ["python", "infer.py"], TRAINING),
        ("decode-of-many-sequences", ["vllm", "serve", "model"], TRAINING),
        ("tensor-parallel-decode", ["vllm", "serve", "model", "--tensor-parallel-size=8"], TRAINING),
        ("host-messages", ["python", "simulate.py"], {"loader-workers"}),
        ("cache-at-its-roof", ["python", "main.py"], {"batch-size"}),
        ("video-decoder-binds", ["python", "infer.py"], {"loader-workers", "pinned-memory"}),
    ],
)
def test_wrong_advice_is_impossible_for(shape, words, wrong):
    made = SHAPES[shape].draw(np.random.default_rng((7, zlib.crc32(shape.encode()))))
    for interval in (0.1, 1.0):
        table = made.sampled(interval)
        given = {each.rule for each in advise(table, score_table(table), workload=facts(*words))}
        assert not given & wrong
