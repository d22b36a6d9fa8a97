"""Between GPUs: collectives, where the GPUs stand, and the one that all wait for."""

import numpy as np

from ..levels import Flags
from ..result import Trace
from ..workload import ANY, Applies
from .losses import RUNNING, LossRule
from .model import Advice, Case, Knob, points, seen, share

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
    """Most GPUs wait for one."""

    name = "slow-rank"
    knob = Knob(
        "even work for all ranks; vetting",
        "https://docs.pytorch.org/docs/stable/distributed.algorithms.join.html",
    )
    loss = "imbalance"

    def find(self, case: Case) -> Advice | None:
        """The advice, with the GPU that was waited for beside one that waited."""
        advice = super().find(case)
        if advice is None:
            return None
        slow = self._slowest(case)
        beside = case.evidence(slow, self._alone(case, slow), self.metrics)
        if beside is None:
            return None
        return Advice(**{**vars(advice), "evidence": (*advice.evidence, beside)})

    def words(self, case: Case, trace: Trace) -> tuple[str, str]:
        """Who waited, and for whom."""
        slow = case.name(self._slowest(case).device)
        return (
            (f"{self.subject(case)} waited {self.lost(trace):.0f} % of the time while {slow} worked."),
            f"Give {slow} less work, or vet its node.",
        )

    def _slowest(self, case: Case) -> Trace:
        """The one that was busiest while others waited."""
        return max(case.scored, key=lambda trace: share(trace, self._alone(case, trace)))

    def _alone(self, case: Case, trace: Trace) -> Flags:
        """Where this GPU works, and another loses by imbalance."""
        own = ~seen(trace.losses["imbalance"], 0.05) & seen(trace.levels.engine, 0.5)
        return own & np.isin(case.beats(trace), case.lagging)
