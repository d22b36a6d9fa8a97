"""Checks of throughput with the image's torch: matmul, memory bandwidth, host copies, collectives.

`measure` runs a probe on the devices of a node and returns one finding per device.
"""

from collections.abc import Sequence
from statistics import median
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, JsonValue

from gipfel_cluster.model import Frozen

from ..attribution.measurements import PairSettings
from ..check import CheckContext, MissingRequirement
from ..gpus import ReadingError
from ..model import Finding, Owner, Scope, Verdict, failed
from ..probing import ProbeAnswer, ProbeSpec, probe_file
from ..statistics import percentile, two_modes
from ..threshold import Quantity, with_unit
from .thermal import ThrottleMonitor

#: A probe gets this share of a check's time limit, so that it is killed before the check is.
_PROBE_SHARE = 0.9
#: Samples of a GPU have two modes if the lower one is below this share of the upper one.
_MODE_RATIO = 0.8
#: Error message of the probes if torch finds no GPU.
_NO_GPU = "torch sees no GPU"
#: Shape of the fastest matmul found on an H100 (MAMF table of stas00/ml-engineering).
_FAST_SHAPE = (6144, 17920, 2816)


def choose_device(context: CheckContext, device: str) -> str:
    """Return "cuda" or "cpu" for a check's `device`; "auto" is the CPU only if this job has no GPU."""
    if device != "auto":
        return device
    if context.expected_gpus is not None:
        return "cuda" if context.expected_gpus else "cpu"
    try:
        return "cuda" if context.gpus.read() else "cpu"
    except ReadingError:
        return "cpu"


def measure(context: CheckContext, name: str, request: dict[str, JsonValue]) -> Sequence[Finding]:
    """Run a measurement of the probe ``throughput``, and return one finding per device.

    Raises
    ------
    MissingRequirement
        The image lacks Python or a module that the probe needs.
    """
    limit = context.time_limit_s * _PROBE_SHARE
    spec = ProbeSpec(argv=(probe_file("throughput"), name), request=request, time_limit_s=limit, torch=True)
    answer = context.probes.run(spec)
    if answer.missing:
        fix = f"Install {answer.missing} in the image: nothing is installed at run time."
        raise MissingRequirement(answer.error, fix, Owner.IMAGE)
    if answer.error:
        fix = "Check whether the device works at all."
        # An image whose torch lacks CUDA, or a container without GPUs, has this error on every node.
        owner = Owner.IMAGE if _NO_GPU in answer.error else None
        return [failed(answer.error, fix).model_copy(update={"owner": owner})]
    gpu = request.get("device", "cuda") == "cuda"
    found = [_finding(device, answer, gpu=gpu) for device in answer.devices]
    if gpu:
        found += _missing_gpus(context, len(found))
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
        fix = "Use another node, and tell the operators: this one computes wrong results."
        return Finding(verdict=Verdict.FAIL, reason=reason, fix=fix, **common)
    if not samples:
        return Finding(verdict=Verdict.INCONCLUSIVE, reason="The probe measured nothing.", **common)
    middle, (lower, upper) = median(samples), two_modes(sorted(samples))
    if gpu and lower < _MODE_RATIO * upper:
        reason = f"It has two modes: {with_unit(lower, answer.unit)} and {with_unit(upper, answer.unit)}."
        fix = "Exclude this node, and tell the operators: it is slow from time to time."
        return Finding(verdict=Verdict.FAIL, reason=reason, fix=fix, measurement=middle, **common)
    reason = f"{with_unit(middle, answer.unit)}, and all values are correct."
    return Finding(verdict=Verdict.PASS, reason=reason, measurement=middle, **common)


def _missing_gpus(context: CheckContext, measured: int) -> list[Finding]:
    if context.expected_gpus is None or measured >= context.expected_gpus:
        return []
    reason = f"torch sees {measured} of {context.expected_gpus} GPUs."
    return [failed(reason, "Check whether the container has all GPUs.")]


class RateCheck(Frozen):
    """Base class of checks that measure the rate of each device.

    Parameters
    ----------
    seconds
        Per sample, at most.
    """

    scope: ClassVar[Scope] = Scope.GPU
    time_limit_s: ClassVar[float] = 120.0
    uses_torch: ClassVar[bool] = True

    samples: Annotated[int, Field(ge=5, le=200)] = 7
    seconds: Annotated[float, Field(gt=0, le=60)] = 0.1


