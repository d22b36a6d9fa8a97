"""Checks of throughput with the image's torch: matrix products, memory, host copies, collectives.

`measure` runs a probe on the devices of a node and returns a finding per device.
"""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, JsonValue

from gipfel_cluster.model import Frozen

from ..attribution.state import PairSettings
from ..check import CheckContext, Missing
from ..gpus import ReadingError
from ..model import Finding, Owner, Scope, Verdict
from ..probing import ProbeAnswer, ProbeSpec, probe_file
from ..quantities import Quantity, with_unit
from ..statistics import summary
from .thermal import LoadWatch

#: A probe is given this share of a check's time limit, so that it is killed before the check is given up.
_SHARE = 0.9
#: Two groups of samples of a GPU are two modes where one is lower than this share of the other.
_ONE_MODE = 0.8
#: What the probes say where torch finds no GPU.
_NO_GPU = "torch sees no GPU"
#: Beside a square, a shape with which an H100 was found to be fastest (MAMF table of stas00/ml-engineering).
_FAST = (6144, 17920, 2816)


def device_of(context: CheckContext, wanted: str) -> str:
    """Return "cuda" or "cpu" for a check's `device`: "auto" is the CPU only where this job has no GPU."""
    if wanted != "auto":
        return wanted
    if context.expected_gpus is not None:
        return "cuda" if context.expected_gpus else "cpu"
    try:
        return "cuda" if context.gpus.read() else "cpu"
    except ReadingError:
        return "cpu"


def measure(context: CheckContext, probe: str, request: dict[str, JsonValue]) -> Sequence[Finding]:
    """Return a finding per device that a probe has measured.

    Raises
    ------
    Missing
        The image lacks Python or a module that the probe needs.
    """
    limit = context.time_limit_s * _SHARE
    spec = ProbeSpec(argv=(probe_file(probe),), request=request, time_limit_s=limit, torch=True)
    answer = context.probes.run(spec)
    if answer.missing:
        fix = f"Put {answer.missing} into the image: nothing is installed at run time."
        raise Missing(answer.error, fix, Owner.IMAGE)
    if answer.error:
        fix = "See whether the device works at all."
        # An image whose torch was built without CUDA, or a container without GPUs, says the same everywhere.
        owner = Owner.IMAGE if _NO_GPU in answer.error else None
        return [Finding(verdict=Verdict.FAIL, reason=answer.error, fix=fix, owner=owner)]
    gpu = request.get("device", "cuda") == "cuda"
    found = [_finding(device, answer, gpu=gpu) for device in answer.devices]
    if gpu:
        found += _absent(context, len(found))
    return found


def _finding(device: dict[str, JsonValue], answer: ProbeAnswer, *, gpu: bool) -> Finding:
    values: Any = device
    samples = tuple(float(each) for each in values.get("samples") or ())
    subject = str(values.get("uuid") or (f"GPU {values['index']}" if "index" in values else ""))
    common: dict[str, Any] = {
        "subject": subject, "model": str(values.get("name") or ""), "samples": samples, "unit": answer.unit,
        "evidence": {key: values[key] for key in values if key not in {"samples", "uuid", "name"}},
    }  # fmt: skip
    if values.get("wrong"):
        reason = f"{values['wrong']} values of the result are wrong."
        fix = "Take another node at once, and tell the operators: it computes wrongly."
        return Finding(verdict=Verdict.FAIL, reason=reason, fix=fix, **common)
    if not samples:
        return Finding(verdict=Verdict.INCONCLUSIVE, reason="The probe measured nothing.", **common)
    numbers = summary(samples)
    if gpu and numbers.bimodal and numbers.lower < _ONE_MODE * numbers.upper:
        lower, upper = with_unit(numbers.lower, answer.unit), with_unit(numbers.upper, answer.unit)
        reason = f"It has two modes: {lower} and {upper}."
        fix = "Leave this node out, and tell the operators: it is slow from time to time."
        return Finding(verdict=Verdict.FAIL, reason=reason, fix=fix, figure=numbers.median, **common)
    reason = f"{with_unit(numbers.median, answer.unit)}, all values are right."
    return Finding(verdict=Verdict.PASS, reason=reason, figure=numbers.median, **common)


