"""What is known of a program's work from its name and its options: training or inference, how, in what."""

import re
from pathlib import PurePath

from ...saturation.workload import Kind, Parallelism, Precision, Workload
from .knobs import in_use
from .program import Program

_TRAINS = re.compile(
    r"(?:^|[_.\-/])(?:pre_?)?(?:train\w*|finetun\w*|fine_tun\w*|sft|dpo|ppo|grpo)", re.IGNORECASE
)
_INFERS = re.compile(
    r"(?:^|[_.\-/])(?:infer\w*|serv(?:e|er|ing)|generat\w*|predict\w*|eval\w*|vllm|sglang|tgi|llama_cpp)",
    re.IGNORECASE,
)
_TRAINING_OPTION = re.compile(
    r"(?:^|[._])(?:lr|learning_rate|weight_decay|optim|optimizer|epochs|num_train_epochs|warmup_steps"
    r"|gradient_accumulation_steps)$"
)
_INFERENCE_OPTION = re.compile(
    r"(?:^|[._])(?:max_new_tokens|max_num_seqs|gpu_memory_utilization|inference|eval_only|do_predict|beam_size)$"
)
_PARALLEL: dict[Parallelism, re.Pattern[str]] = {
    "tensor": re.compile(r"(?:^|[._])(?:tensor_(?:model_)?parallel(?:_size|_degree)?|tp(?:_size|_degree)?)$"),
    "pipeline": re.compile(
        r"(?:^|[._])(?:pipeline_(?:model_)?parallel(?:_size|_degree)?|pp(?:_size|_degree)?)$"
    ),
    "data": re.compile(r"(?:^|[._])(?:data_parallel(?:_size|_degree)?|dp(?:_size|_degree)?)$"),
}
_SHARDED = re.compile(r"(?:^|[._])(?:fsdp2?|use_fsdp|zero_stage|deepspeed\w*|data_parallel_shard_degree)$")
_STRATEGY = re.compile(r"(?:^|[._])(?:strategy|parallel(?:ism)?|distributed_backend)$")
_STRATEGIES: dict[str, Parallelism] = {
    "ddp": "data",
    "fsdp": "sharded",
    "deepspeed": "sharded",
    "zero": "sharded",
    "tp": "tensor",
    "pp": "pipeline",
}
_IN = re.compile(r"(?:^|[._])(?:\w*precision|\w*dtype|data_type|quantization)$")
_NAMED_IN: tuple[tuple[re.Pattern[str], Precision], ...] = (
    (re.compile(r"fp8|float8|e4m3|e5m2"), "fp8"),
    (re.compile(r"int8|w8a8"), "int8"),
    (re.compile(r"bf16|bfloat16"), "bf16"),
    (re.compile(r"tf32"), "tf32"),
    (re.compile(r"fp16|(?<!b)float16|half|^16(?:-\w+)?$"), "fp16"),
    (re.compile(r"fp64|float64|double|^64(?:-\w+)?$"), "fp64"),
    (re.compile(r"fp32|float32|^32(?:-\w+)?$|^float$"), "fp32"),
)
_FLAGS: tuple[Precision, ...] = ("fp8", "bf16", "fp16", "tf32", "fp64", "int8", "fp32")


def workload_of(program: Program | None) -> Workload:
    """Return the facts; what contradicts itself is unknown."""
    if program is None:
        return Workload()
    return Workload(
        _kind(program), program.ranks, _parallelism(program), _precision(program), in_use(program)
    )


def _kind(program: Program) -> Kind | None:
    # A folder's name says what a project is about, not what this script does.
    name = PurePath(program.name).stem if program.name.startswith("/") else program.name
    trains = bool(_TRAINS.search(name)) or program.has(_TRAINING_OPTION)
    infers = bool(_INFERS.search(name)) or program.has(_INFERENCE_OPTION)
    if trains == infers:
        return None
    return "training" if trains else "inference"


def _parallelism(program: Program) -> frozenset[Parallelism] | None:
    sizes = {kind: _size(program.value(pattern)) for kind, pattern in _PARALLEL.items()}
    found: set[Parallelism] = {kind for kind, size in sizes.items() if size is not None and size > 1}
    if program.has(_SHARDED):
        found.add("sharded")
    strategy = (program.value(_STRATEGY) or "").lower()
    found.update(kind for word, kind in _STRATEGIES.items() if strategy.startswith(word))
    split = (sizes["tensor"] or 1) * (sizes["pipeline"] or 1)
    if program.ranks is not None and found & {"tensor", "pipeline"} and split < program.ranks:
        # What is left of the ranks works on other data; in which way only "sharded" says.
        found |= set() if "sharded" in found else {"data"}
    if found:
        return frozenset(found)
    return frozenset() if program.ranks == 1 else None


def _size(value: str | None) -> int | None:
    return int(value) if value is not None and value.isdecimal() and len(value) < 8 else None


def _precision(program: Program) -> Precision | None:
    named = program.value(_IN)
    text = (named or "").lower()
    found: set[Precision] = {precision for pattern, precision in _NAMED_IN if pattern.search(text)}
    for flag in _FLAGS:
        if program.has(re.compile(rf"(?:^|[._])(?:use_)?{flag}$")):
            found.add(flag)
    # What is quantized or in FP8 has a wider type for the rest.
    found = found & {"fp8", "int8"} or found
    return found.pop() if len(found) == 1 else None
