"""A transformer as its sizes, and what follows from them: parameters, operations, activations; pure."""

from pydantic import Field, model_validator

from gipfel_cluster.model import Frozen

#: Hidden size over layers; the loss is flat around it (Kaplan et al. 2020, arXiv:2001.08361, figure 5).
_ASPECT = 128
_HEAD = 128
_VOCABULARY = 50_304


class Transformer(Frozen):
    """A decoder: ``ffn`` is the MLP's width (0: 4 x hidden), ``kv_heads`` those of keys and values (0: all).

    ``gated`` MLPs have three matrices, others two. ``tied`` says that the output's matrix is the embedding's.
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
        """A GPT of about so many parameters, for whoever names no more than that."""
        depth = (parameters / (12 * _ASPECT**2)) ** (1 / 3)
        # Numbers that divide, as real models have them.
        layers = max(1, round(depth / 8) * 8 if depth > 12 else round(depth / 2) * 2)
        width = (parameters / (12 * layers)) ** 0.5
        grain = 8 * _HEAD if width > 4096 else 2 * _HEAD if width > 1024 else _HEAD
        hidden = max(_HEAD, round(width / grain) * grain)
        return cls(layers=layers, hidden=hidden, heads=hidden // _HEAD)

    @property
    def width(self) -> int:
        """The width of the MLP."""
        return self.ffn or 4 * self.hidden

    @property
    def kv(self) -> int:
        """The width of keys, and of values."""
        return self.hidden * (self.kv_heads or self.heads) // self.heads

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer: attention, MLP and two norms."""
        attention = 2 * self.hidden * self.hidden + 2 * self.hidden * self.kv
        return attention + (3 if self.gated else 2) * self.hidden * self.width + 2 * self.hidden

    @property
    def embedding_parameters(self) -> int:
        """Parameters of one table of the vocabulary."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters."""
        tables = self.embedding_parameters * (1 if self.tied else 2)
        return self.layers * self.layer_parameters + tables + self.hidden

    def step_operations(self, tokens: float, sequence: int, *, recompute: bool = False) -> float:
        """Floating-point operations of a step: forward, and twice that backward; once more with recomputing.

        Source: Narayanan et al. 2021, arXiv:2104.04473, equation 2, generalised: two operations for each
        weight that multiplies a token, and 2·2·s·h for its attention to the sequence.
        """
        weights = self.layers * self.layer_parameters + self.embedding_parameters
        attention = 2 * self.layers * sequence * self.hidden
        return (4 if recompute else 3) * tokens * 2 * (weights + attention)

    def layer_activations(self) -> int:
        """Values that one layer keeps for the backward pass, for each token.

        Input and output of both norms, queries, keys, values, attention's output, and what the MLP keeps
        (before and after its non-linearity; gated: gate, its non-linearity, up and their product). With 16
        bits and without dropout this is the 34·s·b·h of Korthikanti et al. 2022, arXiv:2205.05198, less
        their masks, and with attention that does not keep its scores (Dao et al. 2022, arXiv:2205.14135).
        """
        mlp = (4 if self.gated else 2) * self.width
        return 6 * self.hidden + 2 * self.kv + mlp