def _absent(context: CheckContext, measured: int) -> list[Finding]:
    if context.expected_gpus is None or measured >= context.expected_gpus:
        return []
    reason = f"torch sees {measured} of {context.expected_gpus} GPUs."
    return [Finding(verdict=Verdict.FAIL, reason=reason, fix="See whether the container is given all GPUs.")]


class Matmul(Frozen):
    """Rate of bf16 products on each GPU, or of single precision on the CPU; wrong values fail at any rate.

    Parameters
    ----------
    size
        Edge of the square product; None takes 8192 on a GPU and 1024 on a CPU.
    seconds
        Per sample, at most.
    heat
        Seconds for which all GPUs compute together before they are measured, with their clocks watched.
    """

    type: ClassVar[str] = "matmul"
    scope: ClassVar[Scope] = Scope.GPU
    time_limit_s: ClassVar[float] = 120.0
    uses_torch: ClassVar[bool] = True

    device: Literal["auto", "cuda", "cpu"] = "auto"
    size: Annotated[int, Field(ge=64, le=16_384)] | None = None
    samples: Annotated[int, Field(ge=5, le=200)] = 7
    seconds: Annotated[float, Field(gt=0, le=60)] = 0.1
    heat: Annotated[Quantity, Field(ge=0, le=3600)] = 0.0

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """Return one finding per GPU, or one for the node."""
        device = device_of(context, self.device)
        size = self.size or (8192 if device == "cuda" else 1024)
        shapes = [[size] * 3, list(_FAST)] if device == "cuda" and self.size is None else [[size] * 3]
        request = {"device": device, "shapes": shapes, "samples": self.samples, "seconds": self.seconds}
        if device != "cuda" or not self.heat:
            return measure(context, "matmul", request)  # type: ignore[arg-type]
        with LoadWatch(context) as watch:
            found = measure(context, "matmul", {**request, "heat": self.heat})  # type: ignore[dict-item]
        return watch.judged(found)


class MemoryBandwidth(Frozen):
    """Bytes read and written per second, on each GPU or on the host.

    Parameters
    ----------
    bytes
        Size of the copy; None takes 2 GiB on a GPU and 128 MiB on the host.
    seconds
        Per sample, at most.
    """

    type: ClassVar[str] = "memory_bandwidth"
    scope: ClassVar[Scope] = Scope.GPU
    time_limit_s: ClassVar[float] = 120.0
    uses_torch: ClassVar[bool] = True

    device: Literal["auto", "cuda", "cpu"] = "auto"
    bytes: Annotated[Quantity, Field(ge=2**20, le=2**36)] | None = None
    samples: Annotated[int, Field(ge=5, le=200)] = 7
    seconds: Annotated[float, Field(gt=0, le=60)] = 0.1

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """Return one finding per GPU, or one for the node."""
        device = device_of(context, self.device)
        size = int(self.bytes or (2**31 if device == "cuda" else 2**27))
        request = {"device": device, "bytes": size, "samples": self.samples, "seconds": self.seconds}
        return measure(context, "memory_bandwidth", request)  # type: ignore[arg-type]


