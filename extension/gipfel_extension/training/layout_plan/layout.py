"""Layouts of a training step over GPUs: model, machine, memory and traffic of each GPU; pure."""

from typing import Literal

from pydantic import Field, model_validator

from gipfel_cluster.model import Frozen, GipfelError

from ...saturation.settings import ceilings_of

#: Memory in GB (1e9 bytes) and dense bf16 tensor operations in 1e12/s, from NVIDIA's data sheets.
_GPUS: dict[str, tuple[float, float]] = {
    "A100-40": (40, 312),
    "A100": (80, 312),
    "H100": (80, 989),
    "H200": (141, 989),
    "GH200": (96, 989),
    "B200": (180, 2250),
    "GB200": (186, 2500),
    "V100": (32, 125),
    "L40S": (48, 362),
}
MACHINES = tuple(_GPUS)
_DEFAULT_NODE = {"GH200": 4, "GB200": 4}
#: Fraction of a GPU's peak that a training step achieves without the cost of communication; large models on
#: A100 reached 0.52 including it (Narayanan et al. 2021, arXiv:2104.04473, table 1).
_PEAK_FRACTION = 0.5
#: Ratio of hidden size to number of layers in a model that is given only by its size; the loss hardly depends
#: on it (Kaplan 2020, arXiv:2001.08361, figure 5).
_ASPECT = 128
#: Width of an attention head in a model that is given only by its size.
_HEAD = 128
#: Default vocabulary: that of GPT-2, padded to a multiple of 128.
_VOCABULARY = 50_304
#: Bytes for each parameter: weights, gradients, and the optimizer's state (Adam: two moments, and in mixed
#: precision the weights in 32 bits; Rajbhandari et al. 2020, arXiv:1910.02054, section 3.1).
BYTES = {"bf16": (2, 2, 12), "fp32": (4, 4, 8)}
# Share of memory for NCCL's buffers, CUDA's context and fragmentation; observed, not derived.
_OVERHEAD_SHARE = 0.08


