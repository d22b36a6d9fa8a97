"""Options by which people turn what advice is about, as common programs call them."""

import re

from .program import Program


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

#: Rules whose knob is on or off, and which say nothing where it is on.
_SWITCHES = (
    "pinned-memory", "compile", "cuda-graphs", "activation-checkpointing", "asynchronous-checkpoint",
)  # fmt: skip
_GRAPHS = ("reduce-overhead", "max-autotune")
_MODE = _named(r"compile_mode")


def in_use(program: Program) -> frozenset[str]:
    """Return the rules whose change a program's options show to be made already."""
    found = {rule for rule in _SWITCHES if program.has(KNOBS[rule])}
    if program.value(_MODE) in _GRAPHS:
        found.add("cuda-graphs")
    if "fused" in (program.value(KNOBS["fused-optimizer"]) or "") or program.has(_named(r"fused\w*")):
        found.add("fused-optimizer")
    return frozenset(found)