class Matmul(RateCheck):
    """Rate of matrix products (bf16 on each GPU, or fp32 on the CPU); wrong values fail at any rate.

    Parameters
    ----------
    size
        Size of the square matrices; None for 8192 on a GPU and 1024 on a CPU.
    heat
        Seconds for which all GPUs compute before the measurement, while their clocks are watched.
    """

    device: Literal["auto", "cuda", "cpu"] = "auto"
    size: Annotated[int, Field(ge=64, le=16_384)] | None = None
    heat: Annotated[Quantity, Field(ge=0, le=3600)] = 0.0

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """Return one finding per GPU, or one for the node."""
        device = choose_device(context, self.device)
        size = self.size or (8192 if device == "cuda" else 1024)
        shapes = [[size] * 3, list(_FAST_SHAPE)] if device == "cuda" and self.size is None else [[size] * 3]
        request = {"device": device, "shapes": shapes, "samples": self.samples, "seconds": self.seconds}
        if device != "cuda" or not self.heat:
            return measure(context, "matmul", request)  # type: ignore[arg-type]
        with ThrottleMonitor(context) as watch:
            found = measure(context, "matmul", {**request, "heat": self.heat})  # type: ignore[dict-item]
        return watch.judge(found)


class MemoryBandwidth(RateCheck):
    """Bytes read and written per second, on each GPU or on the host.

    Parameters
    ----------
    bytes
        Size of the copy; None for 2 GiB on a GPU and 128 MiB on the host.
    """

    device: Literal["auto", "cuda", "cpu"] = "auto"
    bytes: Annotated[Quantity, Field(ge=2**20, le=2**36)] | None = None

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """Return one finding per GPU, or one for the node."""
        device = choose_device(context, self.device)
        size = int(self.bytes or (2**31 if device == "cuda" else 2**27))
        request = {"device": device, "bytes": size, "samples": self.samples, "seconds": self.seconds}
        return measure(context, "memory_bandwidth", request)  # type: ignore[arg-type]


class HostCopy(RateCheck):
    """Bytes per second of copies between pinned host memory and each GPU.

    The measurement is the direction to the GPU. The tenth percentile of that to the host must reach a share
    of it.

    Parameters
    ----------
    bytes
        Size of the copy.
    min_to_host_ratio
        Required rate to the host, as a share of that to the GPU; superchips are slower in this direction.
    """

    bytes: Annotated[Quantity, Field(ge=2**20, le=2**33)] = 2.0**28
    min_to_host_ratio: Annotated[Quantity, Field(ge=0, le=1)] = 0.6

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """Return one finding per GPU."""
        request = {"bytes": int(self.bytes), "samples": self.samples, "seconds": self.seconds}
        found = measure(context, "host_copy", request)  # type: ignore[arg-type]
        return [self._judge_to_host(each) for each in found]

    def _judge_to_host(self, finding: Finding) -> Finding:
        if finding.verdict is not Verdict.PASS or finding.measurement is None:
            return finding
        samples: Any = finding.evidence.get("to_host")
        to_host = [float(each) for each in samples] if isinstance(samples, list) else []
        if not to_host:
            return finding.with_verdict(Verdict.INCONCLUSIVE, "The direction to the host was not measured.")
        p10 = percentile(sorted(to_host), 0.1)
        if p10 >= self.min_to_host_ratio * finding.measurement:
            return finding
        low, to_gpu = with_unit(p10, finding.unit), with_unit(finding.measurement, finding.unit)
        reason = f"{low} to the host (tenth percentile) is too little for {to_gpu} to the GPU."
        fix = "Use another node, and tell the operators: one direction of the link is slow."
        return finding.with_verdict(Verdict.FAIL, reason, fix=fix)


class Collective(Frozen):
    """Bandwidth of a collective of torch.distributed (NCCL on GPUs, gloo on CPUs), with its values checked.

    The scope in the protocol selects the groups: ``node`` (the ranks of each node), ``pair`` (rounds of
    disjoint pairs, which find the faulty node or link) or ``all``.

    Parameters
    ----------
    method
        ``allreduce`` measures bus bandwidth, ``send`` that of one transfer, the others the sum over
        receivers.
    payload
        Bytes per rank.
    per_gpu
        Whether there is one rank per GPU; None for one rank per GPU, except one per node in pairs.
    pairs
        How pairs are measured and judged; only for the scope ``pair``.
    """

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
        """Return the probe of each rank; the caller replaces the device "auto" by "cuda" or "cpu"."""
        request = {
            "method": self.method, "device": self.device, "payload": int(self.payload),
            "samples": self.samples,
            "warmup_payload": int(self.warmup_payload), "warmup_runs": self.warmup_runs,
            # torch times out before the probe is killed, so that its error is reported.
            "seconds": max(1.0, 0.8 * time_limit_s),
        }  # fmt: skip
        return ProbeSpec(
            argv=(probe_file("collective"),), request=request, time_limit_s=time_limit_s,
            per_gpu=self.per_gpu if self.per_gpu is not None else True, torch=True,
        )  # fmt: skip