class Transformer(Frozen):
    """A decoder-only transformer.

    ``ffn`` is the width of the MLP (0: 4 x hidden), ``kv_heads`` the number of heads of keys and values (0:
    all). A ``gated`` MLP has three matrices, others have two. If ``tied``, input and output embeddings are
    the same matrix.
    """

    layers: int = Field(ge=1)
    hidden: int = Field(ge=1)
    heads: int = Field(ge=1)
    kv_heads: int = Field(0, ge=0)
    ffn: int = Field(0, ge=0)
    vocabulary: int = Field(_VOCABULARY, ge=1)
    gated: bool = False
    tied: bool = True

    @model_validator(mode="after")
    def _fits(self) -> "Transformer":
        if self.hidden % self.heads:
            raise ValueError("hidden must be a multiple of heads")
        if self.kv_heads and self.heads % self.kv_heads:
            raise ValueError("heads must be a multiple of kv_heads")
        return self

    @classmethod
    def of_size(cls, parameters: float) -> "Transformer":
        """Return a GPT with about this number of parameters."""
        depth = (parameters / (12 * _ASPECT**2)) ** (1 / 3)
        # Rounded to numbers with many divisors, as in real models.
        layers = max(1, round(depth / 8) * 8 if depth > 12 else round(depth / 2) * 2)
        width = (parameters / (12 * layers)) ** 0.5
        grain = 8 * _HEAD if width > 4096 else 2 * _HEAD if width > 1024 else _HEAD
        hidden = max(_HEAD, round(width / grain) * grain)
        return cls(layers=layers, hidden=hidden, heads=hidden // _HEAD)

    @property
    def width(self) -> int:
        """Return the width of the MLP."""
        return self.ffn or 4 * self.hidden

    @property
    def kv(self) -> int:
        """Return the width of keys, which is also that of values."""
        return self.hidden * (self.kv_heads or self.heads) // self.heads

    @property
    def layer_parameters(self) -> int:
        """Return the number of parameters of one layer: attention, MLP and two norms."""
        attention = 2 * self.hidden * self.hidden + 2 * self.hidden * self.kv
        return attention + (3 if self.gated else 2) * self.hidden * self.width + 2 * self.hidden

    @property
    def embedding_parameters(self) -> int:
        """Return the number of parameters of one embedding matrix."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """Return the number of parameters of the model."""
        tables = self.embedding_parameters * (1 if self.tied else 2)
        return self.layers * self.layer_parameters + tables + self.hidden

    def step_operations(self, tokens: float, sequence: int, *, recompute: bool = False) -> float:
        """Return the floating-point operations of a step: forward, twice as many backward, and recomputation.

        Source: Narayanan et al. 2021, arXiv:2104.04473, equation 2, generalised: two operations for each
        weight and token, and 2·2·s·h for the attention of a token to the sequence.
        """
        weights = self.layers * self.layer_parameters + self.embedding_parameters
        attention = 2 * self.layers * sequence * self.hidden
        return (4 if recompute else 3) * tokens * 2 * (weights + attention)

    def layer_activations(self) -> int:
        """Return the number of values that one layer stores for the backward pass, for each token.

        These are input and output of both norms, queries, keys, values, output of the attention, and values
        of the MLP (before and after its non-linearity; if gated: gate, its non-linearity, up, and their
        product). In 16 bits this is the 34·s·b·h of Korthikanti et al. 2022, arXiv:2205.05198, without
        dropout masks, and with attention that does not store its scores (Dao et al. 2022, arXiv:2205.14135).
        """
        mlp = (4 if self.gated else 2) * self.width
        return 6 * self.hidden + 2 * self.kv + mlp


class Machine(Frozen):
    """Machine of a plan: memory of a GPU in bytes, operations per second, and bandwidths in bytes per second.

    ``node_bandwidth`` is that of one GPU inside its node, ``network_bandwidth`` of one GPU between nodes,
    both in one direction, and ``storage_bandwidth`` of all GPUs together. ``failure_hours`` is the mean time
    between failures of a node. ``peak_fraction`` is the fraction of a GPU's peak that a step achieves.
    """

    name: str
    memory: float
    operations: float
    gpus_per_node: int
    node_bandwidth: float
    network_bandwidth: float
    storage_bandwidth: float = 10e9
    failure_hours: float = 10_000.0
    peak_fraction: float = _PEAK_FRACTION


def machine_of(
    gpu: str,
    *,
    gpus_per_node: int = 0,
    network_gbps: float = 0.0,
    storage_gbps: float = 0.0,
    memory_gb: float = 0.0,
) -> Machine:
    """Return the machine with a GPU model; rates in GB/s, 0 for defaults.

    Raises
    ------
    GipfelError
        The model is unknown.
    """
    name = next((known for known in _GPUS if known.lower() == gpu.lower()), "")
    if not name:
        raise GipfelError(f"The GPU model {gpu!r} is unknown.", f"Choose one of {', '.join(MACHINES)}.")
    memory, operations = _GPUS[name]
    links = ceilings_of(name).links
    return Machine(
        name=name,
        memory=(memory_gb or memory) * 1e9,
        operations=operations * 1e12,
        gpus_per_node=gpus_per_node or _DEFAULT_NODE.get(name, 8),
        node_bandwidth=links.get("nvlink") or links.get("pcie") or 25e9,
        # 200 Gbit/s for each GPU: Slingshot 11 on Alps, and InfiniBand HDR.
        network_bandwidth=(network_gbps or 25.0) * 1e9,
        storage_bandwidth=(storage_gbps or 10.0) * 1e9,
    )


class StepWork(Frozen):
    """Work of a step: ``batch`` sequences on all GPUs, in microbatches of ``micro`` on a replica."""

    model: Transformer
    sequence: int = Field(ge=1)
    batch: int = Field(ge=1)
    micro: int = Field(1, ge=1)
    precision: Literal["bf16", "fp32"] = "bf16"


class Memory(Frozen):
    """Bytes on the GPU with the highest memory use; ``accumulates`` is true with several microbatches."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    accumulates: bool = True

    @property
    def state(self) -> float:
        """Return the bytes of weights, gradients and optimizer."""
        return self.weights + self.gradients + self.optimizer

    @property
    def total(self) -> float:
        """Return the peak, without the overhead of libraries and the allocator.

        In a step of one microbatch, gradients are allocated as activations are freed, so the larger counts.
        """
        forward = self.activations + self.logits
        both = self.gradients + forward if self.accumulates else max(self.gradients, forward)
        return self.weights + self.optimizer + both


class Traffic(Frozen):
    """Bytes that one GPU sends for one purpose in a step, and their link: ``node`` or ``network``.

    ``overlapped`` traffic takes place during computation.
    """

    purpose: str
    link: Literal["node", "network"]
    bytes: float
    seconds: float
    overlapped: bool


class Layout(Frozen):
    """DP x TP x PP with a ZeRO stage; ``recompute`` stores only each layer's input for the backward pass."""

    dp: int = Field(ge=1)
    tp: int = Field(1, ge=1)
    pp: int = Field(1, ge=1)
    zero: Literal[0, 1, 2, 3] = 0
    recompute: bool = False

    @property
    def gpus(self) -> int:
        """Return the number of GPUs."""
        return self.dp * self.tp * self.pp

    def microbatches(self, work: StepWork) -> int:
        """Return the number of microbatches that one replica runs in a step."""
        return max(1, -(-work.batch // (self.dp * work.micro)))

    def memory(self, work: StepWork) -> Memory:
        """Return the memory of a GPU in the first pipeline stage, which has the highest use.

        ZeRO shards over the replicas: from stage 1 the optimizer, from 2 the gradients, in 3 the weights. In
        stage 3, as in torch's FSDP, three layers are gathered (one in use, one prefetched, one with gradients
        in transit), and the embedding. Tensor parallelism with sequence parallelism shards weights and
        activations. The first stage stores as many microbatches as there are stages (1F1B).
        Sources: arXiv:1910.02054 section 5; arXiv:2205.05198 sections 4.2 and 4.3.
        """
        model, (weight, gradient, optimizer) = work.model, BYTES[work.precision]
        layers = -(-model.layers // self.pp)
        tables = 1 if model.tied or self.pp > 1 else 2
        shard = (
            layers * model.layer_parameters + tables * model.embedding_parameters + model.hidden
        ) / self.tp
        gathered_size = (
            min(3, layers) * model.layer_parameters + tables * model.embedding_parameters
        ) / self.tp
        gathered = gathered_size if self.zero == 3 and self.dp > 1 else 0.0
        tokens = work.micro * work.sequence
        in_flight = min(self.pp, self.microbatches(work))
        kept = model.hidden if self.recompute else model.layer_activations()
        values = layers * kept * in_flight + (model.layer_activations() if self.recompute else 0)
        # Logits in the working precision, their logarithms in 32 bits, and their gradient.
        logits = tokens * model.vocabulary * (2 * weight + 4) / self.tp if self.pp == 1 else 0.0
        return Memory(
            weights=shard * weight / (self.dp if self.zero >= 3 else 1) + gathered * weight,
            gradients=shard * gradient / (self.dp if self.zero >= 2 else 1),
            optimizer=shard * optimizer / (self.dp if self.zero >= 1 else 1),
            activations=values * tokens * weight / self.tp,
            logits=logits,
            accumulates=self.microbatches(work) > 1,
        )

    def fits(self, work: StepWork, machine: Machine) -> bool:
        """Return whether the layout fits into memory, with space for libraries and the allocator."""
        return self.memory(work).total <= machine.memory * (1 - _OVERHEAD_SHARE)

    def bubble(self, work: StepWork) -> float:
        """Return the pipeline bubble as a share of a step: (p-1)/(m+p-1), arXiv:2104.04473 section 2.2."""
        count = self.microbatches(work)
        return (self.pp - 1) / (count + self.pp - 1)

    def traffic(self, work: StepWork, machine: Machine) -> tuple[Traffic, ...]:
        """Return the traffic of one GPU in a step; an all-reduce in a ring sends 2·(n-1)/n of the bytes.

        Gradients and ZeRO-3's gathers are overlapped with computation, traffic of tensor parallelism is not.
        Sources: arXiv:1909.08053 section 3 (four all-reduces per layer), arXiv:1910.02054 section 7.
        """
        model, weight = work.model, BYTES[work.precision][0]
        count, tokens = self.microbatches(work), work.micro * work.sequence
        layers = -(-model.layers // self.pp)
        shard = (layers * model.layer_parameters + model.embedding_parameters) / self.tp * weight
        activations = tokens * model.hidden * weight * count
        # Sharded gradients are sent for each microbatch, and in stage 3 also the weights.
        transfers = {2: count + 1, 3: 3 * count}.get(self.zero, 2)
        gradients = "weights and gradients (ZeRO-3)" if self.zero == 3 else "gradients (DP)"
        per_node = machine.gpus_per_node
        # For each axis its size and purpose, whether its groups are inside a node, and the bytes.
        axes = (
            (
                self.tp,
                "activations (TP)",
                self.tp <= per_node,
                4 * layers * activations * 2 * (1 - 1 / self.tp),
            ),
            (self.pp, "activations (PP)", self.tp * self.pp <= per_node, 2 * activations / self.tp),
            (self.dp, gradients, self.gpus <= per_node, transfers * (1 - 1 / self.dp) * shard),
        )
        return tuple(
            Traffic(
                purpose=purpose,
                link="node" if in_node else "network",
                bytes=sent,
                seconds=sent / (machine.node_bandwidth if in_node else machine.network_bandwidth),
                overlapped=purpose != "activations (TP)",
            )
            for size, purpose, in_node, sent in axes
            if size > 1
        )
