"""The fastest layout that fits, and what it means for checkpoints and scaling; pure."""

from collections.abc import Iterator
from typing import Literal

from gipfel_cluster.model import Frozen, GipfelError

from ...saturation.checkpoint_interval import daly
from .layout import BYTES, Layout, Memory, Traffic, Workload
from .machine import Machine, machine_of
from .transformer import Transformer

_MOST_SHOWN = 5
_LARGEST = 1e15


class Step(Frozen):
    """One step of a layout: seconds for computing, for waiting in the pipeline and for what is not hidden."""

    compute: float
    bubble: float
    exposed: float

    @property
    def seconds(self) -> float:
        """The whole step."""
        return self.compute + self.bubble + self.exposed

    @property
    def efficiency(self) -> float:
        """The share of the step that computes: scaling against one GPU that could hold it all."""
        return self.compute / self.seconds


class Candidate(Frozen):
    """A layout that fits."""

    layout: Layout
    memory: Memory
    step: Step
    tokens_per_second: float


class Checkpoint(Frozen):
    """What a checkpoint of weights and optimizer takes, and how often to write one (Young and Daly)."""

    bytes: float
    seconds: float
    interval: float


class Plan(Frozen):
    """The best layout first; ``notes`` say what a person should know."""

    work: Workload
    machine: Machine
    gpus: int
    candidates: tuple[Candidate, ...]
    traffic: tuple[Traffic, ...]
    checkpoint: Checkpoint
    scaling: tuple[tuple[int, float], ...]
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> Candidate:
        """The fastest."""
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
    """Lay a training step out on GPUs.

    Parameters
    ----------
    model
        A transformer, or its number of parameters.
    sequence, batch, micro
        Tokens in a sequence; sequences in a step of all GPUs (0: eight for each), and at once in a replica.
    gpu, gpus_per_node, memory_gb, network_gbps, storage_gbps
        The machine; rates in GB/s, `network_gbps` for each GPU, 0 for the model's usual ones.

    Raises
    ------
    GipfelError
        The GPU is not known, a number can't be used, or nothing fits.
    """
    size = model.parameters if isinstance(model, Transformer) else model
    if gpus < 1 or sequence < 1 or micro < 1 or batch < 0 or not size >= 1:
        raise GipfelError("GPUs, sequence and sizes must be at least 1.", "Give larger numbers.")
    if not (
        size <= _LARGEST and all(0 <= each < _LARGEST for each in (network_gbps, storage_gbps, memory_gb))
    ):
        raise GipfelError("A size or a rate is no number that a machine has.", "Give smaller numbers.")
    machine = machine_of(
        gpu,
        gpus_per_node=gpus_per_node,
        network_gbps=network_gbps,
        storage_gbps=storage_gbps,
        memory_gb=memory_gb,
    )
    described = model if isinstance(model, Transformer) else Transformer.of_size(model)
    work = Workload(
        model=described, sequence=sequence, batch=batch or 8 * gpus, micro=micro, precision=precision
    )
    found = [
        _candidate(each, work, machine) for each in layouts(gpus, work, machine) if each.fits(work, machine)
    ]
    if not found:
        raise _does_not_fit(gpus, work, machine)
    # Of equal ones the simplest.
    best = sorted(
        found, key=lambda each: (-each.tokens_per_second, each.layout.zero, each.layout.pp, each.layout.tp)
    )
    shape = f"{described.layers} layers of {described.hidden}"
    notes = () if isinstance(model, Transformer) else (f"no more than a size was given: a GPT of {shape}",)
    return Plan(
        work=work,
        machine=machine,
        gpus=gpus,
        candidates=tuple(best[:_MOST_SHOWN]),
        traffic=best[0].layout.traffic(work, machine),
        checkpoint=_checkpoint(work, machine, gpus),
        scaling=_scaling(best[0].layout, work, machine),
        notes=notes,
    )


def layouts(gpus: int, work: Workload, machine: Machine) -> Iterator[Layout]:
    """Every layout of so many GPUs that divides the model evenly; tensor parallelism stays in a node."""
    for tp in _divisors(min(gpus, machine.gpus_per_node)):
        if work.model.heads % tp or gpus % tp:
            continue
        for pp in _divisors(gpus // tp):
            dp = gpus // (tp * pp)
            if pp > work.model.layers or work.model.layers % pp or work.batch % (dp * work.micro):
                continue
            for zero in (0, 1, 2, 3) if dp > 1 else (0,):
                # Gradients that are sharded between a pipeline's microbatches would travel for each of them.
                if zero < 2 or pp == 1:
                    yield Layout(dp=dp, tp=tp, pp=pp, zero=zero)
                    yield Layout(dp=dp, tp=tp, pp=pp, zero=zero, recompute=True)


def step_of(layout: Layout, work: Workload, machine: Machine) -> Step:
    """How long a step takes: what is hidden costs only what outlasts computing."""
    tokens = layout.microbatches(work) * work.micro * work.sequence * layout.dp
    operations = work.model.step_operations(tokens, work.sequence, recompute=layout.recompute)
    slower = 2.0 if work.precision == "fp32" else 1.0
    compute = slower * operations / (layout.gpus * machine.operations * machine.reached)
    share = layout.bubble(work)
    traffic = layout.traffic(work, machine)
    hidden = sum(each.seconds for each in traffic if each.hidden)
    # Two thirds of computing is the backward pass, behind which gradients travel.
    exposed = sum(each.seconds for each in traffic if not each.hidden) + max(0.0, hidden - compute * 2 / 3)
    return Step(compute=compute, bubble=compute * share / (1 - share), exposed=exposed)


def _candidate(layout: Layout, work: Workload, machine: Machine) -> Candidate:
    step = step_of(layout, work, machine)
    tokens = layout.microbatches(work) * work.micro * work.sequence * layout.dp
    return Candidate(
        layout=layout, memory=layout.memory(work), step=step, tokens_per_second=tokens / step.seconds
    )


def _scaling(layout: Layout, work: Workload, machine: Machine) -> tuple[tuple[int, float], ...]:
    """GPUs, and their tokens per second over as many times those of the plan's; the batch grows with them."""
    base = _candidate(layout, work, machine).tokens_per_second
    found = []
    for times in (1, 2, 4, 8):
        wider = layout.model_copy(update={"dp": layout.dp * times})
        more = work.model_copy(update={"batch": work.batch * times})
        found.append((wider.gpus, _candidate(wider, more, machine).tokens_per_second / (base * times)))
    return tuple(found)


def _checkpoint(work: Workload, machine: Machine, gpus: int) -> Checkpoint:
    weight, _, optimizer = BYTES[work.precision]
    size = float(work.model.parameters * (weight + optimizer))
    seconds = size / machine.storage_bandwidth
    nodes = -(-gpus // machine.gpus_per_node)
    return Checkpoint(
        bytes=size, seconds=seconds, interval=daly(seconds, machine.failure_hours * 3600 / nodes)
    )


def _does_not_fit(gpus: int, work: Workload, machine: Machine) -> GipfelError:
    least = min((each.memory(work).total for each in layouts(gpus, work, machine)), default=0.0)
    if not least:
        return GipfelError(
            f"No layout divides {work.model.layers} layers and a batch of {work.batch} among {gpus} GPUs.",
            "Take a number of GPUs that divides the batch, or a larger batch.",
        )
    return GipfelError(
        f"It does not fit: {least / 1e9:.0f} GB are needed on each of {gpus} GPUs of "
        f"{machine.memory / 1e9:.0f} GB.",
        "Take more GPUs, a shorter sequence or a smaller microbatch.",
    )


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]
