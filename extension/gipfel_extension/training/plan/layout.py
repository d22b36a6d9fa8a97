"""One way to spread a training step over GPUs: what each GPU holds, and what travels; pure."""

from typing import Literal

from pydantic import Field

from gipfel_cluster.model import Frozen

from .machine import Machine
from .transformer import Transformer

#: Bytes for each parameter: weights, gradients, and the optimizer's state (Adam: two moments, and in mixed
#: precision the weights in 32 bits; Rajbhandari et al. 2020, arXiv:1910.02054, section 3.1).
BYTES = {"bf16": (2, 2, 12), "fp32": (4, 4, 8)}

# NCCL's buffers, CUDA's context and the allocator's gaps; seen, not derived.
_OVERHEAD_SHARE = 0.08


class Workload(Frozen):
    """What is trained: ``batch`` sequences in a step of all GPUs, ``micro`` of them at once on a replica."""

    model: Transformer
    sequence: int = Field(ge=1)
    batch: int = Field(ge=1)
    micro: int = Field(1, ge=1)
    precision: Literal["bf16", "fp32"] = "bf16"


class Memory(Frozen):
    """Bytes on the fullest GPU; ``accumulates`` where gradients stay over several microbatches."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    accumulates: bool = True

    @property
    def state(self) -> float:
        """Weights, gradients and optimizer."""
        return self.weights + self.gradients + self.optimizer

    @property
    def total(self) -> float:
        """The peak, without what libraries and the allocator take.

        In a step of one microbatch gradients come as activations go: the larger counts.
        """
        forward = self.activations + self.logits
        both = self.gradients + forward if self.accumulates else max(self.gradients, forward)
        return self.weights + self.optimizer + both


class Traffic(Frozen):
    """What one GPU sends for one purpose in one step, and over which link: ``node`` or ``network``."""

    what: str
    link: Literal["node", "network"]
    bytes: float
    seconds: float
    hidden: bool


class Layout(Frozen):
    """DP x TP x PP with a ZeRO stage; ``recompute`` keeps only each layer's input for the backward pass."""

    dp: int = Field(ge=1)
    tp: int = Field(1, ge=1)
    pp: int = Field(1, ge=1)
    zero: Literal[0, 1, 2, 3] = 0
    recompute: bool = False

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return self.dp * self.tp * self.pp

    def microbatches(self, work: Workload) -> int:
        """Microbatches that one replica runs in a step."""
        return max(1, -(-work.batch // (self.dp * work.micro)))

    def memory(self, work: Workload) -> Memory:
        """What the fullest GPU holds: one of the pipeline's first stage, which has the embedding.

        ZeRO shards over the replicas: from stage 1 the optimizer, from 2 the gradients, in 3 the weights. Of
        these one layer is in use, one is gathered ahead and one's gradients are on their way, as torch's
        FSDP does it, and the embedding stays gathered. Tensor parallelism with sequence parallelism shards
        weights and activations alike. The first stage holds as many microbatches as there are stages (1F1B).
        Sources: arXiv:1910.02054 section 5; arXiv:2205.05198 sections 4.2 and 4.3.
        """
        model, (weight, gradient, optimizer) = work.model, BYTES[work.precision]
        layers = -(-model.layers // self.pp)
        tables = 1 if model.tied or self.pp > 1 else 2
        mine = (
            layers * model.layer_parameters + tables * model.embedding_parameters + model.hidden
        ) / self.tp
        whole = (min(3, layers) * model.layer_parameters + tables * model.embedding_parameters) / self.tp
        gathered = whole if self.zero == 3 and self.dp > 1 else 0.0
        tokens = work.micro * work.sequence
        in_flight = min(self.pp, self.microbatches(work))
        kept = model.hidden if self.recompute else model.layer_activations()
        values = layers * kept * in_flight + (model.layer_activations() if self.recompute else 0)
        # Logits in the working precision, their logarithms in 32 bits, and their gradient.
        logits = tokens * model.vocabulary * (2 * weight + 4) / self.tp if self.pp == 1 else 0.0
        return Memory(
            weights=mine * weight / (self.dp if self.zero >= 3 else 1) + gathered * weight,
            gradients=mine * gradient / (self.dp if self.zero >= 2 else 1),
            optimizer=mine * optimizer / (self.dp if self.zero >= 1 else 1),
            activations=values * tokens * weight / self.tp,
            logits=logits,
            accumulates=self.microbatches(work) > 1,
        )

    def fits(self, work: Workload, machine: Machine) -> bool:
        """Whether it fits, with room for libraries and the allocator."""
        return self.memory(work).total <= machine.memory * (1 - _OVERHEAD_SHARE)

    def bubble(self, work: Workload) -> float:
        """The share of a step in which a stage waits: (p-1)/(m+p-1), arXiv:2104.04473 section 2.2."""
        count = self.microbatches(work)
        return (self.pp - 1) / (count + self.pp - 1)

    def traffic(self, work: Workload, machine: Machine) -> tuple[Traffic, ...]:
        """What one GPU sends in a step; rings, so 2·(n-1)/n of the bytes for an all-reduce.

        Gradients and ZeRO-3's gathers are hidden behind computing as far as that lasts; tensor parallelism's
        are not. Sources: arXiv:1909.08053 section 3 (four all-reduces a layer), arXiv:1910.02054 section 7.
        """
        model, weight = work.model, BYTES[work.precision][0]
        count, tokens = self.microbatches(work), work.micro * work.sequence
        layers = -(-model.layers // self.pp)
        mine = (layers * model.layer_parameters + model.embedding_parameters) / self.tp * weight
        found = []
        if self.tp > 1:
            ring = 2 * (self.tp - 1) / self.tp
            sent = 4 * layers * tokens * model.hidden * weight * ring * count
            found.append(
                self._over("activations (TP)", sent, self.tp <= machine.gpus_per_node, machine, hidden=False)
            )
        if self.pp > 1:
            inside = self.tp * self.pp <= machine.gpus_per_node
            sent = 2 * tokens * model.hidden * weight / self.tp * count
            found.append(self._over("activations (PP)", sent, inside, machine, hidden=True))
        if self.dp > 1:
            inside = self.gpus <= machine.gpus_per_node
            # Where gradients are sharded they travel for each microbatch, and in 3 the weights too.
            times = {2: count + 1, 3: 3 * count}.get(self.zero, 2)
            sent = times * (self.dp - 1) / self.dp * mine
            what = "weights and gradients (ZeRO-3)" if self.zero == 3 else "gradients (DP)"
            found.append(self._over(what, sent, inside, machine, hidden=True))
        return tuple(found)

    @staticmethod
    def _over(what: str, sent: float, inside: bool, machine: Machine, *, hidden: bool) -> Traffic:  # noqa: FBT001
        rate = machine.node_bandwidth if inside else machine.network_bandwidth
        link: Literal["node", "network"] = "node" if inside else "network"
        return Traffic(what=what, link=link, bytes=sent, seconds=sent / rate, hidden=hidden)
