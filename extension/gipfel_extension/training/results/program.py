"""Programs of runs, their options, and the properties of the workload that follow from them.

`program_of_run`, `program_of_launch` and `program_of_command` find the program, `workload_of` returns its
workload, and `RULE_OPTIONS` has the options by which users follow advice.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from os.path import normpath
from pathlib import Path, PurePath
from typing import Any

from gipfel_cluster.model import GipfelError

from ...saturation.advice.model import Kind, Parallelism, Precision, Workload
from ...telemetry.files import read_record_file
from ..record.spec import LaunchPlan, LaunchSpec

#: Programs that start another program; the script comes after them.
_STARTERS = re.compile(
    r"python[0-9.]*|torchrun|accelerate|deepspeed|papermill|srun|mpirun|mpiexec|env|nice|bash|sh|uv|time|numactl"
)
#: Programs that take a module with -m.
_TAKE_MODULES = re.compile(r"python[0-9.]*|torchrun|accelerate|deepspeed")
_LAUNCHER_MODULES = frozenset(
    ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "papermill")
)
_FILE = re.compile(r".+\.(?:py|ipynb|sh)")
_NUMBER = re.compile(r"-?[0-9.]+(?:e-?[0-9]+)?", re.IGNORECASE)
_ASSIGNED = re.compile(r"\+{0,2}(?P<name>[A-Za-z_][\w./-]*)=(?P<value>.*)", re.DOTALL)
_RANKS_A_NODE = re.compile(r"--(?:nproc[_-]per[_-]node|ntasks-per-node)(?:=(?P<value>\d+))?")
_RANKS = re.compile(r"(?:-n|-np|--ntasks|--num_processes|--np)(?:=(?P<value>\d+))?")
_NODES = re.compile(r"(?:-N|--nodes|--nnodes)(?:=(?P<value>\d+))?")
_MAX_WORDS = 4096
#: Values that switch an option off.
_FALSE = frozenset(("", "0", "false", "no", "none", "off"))
#: Rules about an option that is on or off; they give no advice if it is on.
_SWITCHES = (
    "pinned-memory", "compile", "cuda-graphs", "activation-checkpointing", "asynchronous-checkpoint",
)  # fmt: skip
_GRAPHS = ("reduce-overhead", "max-autotune")
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


@dataclass(frozen=True)
class Program:
    """A program and its arguments.

    Parameters
    ----------
    name
        Absolute path of a script or notebook, name of a module or command, or digest of a cell.
    options
        Values by name of options, parameters and environment variables, in lower case with underscores;
        positional arguments by their position.
    ranks
        Number of processes that the launcher starts; None if unknown.
    """

    name: str
    options: Mapping[str, str] = field(default_factory=dict)
    ranks: int | None = None

    def value(self, pattern: re.Pattern[str]) -> str | None:
        """Return the value of the first option whose name matches a pattern; None without one."""
        return next((value for name, value in self.options.items() if pattern.search(name)), None)

    def is_any_enabled(self, pattern: re.Pattern[str]) -> bool:
        """Return whether an option whose name matches a pattern is enabled."""
        return (self.value(pattern) or "").lower() not in _FALSE

    def is_enabled(self, name: str) -> bool:
        """Return whether the option of this name is enabled."""
        return self.options.get(name, "").lower() not in _FALSE


def program_of_run(run: Path) -> Program | None:
    """Return the program of a run's job or command; None if its record has none, for example of a server."""
    record = read_record_file(run)
    options = record.get("options")
    options = options if isinstance(options, dict) else {}
    if record.get("kind") == "recording":
        command = record.get("command")
        arguments = [str(argument) for argument in command] if isinstance(command, list) else []
        return program_of_command(arguments, str(record.get("directory") or ""))
    if record.get("kind") == "launch" and isinstance(options.get("launch"), str):
        return program_of_launch(Path(options["launch"]))
    if record.get("kind") == "notebook" and isinstance(options.get("notebook"), str):
        return Program(options["notebook"], _pairs(options.get("parameters")))
    return None


