"""Between GPUs: collectives, where the GPUs stand, and the one that all wait for."""

from collections.abc import Sequence

import numpy as np

from ..levels import Flags
from ..result import Trace
from .losses import RUNNING, LossRule
from .model import ANY, Advice, Applies, Case, Knob, points, seen, share

#: Share of the longest time that a GPU worked while others waited, from which another one did so too; and
#: share of the time lost by uneven work, from which waiting for input is its reason.
_OFTEN = 0.5
_LINKS = ("NVLINK_TX_BYTES", "NVLINK_RX_BYTES", "PCIE_TX_BYTES", "PCIE_RX_BYTES")


class BucketSize(LossRule):
    """GPUs wait for collectives that don't fill their links."""

    name = "bucket-size"
    knob = Knob(
        "DistributedDataParallel(bucket_cap_mb=…)",
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html",
    )
    loss = "communication"
    applies = Applies(
        "training with DistributedDataParallel", kind="training", parallelism=("data",), ranks=2
    )
    metrics = (*_LINKS[:2], *RUNNING)
    host_metrics = ("NET_TX_BYTES", "NET_RX_BYTES")

    def where(self, case: Case, trace: Trace) -> Flags:  # noqa: ARG002 - as the others
        """The loss takes most of a sample, and NVLink is not full."""
        level = trace.levels.links.get("nvlink", np.zeros(len(trace.scored)))
        return seen(trace.losses[self.loss], 0.5) & ~seen(level, 0.7)

    def gain(self, case: Case, trace: Trace) -> float:
        """Nothing where no phases of computing are beside: then gradients are not what is sent."""
        computes = seen(trace.levels.math, 0.2) & ~self.where(case, trace)
        return self.lost_where(trace, self.where(case, trace)) if share(trace, computes) >= 0.05 else 0.0

    def words(self, case: Case, trace: Trace) -> tuple[str, str]:
        """Percent of the time."""
        return (
            (
                f"{self.subject(case)} waited for communication {self.lost(trace):.0f} % of the time, "
                "on links that were not full."
            ),
            "Try larger buckets, and let communication overlap with the backward pass.",
        )


class Placement:
    """GPUs that have NVLink talk over PCIe."""

    name = "placement"
    knob = Knob(
        "--gpus-per-node, NCCL_P2P_LEVEL=NVL",
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-p2p-level",
    )
    applies = ANY

    def find(self, case: Case) -> Advice | None:
        """The advice where PCIe is busy and NVLink is measured and quiet, for a tenth of the time."""
        if len(case.scored) < 2:
            return None
        trace = max(case.scored, key=lambda each: share(each, self._where(case, each)))
        where = self._where(case, trace)
        evidence = case.evidence(trace, where, (*_LINKS, *RUNNING))
        gain = min(case.loss("communication", "idle", "launch"), 100.0 * share(trace, where))
        if share(trace, where) < 0.1 or evidence is None:
            return None
        sentence = (
            f"For {100 * share(trace, where):.0f} % of the time {case.name(trace.device)} sent or received "
            "over PCIe at more than half of its rate, with NVLink quiet."
        )
        action = (
            "Place the ranks that talk on GPUs that NVLink connects, and see NCCL_DEBUG=INFO for the path."
        )
        return Advice(self.name, sentence, action, gain, points(gain), self.knob, (evidence,))

    def _where(self, case: Case, trace: Trace) -> Flags:  # noqa: ARG002 - as the others
        links, length = trace.levels.links, len(trace.scored)
        if "nvlink" not in links or "pcie" not in links:
            return np.zeros(length, np.bool_)
        with np.errstate(invalid="ignore"):
            return (links["pcie"] >= 0.5) & (links["nvlink"] < 0.01)


class SlowRank(LossRule):
    """Most GPUs wait for a few, which are named; of other uneven work no GPU is the culprit.

    Where half of the GPUs or more work while others don't, these may have less to do, or lack input, as well
    as wait: the samples don't tell. Where each is ahead and behind in turn, none is slow. Input that is late
    is to blame for uneven work, whichever GPU lacks it.
    """

    name = "slow-rank"
    knob = Knob(
        "even work for all ranks; vetting",
        "https://docs.pytorch.org/docs/stable/distributed.algorithms.join.html",
    )
    loss = "imbalance"

    def find(self, case: Case) -> Advice | None:
        """The advice, with a GPU that worked beside one that waited."""
        advice = super().find(case)
        if advice is None:
            return None
        slow = max(case.scored, key=lambda trace: share(trace, self._ahead(case, trace)))
        beside = case.evidence(slow, self._ahead(case, slow), self.metrics)
        if beside is None:
            return None
        return Advice(**{**vars(advice), "evidence": (*advice.evidence, beside)})

    def words(self, case: Case, trace: Trace) -> tuple[str, str]:
        """Who waited, and for whom where that is known."""
        working, waiting = self._working(case), case.alike(self.loss)
        who, others, lost = case.names(waiting), case.names(working), self.lost(trace)
        if {each.device for each in working} & {each.device for each in waiting}:
            return (
                f"{who} waited up to {lost:.0f} % of the time while others worked, in turn.",
                "Share the work evenly, such as in batches of like length.",
            )
        if 2 * len(working) >= len(case.scored) or _starves(waiting, lost):
            return (
                f"{who} had little to do {lost:.0f} % of the time while {others} worked.",
                f"See what {who} lacked then, such as input, or share the work evenly.",
            )
        if _starves(working, lost):
            return (
                f"{who} waited {lost:.0f} % of the time while {others} worked on input that had come late.",
                f"Mend the input of {others} first.",
            )
        nodes = "nodes" if len({each.device.node for each in working}) > 1 else "node"
        return (
            f"{who} waited {lost:.0f} % of the time while {others} worked.",
            f"Give {others} less work, or vet {'its' if len(working) == 1 else 'their'} {nodes}.",
        )

    def _working(self, case: Case) -> tuple[Trace, ...]:
        """Return the GPUs that worked while others waited: those for at least half as long as any."""
        shares = {trace.device: share(trace, self._ahead(case, trace)) for trace in case.scored}
        least = _OFTEN * max(shares.values())
        return tuple(trace for trace in case.scored if shares[trace.device] >= least)

    def _ahead(self, case: Case, trace: Trace) -> Flags:
        """Return where this GPU works, and another loses by imbalance."""
        own = ~seen(trace.losses["imbalance"], 0.05) & seen(trace.levels.engine, 0.5)
        return own & np.isin(case.beats(trace), case.lagging)


def _starves(traces: Sequence[Trace], lost: float) -> bool:
    """Return whether GPUs wait for input for half as long as others, or they themselves, are behind."""
    waits = [share(trace, seen(trace.losses["input"])) for trace in traces]
    return bool(waits) and 100.0 * max(waits) >= _OFTEN * lost
