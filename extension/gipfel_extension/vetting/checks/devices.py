"""What checks that measure with the image's torch share: which device, and a finding per device."""

from collections.abc import Sequence
from typing import Any

from pydantic import JsonValue

from ..attribution.statistics import summary
from ..check import CheckContext, Missing
from ..gpus.reading import ReadingError
from ..model import Finding, Owner, Verdict
from ..probing import ProbeAnswer, ProbeSpec, probe_file
from ..quantities import shown

#: A probe is given this share of a check's time limit, so that it is killed before the check is given up.
_SHARE = 0.9
#: Two groups of samples of a GPU are two modes where one is lower than this share of the other.
_ONE_MODE = 0.8
#: What the probes say where torch finds no GPU.
_NO_GPU = "torch sees no GPU"


def device_of(context: CheckContext, wanted: str) -> str:
    """Say "cuda" or "cpu" for a check's `device`: "auto" is the CPU only where this job has no GPU."""
    if wanted != "auto":
        return wanted
    if context.expected_gpus is not None:
        return "cuda" if context.expected_gpus else "cpu"
    try:
        return "cuda" if context.gpus.read() else "cpu"
    except ReadingError:
        return "cpu"


def measure(context: CheckContext, probe: str, request: dict[str, JsonValue]) -> Sequence[Finding]:
    """A finding per device that a probe has measured.

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
        lower, upper = shown(numbers.lower, answer.unit), shown(numbers.upper, answer.unit)
        reason = f"It has two modes: {lower} and {upper}."
        fix = "Leave this node out, and tell the operators: it is slow from time to time."
        return Finding(verdict=Verdict.FAIL, reason=reason, fix=fix, figure=numbers.median, **common)
    reason = f"{shown(numbers.median, answer.unit)}, all values are right."
    return Finding(verdict=Verdict.PASS, reason=reason, figure=numbers.median, **common)


def _absent(context: CheckContext, measured: int) -> list[Finding]:
    if context.expected_gpus is None or measured >= context.expected_gpus:
        return []
    reason = f"torch sees {measured} of {context.expected_gpus} GPUs."
    return [Finding(verdict=Verdict.FAIL, reason=reason, fix="See whether the container is given all GPUs.")]
