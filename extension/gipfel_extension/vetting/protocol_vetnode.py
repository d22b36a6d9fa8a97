"""Protocols of vetnode: its checks by their dotted type names, mapped to ours.

Its keys are read as it reads them: sizes and bandwidths in powers of 2, memory as a share of the whole.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, JsonValue, ValidationError

from gipfel_cluster.model import Frozen, one_line

from .check import check_class
from .protocol import ProtocolCheck
from .protocol_entry import KEYS, YamlMapping, broken, near, telling, validated
from .quantities import quantity

PREFIX = "vetnode."
_MODULES = "vetnode.evaluations."
#: What our own checks do without; torch they need, and it is looked for in the image.
_OWN = ("numpy", "cuda-python", "hip-python", "cuda-bindings", "cupy")
_LISTING_3 = ("nccl_eval.NCCEval", "nccl_eval.NCCLEval")


def _size(value: Any) -> int:
    return int(quantity(value, binary=True))


def _rate(value: Any) -> float:
    return quantity(value, binary=True)


Size = Annotated[int, BeforeValidator(_size), Field(gt=0, le=2**40)]
Rate = Annotated[float, BeforeValidator(_rate), Field(ge=0)]


class Gpu(Frozen):
    """``GPUEval``: degrees Celsius, and the share of memory in use."""

    max_temp: Annotated[float, Field(gt=0)]
    max_used_memory: Annotated[float, Field(ge=0, le=1)]

    def ours(self) -> list[dict[str, Any]]:
        """Return two checks: each has its own verdict."""
        # vetnode refuses a temperature that is equal to the limit; ours are whole degrees.
        most = self.max_temp - 0.5
        return [
            {"type": "temperature", "threshold": {"at_most": most, "source": "the protocol's max_temp"}},
            {"type": "gpu_memory", "parameters": {"most_used": self.max_used_memory}},
        ]


class EnvVar(Frozen):
    """``EnvVarEval``: variable to its exact value; null for one that must not be set."""

    expected: dict[str, str | None] = Field(min_length=1)

    def ours(self) -> list[dict[str, Any]]:
        """Return the same check of ours."""
        return [{"type": "environment", "parameters": {"expected": dict(self.expected)}}]


class Cuda(Frozen):
    """``CUDAEval``: a computation on the GPU, and every library of a CUDA folder can be loaded."""

    cuda_home: str | None = None

    def ours(self) -> list[dict[str, Any]]:
        """Return a product with its values checked on every GPU, not on the first alone."""
        small = {"type": "matmul", "parameters": {"size": 2048, "device": "cuda"}}
        if not self.cuda_home:
            return [small]
        return [small, {"type": "libraries", "parameters": {"folder": f"{self.cuda_home.rstrip('/')}/lib64"}}]


class Internet(Frozen):
    """``InternetAccessEval``: a TCP connection."""

    host: str
    port: Annotated[int, Field(ge=1, le=65_535)] = 53
    timeout: Annotated[float, Field(gt=0, le=600)] = 3

    def ours(self) -> list[dict[str, Any]]:
        """Return the same check of ours."""
        return [
            {
                "type": "internet",
                "parameters": {"host": self.host, "port": self.port, "seconds": self.timeout},
            }
        ]


class WarmUp(Frozen):
    """Warm-up before the measurement."""

    payload: Size = 256 * 2**20
    runs: Annotated[int, Field(ge=0, le=100)] = 3


class _Collective(Frozen):
    scheduler: str | None = None
    payload: Size = 4 * 2**30
    warmup: WarmUp = WarmUp()
    min_bandwidth: Rate = 15 * 2**30

    def _entry(self, scope: str, method: str, *, per_gpu: bool) -> dict[str, Any]:
        parameters: dict[str, JsonValue] = {
            "method": method, "payload": self.payload, "per_gpu": per_gpu, "device": "cuda",
            "warmup_payload": self.warmup.payload, "warmup_runs": self.warmup.runs,
        }  # fmt: skip
        threshold = {"at_least": self.min_bandwidth, "source": "the protocol's min_bandwidth"}
        return {"type": "collective", "scope": scope, "parameters": parameters, "threshold": threshold}


class NcclLib(_Collective):
    """``NcclLibEval`` and ``RcclLibEval``."""

    topology: Literal["intranode", "internode", "full"] = "full"
    method: Literal["allreduce"] = "allreduce"

    def ours(self) -> list[dict[str, Any]]:
        """Return intranode as a check of every node, internode as pairs, which can name the faulty node."""
        scope = {"intranode": "node", "internode": "pair", "full": "all"}[self.topology]
        return [self._entry(scope, self.method, per_gpu=self.topology != "internode")]


class NcclPytorch(_Collective):
    """``NcclPytorchEval``."""

    method: Literal["broadcast", "roundrobin", "allreduce", "gather", "allreduce-gather"] = "broadcast"

    def ours(self) -> list[dict[str, Any]]:
        """Return a check over all ranks; roundrobin, which measures two at a time, as pairs."""
        method = {"roundrobin": "send", "allreduce-gather": "gather"}.get(self.method, self.method)
        return [self._entry("pair" if method == "send" else "all", method, per_gpu=True)]


#: Type name after ``vetnode.evaluations.`` to how its keys are read; the paper's Listing 3 has its own.
TYPES: Mapping[str, type[Frozen] | None] = {
    "gpu_eval.GPUEval": Gpu,
    "env_var_eval.EnvVarEval": EnvVar,
    "cuda_eval.CUDAEval": Cuda,
    "internet_access.InternetAccessEval": Internet,
    "nccl_lib_eval.NcclLibEval": NcclLib,
    "rccl_lib_eval.RcclLibEval": NcclLib,
    "nccl_pytorch_eval.NcclPytorchEval": NcclPytorch,
    "nccl_eval.NCCEval": NcclPytorch,
    "nccl_eval.NCCLEval": NcclPytorch,
    "random.RandomEval": None,
}


def from_vetnode(document: YamlMapping, *, line: int) -> tuple[ProtocolCheck, ...]:
    """Return our checks for one of vetnode's; one with its `problem` where it can't be run."""
    type_ = str(document["type"])
    name = one_line(str(document.get("name") or type_))[:200] or "without a name"
    short = type_.removeprefix(_MODULES)
    if short not in TYPES:
        fix = (
            near(type_, [_MODULES + each for each in TYPES]) or "See the list of checks in the documentation."
        )
        at = document.lines.get("type", line)
        return (broken(name, type_, at, f"There is no check of type {type_[:100]!r}.", fix),)
    kind = TYPES[short]
    if kind is None:
        return (
            broken(name, type_, line, "RandomEval is a demonstration and checks nothing.", "Take it out."),
        )
    own = {key: value for key, value in document.items() if key not in KEYS}
    try:
        read: Any = kind.model_validate(_defaulted(short, own))
    except ValidationError as error:
        wrong = telling(error)
        key = str(wrong["loc"][0]) if wrong["loc"] else ""
        fix = near(key, kind.model_fields) if wrong["type"] == "extra_forbidden" else "Correct the value."
        message = "is not known" if wrong["type"] == "extra_forbidden" else wrong["msg"]
        return (broken(name, type_, document.lines.get(key, line), f"{key!r}: {message}.", fix),)
    return _built(document, name, read.ours, line)


def _built(
    document: YamlMapping, name: str, ours: Callable[[], list[dict[str, Any]]], line: int
) -> tuple[ProtocolCheck, ...]:
    needed, notes = _requirements(document.get("requirements"))
    extra = {
        key: document[key]
        for key in ("severity", "time_limit", "tolerate_degraded", "skip_if_alone", "scope")
        if key in document
    }
    parts = ours()
    built = []
    for part in parts:
        title = name if len(parts) == 1 else f"{name}: {part['type']}"
        if "threshold" in document and "threshold" not in part:
            part["threshold"] = document["threshold"]
        entry = validated(
            {**part, **extra, "requirements": needed}, title, part["type"], check_class(part["type"]), line
        )
        built.append(entry.model_copy(update={"notes": notes}))
    return tuple(built)


def _defaulted(short: str, own: dict[str, Any]) -> dict[str, Any]:
    """Convert the bandwidth of the paper's Listing 3, a plain number of GB/s."""
    rate = own.get("min_bandwidth")
    if short in _LISTING_3 and isinstance(rate, int | float) and not isinstance(rate, bool):
        return {"method": "allreduce", **own, "min_bandwidth": rate * 1e9}
    return own


def _requirements(value: Any) -> tuple[list[str], tuple[str, ...]]:
    """Return what to look for in the image, and notes on requirements that our checks don't need."""
    needed, notes = [], []
    listed = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    for each in listed:
        text = str(each[0] if isinstance(each, list) and each else each)
        if any(text.replace("_", "-").lower().startswith(own) for own in _OWN):
            notes.append(f"The requirement {text!r} counts as met: our own check does without installing it.")
        else:
            needed.append(text)
    return needed, tuple(notes)