class HostCopy(Frozen):
    """Bytes per second from pinned host memory to each GPU, which is the measurement, and back.

    The way back must reach a share of it, in the median and in a tenth of the samples.

    Parameters
    ----------
    bytes
        Size of the copy.
    seconds
        Per sample, at most.
    least_back
        Share of the way there: superchips are slower on the way back, by less than this.
    """

    type: ClassVar[str] = "host_copy"
    scope: ClassVar[Scope] = Scope.GPU
    time_limit_s: ClassVar[float] = 120.0
    uses_torch: ClassVar[bool] = True

    bytes: Annotated[Quantity, Field(ge=2**20, le=2**33)] = 2.0**28
    samples: Annotated[int, Field(ge=5, le=200)] = 7
    seconds: Annotated[float, Field(gt=0, le=60)] = 0.1
    least_back: Annotated[Quantity, Field(ge=0, le=1)] = 0.6

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """Return one finding per GPU."""
        request = {"bytes": int(self.bytes), "samples": self.samples, "seconds": self.seconds}
        found = measure(context, "host_copy", request)  # type: ignore[arg-type]
        return [self._with_way_back(each) for each in found]

    def _with_way_back(self, finding: Finding) -> Finding:
        if finding.verdict is not Verdict.PASS or finding.figure is None:
            return finding
        given: Any = finding.evidence.get("to_host")
        back = [float(each) for each in given] if isinstance(given, list) else []
        if not back:
            reason = "The way back to the host was not measured."
            return finding.model_copy(update={"verdict": Verdict.INCONCLUSIVE, "reason": reason})
        numbers = summary(back)
        if min(numbers.median, numbers.p10) >= self.least_back * finding.figure:
            return finding
        low, there = with_unit(numbers.p10, finding.unit), with_unit(finding.figure, finding.unit)
        reason = f"Back to the host {low} (a tenth of the samples), of {there} on the way there."
        fix = "Take another node, and tell the operators: one direction of the link is slow."
        return finding.model_copy(update={"verdict": Verdict.FAIL, "reason": reason, "fix": fix})


class Collective(Frozen):
    """A collective of torch.distributed (NCCL on GPUs, gloo on CPUs), with its values checked.

    The protocol's scope says over what: ``node`` (the ranks of each node), ``pair`` (rounds of disjoint
    pairs, which name the culprit) or ``all``.

    Parameters
    ----------
    method
        ``allreduce`` gives bus bandwidth, ``send`` that of one transfer, the others the sum over receivers.
    payload
        Bytes per rank.
    per_gpu
        One rank per GPU; None takes that within a node and over all, and one rank per node in pairs.
    pairs
        How pairs are measured and judged; only for the scope ``pair``.
    """

    type: ClassVar[str] = "collective"
    scope: ClassVar[Scope] = Scope.NODE
    scopes: ClassVar[tuple[Scope, ...]] = (Scope.NODE, Scope.PAIR, Scope.ALL)
    time_limit_s: ClassVar[float] = 120.0
    uses_torch: ClassVar[bool] = True

    method: Literal["allreduce", "broadcast", "gather", "send"] = "allreduce"
    payload: Annotated[Quantity, Field(ge=1024, le=2**40)] = 2.0**28
    device: Literal["auto", "cuda", "cpu"] = "auto"
    samples: Annotated[int, Field(ge=5, le=500)] = 7
    warmup_payload: Annotated[Quantity, Field(ge=1024, le=2**40)] = 2.0**22
    warmup_runs: Annotated[int, Field(ge=0, le=100)] = 2
    per_gpu: bool | None = None
    pairs: PairSettings = PairSettings()

    def probe(self, time_limit_s: float) -> ProbeSpec:
        """Return what each rank of the group runs; the caller makes "cuda" or "cpu" of "auto"."""
        request = {
            "method": self.method, "device": self.device, "payload": int(self.payload),
            "samples": self.samples,
            "warmup_payload": int(self.warmup_payload), "warmup_runs": self.warmup_runs,
            # torch gives up a little before the probe is killed, and then can say why.
            "seconds": max(1.0, 0.8 * time_limit_s),
        }  # fmt: skip
        return ProbeSpec(
            argv=(probe_file("collective"),), request=request, time_limit_s=time_limit_s,
            per_gpu=self.per_gpu if self.per_gpu is not None else True, torch=True,
        )  # fmt: skip