def program_of_launch(folder: Path) -> Program | None:
    """Return the program of a launch; None if its plan can't be read."""
    try:
        plan = LaunchPlan.load(folder)
    except GipfelError:
        return None
    spec = plan.spec
    # Cells without a name all have the default name, so they are identified by their code.
    cell = spec.code if spec.name == LaunchSpec.model_fields["name"].default else spec.name
    name = {"cell": f"cell {sha256(cell.encode()).hexdigest()[:12]}", "module": spec.target}
    given = {**spec.parameters, **{f"env.{key}": value for key, value in spec.environment.items()}}
    options = {**_options(spec.arguments), **{_plain(key): str(value) for key, value in given.items()}}
    return Program(name.get(spec.kind, plan.target), options, spec.ranks)


def program_of_command(arguments: Sequence[str], directory: str) -> Program | None:
    """Return the program of a command line; None if it is empty, or if a script's directory is unknown.

    Parameters
    ----------
    directory
        Working directory of the command; empty if unknown.
    """
    arguments = arguments[:_MAX_WORDS]
    starter = ""
    for index, argument in enumerate(arguments):
        program_name = argument.rpartition("/")[2]
        following = arguments[index + 1] if index + 1 < len(arguments) else ""
        if argument == "-m" and _TAKE_MODULES.fullmatch(starter) and following:
            if following not in _LAUNCHER_MODULES:
                return Program(following, _options(arguments[index + 2 :]), _ranks(arguments[:index]))
        elif _STARTERS.fullmatch(program_name):
            starter = program_name
        elif _FILE.fullmatch(argument) and not argument.startswith("-") and (starter or index == 0):
            if not (directory or argument.startswith("/")):
                return None
            path = normpath(Path(directory, argument))
            return Program(path, _options(arguments[index + 1 :]), _ranks(arguments[:index]))
    if not arguments or starter:
        return None
    return Program(arguments[0].rpartition("/")[2], _options(arguments[1:]))


def workload_of(program: Program | None) -> Workload:
    """Return the workload of a program; properties with contradicting options are unknown."""
    if program is None:
        return Workload()
    return Workload(
        _kind(program), program.ranks, _parallelism(program), _precision(program), applied_rules(program)
    )


def applied_rules(program: Program) -> frozenset[str]:
    """Return the rules whose advice the options of a program already follow."""
    found = {rule for rule in _SWITCHES if program.is_any_enabled(RULE_OPTIONS[rule])}
    if program.value(_MODE) in _GRAPHS:
        found.add("cuda-graphs")
    if "fused" in (program.value(RULE_OPTIONS["fused-optimizer"]) or "") or program.is_any_enabled(
        _named(r"fused\w*")
    ):
        found.add("fused-optimizer")
    return frozenset(found)


