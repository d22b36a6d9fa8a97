"""Layout plans of a model on GPUs: DP x TP x PP x ZeRO, before anything is requested from a cluster; pure.

`plan` finds the fastest layout that fits, with checkpoints and scaling, as text and as a document; `layout`
computes one layout.
"""

from collections.abc import Iterator
from typing import Any, Literal

from gipfel_cluster.model import Frozen, GipfelError

from ...saturation.advice.checkpoint import daly
from .layout import BYTES, MACHINES, Layout, Machine, Memory, StepWork, Traffic, Transformer, machine_of

__all__ = [
    "ESTIMATE",
    "MACHINES",
    "Candidate",
    "Checkpoint",
    "Layout",
    "Machine",
    "Plan",
    "Step",
    "Transformer",
    "document_of",
    "gigabytes",
    "layouts",
    "lines_of",
    "name_of",
    "plan",
    "step_of",
]


_MAX_SHOWN = 5
_MAX_VALUE = 1e15
#: Note of every plan.
ESTIMATE = "an estimate: memory within 10 % of torch's tracker, times are not measured"


class Step(Frozen):
    """Time of one step in seconds: computation, pipeline bubble, and communication that is not overlapped."""

    compute: float
    bubble: float
    exposed: float

    @property
    def seconds(self) -> float:
        """Return the total time of the step."""
        return self.compute + self.bubble + self.exposed

    @property
    def efficiency(self) -> float:
        """Return the share of computation: the scaling efficiency relative to one GPU with enough memory."""
        return self.compute / self.seconds


class Candidate(Frozen):
    """A layout that fits into memory, with its estimated speed."""

    layout: Layout
    memory: Memory
    step: Step
    tokens_per_second: float


class Checkpoint(Frozen):
    """Checkpoint of weights and optimizer: bytes, seconds to write it, and the optimal interval in seconds.

    The interval is according to Young and Daly.
    """

    bytes: float
    seconds: float
    interval: float


class Plan(Frozen):
    """Layouts that fit into memory, the fastest first.

    ``scaling`` has pairs of a number of GPUs and its efficiency relative to the plan. ``notes`` are for
    users.
    """

    work: StepWork
    machine: Machine
    gpus: int
    candidates: tuple[Candidate, ...]
    traffic: tuple[Traffic, ...]
    checkpoint: Checkpoint
    scaling: tuple[tuple[int, float], ...]
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> Candidate:
        """Return the fastest layout."""
        return self.candidates[0]


def plan(
    model: Transformer | float,
    *,
    gpus: int,
    gpu: str = "GH200",
    sequence: int = 4096,
    batch: int = 0,
    micro: int = 1,
    precision: Literal["bf16", "fp32"] = "bf16",
    gpus_per_node: int = 0,
    network_gbps: float = 0.0,
    storage_gbps: float = 0.0,
    memory_gb: float = 0.0,
) -> Plan:
    """Return the fastest layouts of a training step on GPUs.

    Parameters
    ----------
    model
        A transformer, or its number of parameters.
    sequence, batch, micro
        Tokens in a sequence, sequences in a step on all GPUs (0: eight for each GPU), and sequences in a
        microbatch of a replica.
    gpu, gpus_per_node, memory_gb, network_gbps, storage_gbps
        Properties of the machine; rates in GB/s, `network_gbps` for each GPU, 0 for the defaults of the GPU.

    Raises
    ------
    GipfelError
        The GPU model is unknown, a number is out of range, or no layout fits into memory.
    """
    size = model.parameters if isinstance(model, Transformer) else model
    if gpus < 1 or sequence < 1 or micro < 1 or batch < 0 or not size >= 1:
        raise GipfelError("GPUs, sequence and sizes must be at least 1.", "Give larger numbers.")
    if not (
        size <= _MAX_VALUE and all(0 <= each < _MAX_VALUE for each in (network_gbps, storage_gbps, memory_gb))
    ):
        raise GipfelError("A size or a rate is out of range.", "Give smaller numbers.")
    machine = machine_of(
        gpu,
        gpus_per_node=gpus_per_node,
        network_gbps=network_gbps,
        storage_gbps=storage_gbps,
        memory_gb=memory_gb,
    )
    described = model if isinstance(model, Transformer) else Transformer.of_size(model)
    work = StepWork(
        model=described, sequence=sequence, batch=batch or 8 * gpus, micro=micro, precision=precision
    )
    found = [
        _candidate(each, work, machine) for each in layouts(gpus, work, machine) if each.fits(work, machine)
    ]
    if not found:
        raise _does_not_fit(gpus, work, machine)
    # Of equally fast layouts the simplest comes first.
    best = sorted(
        found, key=lambda each: (-each.tokens_per_second, each.layout.zero, each.layout.pp, each.layout.tp)
    )
    shape = f"{described.layers} layers of {described.hidden}"
    notes = () if isinstance(model, Transformer) else (f"a GPT of {shape} is assumed",)
    return Plan(
        work=work,
        machine=machine,
        gpus=gpus,
        candidates=tuple(best[:_MAX_SHOWN]),
        traffic=best[0].layout.traffic(work, machine),
        checkpoint=_checkpoint(work, machine, gpus),
        scaling=_scaling(best[0].layout, work, machine),
        notes=notes,
    )


