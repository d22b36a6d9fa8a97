"""A plan as lines of at most 80 characters, and as a document; pure."""

from typing import Any

from .planner import Candidate, Plan


def lines_of(plan: Plan) -> list[str]:
    """What `gipfel plan` prints."""
    model, best = plan.work.model, plan.best
    step, checkpoint = best.step, plan.checkpoint
    size = f"{model.parameters / 1e9:.2f} billion parameters"
    work = f"sequence {plan.work.sequence}, batch {plan.work.batch}, {plan.work.precision}"
    parts = f"{step.bubble:.2f} bubble, {step.exposed:.2f} waiting"
    width = max(len(_short(each)) for each in plan.candidates)
    lines = [
        f"{size}: {model.layers} layers of {model.hidden}, {model.heads} heads",
        f"{plan.gpus} x {plan.machine.name}, {work}",
        "",
        f"{'LAYOUT':<{width}}{'STATE':>8}{'ACTIV.':>8}{'PEAK':>8}{'TOKENS/S':>14}{'EFF.':>6}",
        *(_row(each, width) for each in plan.candidates),
        "",
        f"a step of the first: {step.seconds:.2f} s, {step.compute:.2f} computing, {parts}",
    ]
    for each in plan.traffic:
        where = "inside the node" if each.link == "node" else "over the network"
        behind = "behind computing" if each.hidden else "in its way"
        lines.append(f"  {each.what}: {gigabytes(each.bytes)} {where}, {each.seconds:.2f} s {behind}")
    lines.append(
        f"a checkpoint is {gigabytes(checkpoint.bytes)}, {checkpoint.seconds:.0f} s to write; "
        f"write one every {checkpoint.interval / 60:.0f} min"
    )
    lines.append("scaling  " + "  ".join(f"{gpus} GPUs {share:.0%}" for gpus, share in plan.scaling))
    return [*lines, *(f"note: {note}" for note in plan.notes), f"note: {ESTIMATE}"]


#: What every plan must say of itself.
ESTIMATE = "an estimate: memory within 10 % of torch's tracker, times unmeasured"


def document_of(plan: Plan) -> dict[str, Any]:
    """What `gipfel plan --json` prints; bytes and seconds."""
    document = plan.model_dump(mode="json")
    for each, candidate in zip(document["candidates"], plan.candidates, strict=True):
        each["memory"]["total"] = candidate.memory.total
        each["step"] |= {"seconds": candidate.step.seconds, "efficiency": candidate.step.efficiency}
    document["work"]["model"]["parameters"] = plan.work.model.parameters
    return {**document, "notes": [*plan.notes, ESTIMATE]}


def name_of(candidate: Candidate) -> str:
    """A layout in a few words, such as ``DP 8 x TP 4, ZeRO-1``."""
    layout = candidate.layout
    parts = [f"{what} {count}" for what, count in (("DP", layout.dp), ("TP", layout.tp), ("PP", layout.pp))]
    shown = [part for part in parts if not part.endswith(" 1")] or ["one GPU"]
    more = ([f"ZeRO-{layout.zero}"] if layout.zero else []) + (["recompute"] if layout.recompute else [])
    return " x ".join(shown) + "".join(f", {each}" for each in more)


def gigabytes(size: float) -> str:
    """A size in GB, with a digit where it is small."""
    return f"{size / 1e9:.1f} GB" if size < 1e11 else f"{size / 1e9:.0f} GB"


def _short(candidate: Candidate) -> str:
    return name_of(candidate).replace("recompute", "rec.")


def _row(candidate: Candidate, width: int) -> str:
    memory = candidate.memory
    sizes = (memory.state, memory.activations + memory.logits, memory.total)
    numbers = "".join(f"{size / 1e9:>7.1f}G" for size in sizes)
    speed = f"{candidate.tokens_per_second:>14,.0f}{candidate.step.efficiency:>6.0%}"
    return f"{_short(candidate):<{width}}{numbers}{speed}"
