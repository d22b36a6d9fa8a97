"""Losses that no rule has a remedy for: said as they are, with what would show more."""

from collections.abc import Collection, Iterator, Mapping

from ..settings import LOSSES
from .losses import RUNNING
from .model import Advice, Case, Knob, seen

#: Points from which a loss is worth a sentence.
_LEAST = 5.0

_SYSTEMS = Knob("Nsight Systems", "https://docs.nvidia.com/nsight-systems/UserGuide/index.html")
_COMPUTE = Knob("Nsight Compute", "https://docs.nvidia.com/nsight-compute/ProfilingGuide/index.html")

#: Loss to what was seen, what to do, and the tool for it.
_TEXTS: Mapping[str, tuple[str, str, Knob]] = {
    "unexplained": (
        "No recorded series shows why {who} lost {lost:.0f} % of the time",
        "Profile a few steps to see which kernels run and what they wait for.",
        _COMPUTE,
    ),
    "start_up": (
        "{lost:.0f} % of the time passed before the first work on {who}",
        "In longer runs it weighs less. Caches of compiled kernels and of images make it shorter.",
        _SYSTEMS,
    ),
    "idle": (
        "{who} had nothing to do {lost:.0f} % of the time, and their hosts neither",
        "End the job when its work is done, or share the GPU.",
        _SYSTEMS,
    ),
}
_OTHER = (
    "{who} lost {lost:.0f} % of the time to {loss}",
    "No safe remedy is known from these samples: profile a few steps.",
    _SYSTEMS,
)


def untreated(case: Case, told: Collection[str]) -> Iterator[Advice]:
    """Yield a sentence for each loss of five points or more that is not in ``told``."""
    for loss in LOSSES:
        if loss in told or case.loss(loss) < _LEAST:
            continue
        trace = case.worst(loss)
        evidence = case.evidence(
            trace, seen(trace.losses[loss]), (*RUNNING, "PIPE_TENSOR_ACTIVE", "DRAM_ACTIVE")
        )
        if evidence is not None:
            text, action, knob = _TEXTS.get(loss, _OTHER)
            who = case.names(case.alike(loss))
            if not text.startswith("{who}"):
                who = who.replace("All GPUs", "all GPUs")
            sentence = text.format(who=who, lost=case.loss(loss), loss=loss.replace("_", "-"))
            yield Advice(
                f"untreated-{loss}", f"{sentence}.", action, 0.0, "no gain is known", knob, (evidence,)
            )
