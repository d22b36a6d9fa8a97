"""Read protocols in vetnode's format: its checks, by their dotted type names, become Gipfel's.

Its keys keep vetnode's units: sizes and bandwidths in powers of 2, used memory as a share.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, JsonValue, ValidationError

from gipfel_cluster.definition_files import YamlMapping, most_specific_error, suggestion
from gipfel_cluster.model import Frozen, one_line

from .check import check_class
from .protocol import KEYS, ProtocolCheck, unusable_entry, validate_entry
from .threshold import quantity

PREFIX = "vetnode."
_MODULES = "vetnode.evaluations."
#: Packages that vetnode's checks need and Gipfel's do not.
_NOT_NEEDED = ("numpy", "cuda-python", "hip-python", "cuda-bindings", "cupy")
_LISTING_3 = ("nccl_eval.NCCEval", "nccl_eval.NCCLEval")


Size = Annotated[float, BeforeValidator(partial(quantity, binary=True)), Field(gt=0, le=2**40)]
Rate = Annotated[float, BeforeValidator(partial(quantity, binary=True)), Field(ge=0)]


class Gpu(Frozen):
    """``GPUEval``: degrees Celsius, and the share of memory in use."""

    max_temp: Annotated[float, Field(gt=0)]
    max_used_memory: Annotated[float, Field(ge=0, le=1)]

    def to_entries(self) -> list[dict[str, Any]]:
        """Return a check of the temperature and one of the memory, each with its own verdict."""
        # vetnode rejects a temperature equal to the limit, and NVML reports whole degrees.
        most = self.max_temp - 0.5
        return [
            {"type": "temperature", "threshold": {"at_most": most, "source": "the protocol's max_temp"}},
            {"type": "gpu_memory", "parameters": {"most_used": self.max_used_memory}},
        ]


class EnvVar(Frozen):
    """``EnvVarEval``: variables and their exact values; null for one that must not be set."""

    expected: dict[str, str | None] = Field(min_length=1)

    def to_entries(self) -> list[dict[str, Any]]:
        """Return a check of type environment."""
        return [{"type": "environment", "parameters": {"expected": dict(self.expected)}}]


class Cuda(Frozen):
    """``CUDAEval``: a computation on the GPU, and loading every library of a CUDA directory."""

    cuda_home: str | None = None

    def to_entries(self) -> list[dict[str, Any]]:
        """Return a matmul check of every GPU (vetnode uses the first only), and one of the libraries."""
        matmul = {"type": "matmul", "parameters": {"size": 2048, "device": "cuda"}}
        folder = f"{(self.cuda_home or '').rstrip('/')}/lib64"
        libraries = {"type": "libraries", "parameters": {"folder": folder}}
        return [matmul, libraries] if self.cuda_home else [matmul]


class Internet(Frozen):
    """``InternetAccessEval``: opening a TCP connection."""

    host: str
    port: Annotated[int, Field(ge=1, le=65_535)] = 53
    timeout: Annotated[float, Field(gt=0, le=600)] = 3

    def to_entries(self) -> list[dict[str, Any]]:
        """Return a check of type internet."""
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

    def to_entries(self) -> list[dict[str, Any]]:
        """Return a collective within nodes for intranode, of pairs for internode, else over all ranks."""
        scope = {"intranode": "node", "internode": "pair", "full": "all"}[self.topology]
        return [self._entry(scope, self.method, per_gpu=self.topology != "internode")]


class NcclPytorch(_Collective):
    """``NcclPytorchEval``."""

    method: Literal["broadcast", "roundrobin", "allreduce", "gather", "allreduce-gather"] = "broadcast"

    def to_entries(self) -> list[dict[str, Any]]:
        """Return a collective over all ranks; in pairs for roundrobin, which measures two ranks at a time."""
        method = {"roundrobin": "send", "allreduce-gather": "gather"}.get(self.method, self.method)
        return [self._entry("pair" if method == "send" else "all", method, per_gpu=True)]


#: Type name after ``vetnode.evaluations.`` to the model of its keys. Two are from the paper's Listing 3.
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
    """Return the checks for an entry of vetnode; one with its `problem` where it can't be run."""
    type_ = str(document["type"])
    name = one_line(str(document.get("name") or type_))[:200] or "without a name"
    short = type_.removeprefix(_MODULES)
    if short not in TYPES:
        fix = (
            suggestion(type_, [_MODULES + each for each in TYPES])
            or "Use a check that `gipfel vet --list` lists."
        )
        at = document.lines.get("type", line)
        return (unusable_entry(name, type_, at, f"There is no check of type {type_[:100]!r}.", fix),)
    kind = TYPES[short]
    if kind is None:
        return (
            unusable_entry(
                name, type_, line, "RandomEval is a demonstration and checks nothing.", "Remove it."
            ),
        )
    own = {key: value for key, value in document.items() if key not in KEYS}
    try:
        read: Any = kind.model_validate(_defaulted(short, own))
    except ValidationError as error:
        wrong = most_specific_error(error)
        key = str(wrong["loc"][0]) if wrong["loc"] else ""
        fix = (
            suggestion(key, kind.model_fields) if wrong["type"] == "extra_forbidden" else "Correct the value."
        )
        message = "is not a known key" if wrong["type"] == "extra_forbidden" else wrong["msg"]
        return (unusable_entry(name, type_, document.lines.get(key, line), f"{key!r}: {message}.", fix),)
    return _entries(document, name, read.to_entries, line)


def _entries(
    document: YamlMapping, name: str, to_entries: Callable[[], list[dict[str, Any]]], line: int
) -> tuple[ProtocolCheck, ...]:
    needed, notes = _requirements(document.get("requirements"))
    extra = {
        key: document[key]
        for key in ("severity", "time_limit", "tolerate_degraded", "skip_if_alone", "scope")
        if key in document
    }
    parts = to_entries()
    built = []
    for part in parts:
        title = name if len(parts) == 1 else f"{name}: {part['type']}"
        if "threshold" in document and "threshold" not in part:
            part["threshold"] = document["threshold"]
        entry = validate_entry(
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
    """Return the packages to look for in the image, and notes on those that Gipfel's checks don't need."""
    listed = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    texts = [str(each[0] if isinstance(each, list) and each else each) for each in listed]
    ignored = [text for text in texts if text.replace("_", "-").lower().startswith(_NOT_NEEDED)]
    notes = (f"The requirement {text!r} is ignored: Gipfel's check does not need it." for text in ignored)
    return [text for text in texts if text not in ignored], tuple(notes)
