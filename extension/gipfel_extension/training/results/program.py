"""Programs of runs: what ran, with which options, and what these tell about its work.

`program_of_run`, `program_of_launch` and `program_of_command` find the program; `workload_of` says what is
known of its work; `KNOBS` are the options by which people follow advice.
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

#: Words that start another program: the script is behind them.
_STARTERS = re.compile(
    r"python[0-9.]*|torchrun|accelerate|deepspeed|papermill|srun|mpirun|mpiexec|env|nice|bash|sh|uv|time|numactl"
)
#: Those that take a module by -m.
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
_MOST_WORDS = 4096
#: Values that switch an option off.
_FALSE = frozenset(("", "0", "false", "no", "none", "off"))
#: Rules whose knob is on or off, and which give no advice if it is on.
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
    """A program and its call.

    Parameters
    ----------
    name
        The script's or notebook's absolute path, the module's or command's name, or a digest of a cell.
    options
        Values by the names of options, parameters and variables, in lower case with underscores; what has no
        name by its position.
    ranks
        Processes that the launcher starts; None if no launcher tells.
    """

    name: str
    options: Mapping[str, str] = field(default_factory=dict)
    ranks: int | None = None

    def value(self, pattern: re.Pattern[str]) -> str | None:
        """Return the value of the first option whose name a pattern fits; None where there is none."""
        return next((value for name, value in self.options.items() if pattern.search(name)), None)

    def has(self, pattern: re.Pattern[str]) -> bool:
        """Return whether an option of such a name is there and switched on."""
        return (self.value(pattern) or "").lower() not in _FALSE

    def on(self, name: str) -> bool:
        """Return whether an option of exactly this name is there and switched on."""
        return self.options.get(name, "").lower() not in _FALSE


def program_of_run(run: Path) -> Program | None:
    """Return what a run folder's job or command ran; None if its record has none, as a server's."""
    record = read_record_file(run)
    options = record.get("options")
    options = options if isinstance(options, dict) else {}
    if record.get("kind") == "recording":
        command = record.get("command")
        words = [str(word) for word in command] if isinstance(command, list) else []
        return program_of_command(words, str(record.get("directory") or ""))
    if record.get("kind") == "launch" and isinstance(options.get("launch"), str):
        return program_of_launch(Path(options["launch"]))
    if record.get("kind") == "notebook" and isinstance(options.get("notebook"), str):
        return Program(options["notebook"], _pairs(options.get("parameters")))
    return None


def program_of_launch(folder: Path) -> Program | None:
    """Return what a launch ran; None where its plan can't be read."""
    try:
        plan = LaunchPlan.load(folder)
    except GipfelError:
        return None
    spec = plan.spec
    # Unnamed cells have one name, and nothing in common but that.
    cell = spec.code if spec.name == LaunchSpec.model_fields["name"].default else spec.name
    name = {"cell": f"cell {sha256(cell.encode()).hexdigest()[:12]}", "module": spec.target}
    given = {**spec.parameters, **{f"env.{key}": value for key, value in spec.environment.items()}}
    options = {**_options(spec.arguments), **{_plain(key): str(value) for key, value in given.items()}}
    return Program(name.get(spec.kind, plan.target), options, spec.ranks)


def program_of_command(words: Sequence[str], directory: str) -> Program | None:
    """Return the program of a command line; None of an empty one, and of a file whose directory is unknown.

    Parameters
    ----------
    directory
        Where it was started; empty where that is unknown.
    """
    words = words[:_MOST_WORDS]
    starter = ""
    for place, word in enumerate(words):
        named = word.rpartition("/")[2]
        following = words[place + 1] if place + 1 < len(words) else ""
        if word == "-m" and _TAKE_MODULES.fullmatch(starter) and following:
            if following not in _LAUNCHER_MODULES:
                return Program(following, _options(words[place + 2 :]), _ranks(words[:place]))
        elif _STARTERS.fullmatch(named):
            starter = named
        elif _FILE.fullmatch(word) and not word.startswith("-") and (starter or place == 0):
            if not (directory or word.startswith("/")):
                return None
            path = normpath(Path(directory, word))
            return Program(path, _options(words[place + 1 :]), _ranks(words[:place]))
    if not words or starter:
        return None
    return Program(words[0].rpartition("/")[2], _options(words[1:]))


def workload_of(program: Program | None) -> Workload:
    """Return the facts; what contradicts itself is unknown."""
    if program is None:
        return Workload()
    return Workload(
        _kind(program), program.ranks, _parallelism(program), _precision(program), in_use(program)
    )


def in_use(program: Program) -> frozenset[str]:
    """Return the rules whose change a program's options show to be made already."""
    found = {rule for rule in _SWITCHES if program.has(KNOBS[rule])}
    if program.value(_MODE) in _GRAPHS:
        found.add("cuda-graphs")
    if "fused" in (program.value(KNOBS["fused-optimizer"]) or "") or program.has(_named(r"fused\w*")):
        found.add("fused-optimizer")
    return frozenset(found)


def _options(words: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    positions = 0
    waiting = ""
    for word in words:
        assigned = _ASSIGNED.fullmatch(word.lstrip("-"))
        if word.startswith("-") and not _NUMBER.fullmatch(word):
            waiting = ""
            if assigned:
                found[_plain(assigned["name"])] = assigned["value"]
            else:
                waiting = _plain(word.lstrip("-"))
                found[waiting] = "true"
        elif waiting:
            found[waiting], waiting = word, ""
        elif assigned:
            found[_plain(assigned["name"])] = assigned["value"]
        else:
            found[str(positions)] = word
            positions += 1
    return found


def _plain(name: str) -> str:
    return name.lower().replace("-", "_").replace("/", ".")


def _pairs(given: Any) -> dict[str, str]:
    pairs = given if isinstance(given, list) else []
    return {_plain(str(each[0])): str(each[1]) for each in pairs if isinstance(each, list) and len(each) == 2}


def _ranks(words: Sequence[str]) -> int | None:
    """Return how many processes a launcher's words ask for; None if they don't."""
    each, whole, nodes = (_number(words, pattern) for pattern in (_RANKS_A_NODE, _RANKS, _NODES))
    return (nodes or 1) * each if each is not None else whole


def _number(words: Sequence[str], pattern: re.Pattern[str]) -> int | None:
    for place, word in enumerate(words):
        if found := pattern.fullmatch(word):
            value = found["value"] or (words[place + 1] if place + 1 < len(words) else "")
            return int(value) if value.isdecimal() and len(value) < 8 else None
    return None


def _named(names: str) -> re.Pattern[str]:
    """Return a pattern for an option of one of these names, at the end of a dotted one."""
    return re.compile(rf"(?:^|[._])(?:{names})$")


#: Rule to the names of options that turn its knob.
KNOBS = {
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


#: Options that change neither what a step computes nor how fast it does.
HARMLESS = _named(
    r"seed|lr|learning_rate|weight_decay|warmup\w*|\w*epochs|(?:max_|num_|n_|train_|total_)*(?:steps|iters|iterations)"
    r"|\w*(?:output|log|save|checkpoint|ckpt|result|run|experiment)_?(?:dir|directory|path|name|folder|file|id)"
    r"|output|o|name|out|resume\w*|tag|notes|wandb\w*|verbose|v|log_(?:level|every\w*|interval|steps)"
)


_MODE = _named(r"compile_mode")


def _kind(program: Program) -> Kind | None:
    # A directory's name describes the project, not this script.
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
        # What is left of the ranks works on other data; only "sharded" tells how.
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