def _options(arguments: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    positions = 0
    waiting = ""
    for argument in arguments:
        assigned = _ASSIGNED.fullmatch(argument.lstrip("-"))
        if argument.startswith("-") and not _NUMBER.fullmatch(argument):
            waiting = ""
            if assigned:
                found[_plain(assigned["name"])] = assigned["value"]
            else:
                waiting = _plain(argument.lstrip("-"))
                found[waiting] = "true"
        elif waiting:
            found[waiting], waiting = argument, ""
        elif assigned:
            found[_plain(assigned["name"])] = assigned["value"]
        else:
            found[str(positions)] = argument
            positions += 1
    return found


def _plain(name: str) -> str:
    return name.lower().replace("-", "_").replace("/", ".")


def _pairs(value: Any) -> dict[str, str]:
    pairs = value if isinstance(value, list) else []
    return {_plain(str(each[0])): str(each[1]) for each in pairs if isinstance(each, list) and len(each) == 2}


def _ranks(arguments: Sequence[str]) -> int | None:
    """Return the number of processes in a launcher's arguments; None if they have none."""
    per_node, total, nodes = (_number(arguments, pattern) for pattern in (_RANKS_A_NODE, _RANKS, _NODES))
    return (nodes or 1) * per_node if per_node is not None else total


def _number(arguments: Sequence[str], pattern: re.Pattern[str]) -> int | None:
    for index, argument in enumerate(arguments):
        if found := pattern.fullmatch(argument):
            value = found["value"] or (arguments[index + 1] if index + 1 < len(arguments) else "")
            return int(value) if value.isdecimal() and len(value) < 8 else None
    return None


def _named(names: str) -> re.Pattern[str]:
    """Return a pattern for options with one of these names, also as the last part of a dotted name."""
    return re.compile(rf"(?:^|[._])(?:{names})$")


#: Rule to a pattern of the options that change its setting.
RULE_OPTIONS = {
    "loader-workers": _named(r"(?:num_|n_)?workers|dataloader_num_workers|loader_workers|cpus_per_task"),
    "pinned-memory": _named(r"pin_mem(?:ory)?"),
    "compile": _named(r"(?:torch_|use_|model_)?compile|torch_compile_\w+|compile_mode|inductor"),
    "cuda-graphs": _named(r"(?:use_|enable_)?cuda_?graphs?|reduce_overhead"),
    "batch-size": _named(
        r"\w*batch_?size|bs|b|micro_batch|per_device_\w*batch\w*|train_micro_batch\w*|max_num_seqs"
    ),
    "activation-checkpointing": _named(
        r"(?:use_|enable_)?(?:activation|gradient|grad)_checkpoint(?:ing|s)?|recompute\w*|ac_mode"
    ),
    "half-precision": _named(r"bf16|fp16|amp|tf32|autocast|\w*precision|\w*dtype|nvidia_tf32_override"),
    "quarter-precision": _named(r"\w*fp8\w*|float8|\w*precision|quantization|\w*dtype"),
    "fused-optimizer": _named(r"fused\w*|optim|optimizer"),
    "bucket-size": _named(r"(?:ddp_)?bucket\w*|overlap_grad_reduce|gradient_as_bucket_view"),
    "checkpoint-interval": _named(r"(?:save|checkpoint|ckpt)_(?:interval|every\w*|steps|freq\w*)"),
    "asynchronous-checkpoint": _named(r"async_save|async_(?:checkpoint|ckpt)\w*|(?:checkpoint|ckpt)_async"),
    "placement": _named(r"gpu_bind|nccl_p2p_level|cuda_visible_devices"),
}


#: Options that change neither the work of a step nor its speed.
IRRELEVANT_OPTIONS = _named(
    r"seed|lr|learning_rate|weight_decay|warmup\w*|\w*epochs|(?:max_|num_|n_|train_|total_)*(?:steps|iters|iterations)"
    r"|\w*(?:output|log|save|checkpoint|ckpt|result|run|experiment)_?(?:dir|directory|path|name|folder|file|id)"
    r"|output|o|name|out|resume\w*|tag|notes|wandb\w*|verbose|v|log_(?:level|every\w*|interval|steps)"
)


_MODE = _named(r"compile_mode")


def _kind(program: Program) -> Kind | None:
    # A directory's name describes the project, not this script.
    name = PurePath(program.name).stem if program.name.startswith("/") else program.name
    trains = bool(_TRAINS.search(name)) or program.is_any_enabled(_TRAINING_OPTION)
    infers = bool(_INFERS.search(name)) or program.is_any_enabled(_INFERENCE_OPTION)
    if trains == infers:
        return None
    return "training" if trains else "inference"


def _parallelism(program: Program) -> frozenset[Parallelism] | None:
    sizes = {kind: _size(program.value(pattern)) for kind, pattern in _PARALLEL.items()}
    found: set[Parallelism] = {kind for kind, size in sizes.items() if size is not None and size > 1}
    if program.is_any_enabled(_SHARDED):
        found.add("sharded")
    strategy = (program.value(_STRATEGY) or "").lower()
    found.update(kind for argument, kind in _STRATEGIES.items() if strategy.startswith(argument))
    split = (sizes["tensor"] or 1) * (sizes["pipeline"] or 1)
    if program.ranks is not None and found & {"tensor", "pipeline"} and split < program.ranks:
        # The remaining ranks are data parallel, unless the options already show sharding.
        found |= set() if "sharded" in found else {"data"}
    if found:
        return frozenset(found)
    return frozenset() if program.ranks == 1 else None


def _size(value: str | None) -> int | None:
    return int(value) if value is not None and value.isdecimal() and len(value) < 8 else None


def _precision(program: Program) -> Precision | None:
    program_name = program.value(_IN)
    text = (program_name or "").lower()
    found: set[Precision] = {precision for pattern, precision in _NAMED_IN if pattern.search(text)}
    for flag in _FLAGS:
        if program.is_any_enabled(re.compile(rf"(?:^|[._])(?:use_)?{flag}$")):
            found.add(flag)
    # A quantized or FP8 model uses a wider type for its other operations.
    found = found & {"fp8", "int8"} or found
    return found.pop() if len(found) == 1 else None