def layouts(gpus: int, work: StepWork, machine: Machine) -> Iterator[Layout]:
    """Yield every layout that divides the model evenly; tensor parallelism does not cross nodes."""
    for tp in _divisors(min(gpus, machine.gpus_per_node)):
        if work.model.heads % tp or gpus % tp:
            continue
        for pp in _divisors(gpus // tp):
            dp = gpus // (tp * pp)
            if pp > work.model.layers or work.model.layers % pp or work.batch % (dp * work.micro):
                continue
            for zero in (0, 1, 2, 3) if dp > 1 else (0,):
                # With pipeline parallelism, sharded gradients would be sent for each microbatch.
                if zero < 2 or pp == 1:
                    yield Layout(dp=dp, tp=tp, pp=pp, zero=zero)
                    yield Layout(dp=dp, tp=tp, pp=pp, zero=zero, recompute=True)


def step_of(layout: Layout, work: StepWork, machine: Machine) -> Step:
    """Return the time of a step; overlapped communication counts only as far as it exceeds computation."""
    tokens = layout.microbatches(work) * work.micro * work.sequence * layout.dp
    operations = work.model.step_operations(tokens, work.sequence, recompute=layout.recompute)
    slower = 2.0 if work.precision == "fp32" else 1.0
    compute = slower * operations / (layout.gpus * machine.operations * machine.peak_fraction)
    share = layout.bubble(work)
    traffic = layout.traffic(work, machine)
    overlapped = sum(each.seconds for each in traffic if each.overlapped)
    # Gradients are overlapped with the backward pass, which is two thirds of computation.
    not_overlapped = sum(each.seconds for each in traffic if not each.overlapped)
    exposed = not_overlapped + max(0.0, overlapped - compute * 2 / 3)
    return Step(compute=compute, bubble=compute * share / (1 - share), exposed=exposed)


def lines_of(plan: Plan) -> list[str]:
    """Return the lines of `gipfel plan`."""
    model, best = plan.work.model, plan.best
    step, checkpoint = best.step, plan.checkpoint
    size = f"{model.parameters / 1e9:.2f} billion parameters"
    work = f"sequence {plan.work.sequence}, batch {plan.work.batch}, {plan.work.precision}"
    parts = f"{step.bubble:.2f} bubble, {step.exposed:.2f} waiting"
    width = max(len(_short(each)) for each in plan.candidates)
    interval = f"write one every {checkpoint.interval / 60:.0f} min"
    return [
        f"{size}: {model.layers} layers of {model.hidden}, {model.heads} heads",
        f"{plan.gpus} x {plan.machine.name}, {work}",
        "",
        f"{'LAYOUT':<{width}}{'STATE':>8}{'ACTIV.':>8}{'PEAK':>8}{'TOKENS/S':>14}{'EFF.':>6}",
        *(_row(each, width) for each in plan.candidates),
        "",
        f"a step of the first: {step.seconds:.2f} s, {step.compute:.2f} computing, {parts}",
        *map(_traffic_line, plan.traffic),
        f"a checkpoint is {gigabytes(checkpoint.bytes)}, {checkpoint.seconds:.0f} s to write; {interval}",
        "scaling  " + "  ".join(f"{gpus} GPUs {share:.0%}" for gpus, share in plan.scaling),
        *(f"note: {note}" for note in (*plan.notes, ESTIMATE)),
    ]


def _traffic_line(traffic: Traffic) -> str:
    link = "inside the node" if traffic.link == "node" else "over the network"
    overlap = "overlapped" if traffic.overlapped else "not overlapped"
    return f"  {traffic.purpose}: {gigabytes(traffic.bytes)} {link}, {traffic.seconds:.2f} s, {overlap}"


def document_of(plan: Plan) -> dict[str, Any]:
    """Return the document of `gipfel plan --json`, in bytes and seconds."""
    document = plan.model_dump(mode="json")
    for each, candidate in zip(document["candidates"], plan.candidates, strict=True):
        each["memory"]["total"] = candidate.memory.total
        each["step"] |= {"seconds": candidate.step.seconds, "efficiency": candidate.step.efficiency}
    document["work"]["model"]["parameters"] = plan.work.model.parameters
    return {**document, "notes": [*plan.notes, ESTIMATE]}


def name_of(candidate: Candidate) -> str:
    """Return a layout in a few words, such as ``DP 8 x TP 4, ZeRO-1``."""
    layout = candidate.layout
    parts = [f"{what} {count}" for what, count in (("DP", layout.dp), ("TP", layout.tp), ("PP", layout.pp))]
    shown = [part for part in parts if not part.endswith(" 1")] or ["one GPU"]
    more = ([f"ZeRO-{layout.zero}"] if layout.zero else []) + (["recompute"] if layout.recompute else [])
    return " x ".join(shown) + "".join(f", {each}" for each in more)


def gigabytes(size: float) -> str:
    """Return a size in GB, with one decimal digit below 100 GB."""
    return f"{size / 1e9:.1f} GB" if size < 1e11 else f"{size / 1e9:.0f} GB"


def _candidate(layout: Layout, work: StepWork, machine: Machine) -> Candidate:
    step = step_of(layout, work, machine)
    tokens = layout.microbatches(work) * work.micro * work.sequence * layout.dp
    return Candidate(
        layout=layout, memory=layout.memory(work), step=step, tokens_per_second=tokens / step.seconds
    )


def _scaling(layout: Layout, work: StepWork, machine: Machine) -> tuple[tuple[int, float], ...]:
    """Return numbers of GPUs with their efficiency relative to the plan; the batch grows with the GPUs."""
    base = _candidate(layout, work, machine).tokens_per_second
    found = []
    for times in (1, 2, 4, 8):
        wider = layout.model_copy(update={"dp": layout.dp * times})
        more = work.model_copy(update={"batch": work.batch * times})
        found.append((wider.gpus, _candidate(wider, more, machine).tokens_per_second / (base * times)))
    return tuple(found)


def _checkpoint(work: StepWork, machine: Machine, gpus: int) -> Checkpoint:
    weight, _, optimizer = BYTES[work.precision]
    size = float(work.model.parameters * (weight + optimizer))
    seconds = size / machine.storage_bandwidth
    nodes = -(-gpus // machine.gpus_per_node)
    return Checkpoint(
        bytes=size, seconds=seconds, interval=daly(seconds, machine.failure_hours * 3600 / nodes)
    )


def _does_not_fit(gpus: int, work: StepWork, machine: Machine) -> GipfelError:
    least = min((each.memory(work).total for each in layouts(gpus, work, machine)), default=0.0)
    if not least:
        return GipfelError(
            f"No layout divides {work.model.layers} layers and a batch of {work.batch} among {gpus} GPUs.",
            "Choose a number of GPUs that divides the batch, or a larger batch.",
        )
    return GipfelError(
        f"The model does not fit: each of {gpus} GPUs needs {least / 1e9:.0f} GB and has "
        f"{machine.memory / 1e9:.0f} GB.",
        "Use more GPUs, a shorter sequence or a smaller microbatch.",
    )


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


def _short(candidate: Candidate) -> str:
    return name_of(candidate).replace("recompute", "rec.")


def _row(candidate: Candidate, width: int) -> str:
    memory = candidate.memory
    sizes = (memory.state, memory.activations + memory.logits, memory.total)
    numbers = "".join(f"{size / 1e9:>7.1f}G" for size in sizes)
    speed = f"{candidate.tokens_per_second:>14,.0f}{candidate.step.efficiency:>6.0%}"
    return f"{_short(candidate):<{width}}{numbers}{speed}"
