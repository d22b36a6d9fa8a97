"""Rules about GPUs that wait: for input from the host, and for other GPUs."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..causes import VIDEO, decoder_busy
from ..host import host_of
from ..levels import Flags, column, known_mean
from ..loss_breakdown import nearest_rows
from ..result import Trace
from .losses import RUNNING, LossRule
from .model import (
    ANY,
    Advice,
    AdviceContext,
    Applicability,
    Knob,
    at_least,
    gain_in_points,
    time_share,
    uuids_of,
)

#: CPU utilization of the job from which no cores are free for more workers.
_FULL = 0.8
_TRY = (
    "`gipfel data try DATA --run RUN` measures how many samples per second suffice, and what delivers them."
)
#: Used for two bounds. A GPU counts as working while others wait if it does so for at least this share of the
#: time of the GPU that does so longest. Late input counts as the reason of uneven work if it takes at least
#: this share of the time lost to imbalance.
_OFTEN = 0.5
_LINKS = ("NVLINK_TX_BYTES", "NVLINK_RX_BYTES", "PCIE_TX_BYTES", "PCIE_RX_BYTES")


class LoaderWorkers(LossRule):
    """Rule: the GPU waits while its host is busy; use more workers, or request more cores."""

    name = "loader-workers"
    knob = Knob(
        "DataLoader(num_workers=…)",
        "https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading",
    )
    loss = "input"
    least = 3.0
    host_metrics = ("CPU_CORES_USED", "CPU_UTIL", "IO_READ_BYTES", "PRESSURE_IO", "PRESSURE_CPU")

    def gain(self, context: AdviceContext, trace: Trace) -> float:
        """Return the loss without samples of video decoding, which more workers don't speed up."""
        where = ~decoder_busy(context.table[trace.device.uuid], context.settings.thresholds.decoder)
        return self.percent_lost(trace, where)

    def gain_least(self, context: AdviceContext, trace: Trace) -> float:
        """Return the gain of twice as many workers if half of the cores are free; else 0.

        The GPU waits for the loader, so the loader works all the time: with twice as many workers, it needs
        half of the time for a batch.
        """
        busy = self._host_mean(context, trace, "CPU_UTIL")
        if busy is None or busy > 0.5:
            return 0.0
        lost = self.percent_lost(trace) / 100.0
        remaining = 1.0 - (1.0 - lost) / max(0.5, 1.0 - lost)
        return 100.0 * (lost - remaining)

    def texts(self, context: AdviceContext, trace: Trace) -> tuple[str, str]:
        """Return the percentage of the time with the cores in use, and what to do."""
        cores, busy = (self._host_mean(context, trace, metric) for metric in ("CPU_CORES_USED", "CPU_UTIL"))
        used = f" while its host used {cores:.1f} CPU cores" if cores is not None else ""
        lost = f"{self.percent_lost(trace):.0f} % of the time"
        sentence = f"{self.affected_gpus(context)} waited for input {lost}{used}."
        if busy is not None and busy >= _FULL:
            return (
                sentence,
                f"All cores are in use: request more of them, or prepare the data before the run. {_TRY}",
            )
        return sentence, f"Raise the DataLoader's num_workers. {_TRY}"

    def _host_mean(self, context: AdviceContext, trace: Trace, metric: str) -> float | None:
        host = host_of(context.table, trace.device)
        if host is None:
            return None
        columns = context.table[host.uuid]
        waiting = trace.levels.time_ns[self.where(context, trace) & trace.scored]
        rows, near = nearest_rows(waiting, columns["time_ns"], 1.5e9 * context.job.interval)
        return known_mean(column(columns, metric)[rows[near]]) if near.any() else None


class PinnedMemory(LossRule):
    """Rule: while nothing runs, PCIe transfers data at a fraction of its rate, as from pageable memory."""

    name = "pinned-memory"
    knob = Knob(
        "DataLoader(pin_memory=True), .to(device, non_blocking=True)",
        "https://docs.pytorch.org/docs/stable/data.html#memory-pinning",
    )
    loss = "input"
    least = 3.0
    metrics = ("PCIE_RX_BYTES", *RUNNING)

    def where(self, context: AdviceContext, trace: Trace) -> Flags:
        """Return the samples with the loss in which PCIe is neither idle nor near its ceiling."""
        rate = context.column(trace, "PCIE_RX_BYTES")
        level = trace.levels.links.get("pcie", np.full(len(rate), np.nan))
        return at_least(trace.losses["input"]) & (level >= 0.03) & (level <= 0.5)

    def gain(self, context: AdviceContext, trace: Trace) -> float:
        """Return the percentage of the time in which such copies are present."""
        return 100.0 * time_share(trace, self.where(context, trace))

    def texts(self, context: AdviceContext, trace: Trace) -> tuple[str, str]:
        """Return the rate of the copies, and what to do."""
        rate = (self.mean(context, trace, "PCIE_RX_BYTES") or 0.0) / 1e9
        return (
            f"While {self.inner_names(context)} waited for input, data came over PCIe at {rate:.1f} GB/s.",
            "Copy from pinned memory with non_blocking=True.",
        )


class VideoDecoder(LossRule):
    """Rule: the video decoders of a GPU are busy, and its SMs wait for frames."""

    name = "video-decoder"
    knob = Knob("NVDEC", "https://docs.nvidia.com/video-technologies/video-codec-sdk/index.html")
    loss = "input"
    applies = Applicability("work on video")
    metrics = (*VIDEO, *RUNNING)

    def where(self, context: AdviceContext, trace: Trace) -> Flags:
        """Return the samples with the loss in which a decoder is busy."""
        busy = decoder_busy(context.table[trace.device.uuid], context.settings.thresholds.decoder)
        return super().where(context, trace) & busy

    def gain(self, context: AdviceContext, trace: Trace) -> float:
        """Return the loss while a decoder is busy."""
        return self.percent_lost(trace, self.where(context, trace))

    def texts(self, context: AdviceContext, trace: Trace) -> tuple[str, str]:
        """Return the percentage of the time, and what to do."""
        lost = self.percent_lost(trace, self.where(context, trace))
        return (
            (f"The SMs of {self.inner_names(context)} waited {lost:.0f} % of the time for video decoders."),
            "Decode smaller frames, spread videos over all decoders, or decode once and store the frames.",
        )


class BucketSize(LossRule):
    """Rule: GPUs wait for collectives that don't fill their links."""

    name = "bucket-size"
    knob = Knob(
        "DistributedDataParallel(bucket_cap_mb=…)",
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html",
    )
    loss = "communication"
    applies = Applicability(
        "training with DistributedDataParallel", kind="training", parallelism=("data",), ranks=2
    )
    metrics = (*_LINKS[:2], *RUNNING)
    host_metrics = ("NET_TX_BYTES", "NET_RX_BYTES")

    def where(self, context: AdviceContext, trace: Trace) -> Flags:  # noqa: ARG002 - as in other rules
        """Return the samples in which the loss takes most of the time, and NVLink is not full."""
        level = trace.levels.links.get("nvlink", np.zeros(len(trace.scored)))
        return at_least(trace.losses[self.loss], 0.5) & ~at_least(level, 0.7)

    def gain(self, context: AdviceContext, trace: Trace) -> float:
        """Return the loss; 0 if the GPU hardly computes between collectives: they carry no gradients then."""
        computes = at_least(trace.levels.math, 0.2) & ~self.where(context, trace)
        return (
            self.percent_lost(trace, self.where(context, trace))
            if time_share(trace, computes) >= 0.05
            else 0.0
        )

    def texts(self, context: AdviceContext, trace: Trace) -> tuple[str, str]:
        """Return the percentage of the time, and what to do."""
        return (
            (
                f"{self.affected_gpus(context)} waited for communication {self.percent_lost(trace):.0f} % "
                "of the time, on links that were not full."
            ),
            "Try larger buckets, and overlap communication with the backward pass.",
        )


class Placement:
    """Rule: GPUs that have NVLink communicate over PCIe."""

    name = "placement"
    knob = Knob(
        "--gpus-per-node, NCCL_P2P_LEVEL=NVL",
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-p2p-level",
    )
    applies = ANY

    def find(self, context: AdviceContext) -> Advice | None:
        """Return the advice where PCIe is busy and NVLink is measured and idle, for a tenth of the time."""
        share, gpus, evidence = context.pattern(self._where, (*_LINKS, *RUNNING))
        if len(context.scored) < 2 or share < 0.1 or evidence is None:
            return None
        gain = min(context.loss("communication", "idle", "launch"), 100.0 * share)
        return Advice(
            self.name,
            f"For {100 * share:.0f} % of the time {context.names(gpus, inside=True)} sent or received over "
            "PCIe at more than half of its rate, while NVLink was idle.",
            "Place ranks that communicate on GPUs that NVLink connects; NCCL_DEBUG=INFO shows the path.",
            gain,
            gain_in_points(gain),
            self.knob,
            (evidence,),
            loss=max(("communication", "idle", "launch"), key=context.loss),
            gpus=uuids_of(gpus),
        )

    def _where(self, trace: Trace) -> Flags:
        links = trace.levels.links
        if "nvlink" not in links or "pcie" not in links:
            return np.zeros(len(trace.scored), np.bool_)
        return (links["pcie"] >= 0.5) & (links["nvlink"] < 0.01)


class SlowRank(LossRule):
    """Rule: most GPUs wait for a few slow ones, which the advice names.

    If at least half of the GPUs work while others don't, or at most half of them wait, the advice doesn't
    call any GPU slow: the samples don't show whether the others wait, have less to do, or lack input. If GPUs
    wait for each other alternately, none is slow. If a GPU lacks input, late input is named as the reason for
    the uneven work.
    """

    name = "slow-rank"
    knob = Knob(
        "even work for all ranks; vetting",
        "https://docs.pytorch.org/docs/stable/distributed.algorithms.join.html",
    )
    loss = "imbalance"

    def find(self, context: AdviceContext) -> Advice | None:
        """Return the advice, with evidence of a GPU that worked and one that waited."""
        advice = super().find(context)
        if advice is None:
            return None
        slow = max(context.scored, key=lambda trace: time_share(trace, self._ahead(context, trace)))
        ahead = context.evidence(slow, self._ahead(context, slow), self.metrics)
        if ahead is None:
            return None
        # The empty name separates GPUs that waited from those that worked.
        gpus = (*advice.gpus, "", *uuids_of(self._working(context)))
        return replace(advice, evidence=(*advice.evidence, ahead), gpus=gpus)

    def texts(self, context: AdviceContext, trace: Trace) -> tuple[str, str]:
        """Return a sentence on which GPUs waited while which others worked, and one on what to do."""
        working, waiting = self._working(context), context.alike(self.loss)
        who, others, lost = context.names(waiting), context.names(working), self.percent_lost(trace)
        devices = {each.device for each in working}
        if devices & {each.device for each in waiting}:
            devices |= {each.device for each in waiting}
            both = context.names([each for each in context.scored if each.device in devices])
            return (
                f"{both} waited for each other alternately, up to {lost:.0f} % of the time.",
                "Distribute the work evenly, for example in batches of similar length.",
            )
        if not self._most_wait(context, working, lost) or _starves(waiting, lost):
            return (
                f"{who} had little to do {lost:.0f} % of the time while {others} worked.",
                f"Find out what {who} lacked then, such as input, or distribute the work evenly.",
            )
        if _starves(working, lost):
            return (
                f"{who} waited {lost:.0f} % of the time while {others} worked on input that arrived late.",
                f"Speed up the input of {others} first.",
            )
        nodes = "nodes" if len({each.device.node for each in working}) > 1 else "node"
        return (
            f"{who} waited {lost:.0f} % of the time while {others} worked.",
            f"Give {others} less work, or vet {'its' if len(working) == 1 else 'their'} {nodes}.",
        )

    def _working(self, context: AdviceContext) -> tuple[Trace, ...]:
        """Return the GPUs that worked while others waited, for at least half as long as the longest."""
        shares = {trace.device: time_share(trace, self._ahead(context, trace)) for trace in context.scored}
        least = _OFTEN * max(shares.values())
        return tuple(trace for trace in context.scored if shares[trace.device] >= least)

    def _most_wait(self, context: AdviceContext, working: Sequence[Trace], lost: float) -> bool:
        """Return whether fewer than half of the GPUs worked, and more than half waited."""
        waited = [trace for trace in context.scored if self.percent_lost(trace) >= _OFTEN * lost]
        return 2 * len(working) < len(context.scored) < 2 * len(waited)

    def _ahead(self, context: AdviceContext, trace: Trace) -> Flags:
        """Return the samples in which this GPU works while another loses to imbalance."""
        # Equal work varies by several percent: with a bound below `PRESENT`, working GPUs would look like
        # waiting ones.
        own = ~at_least(trace.losses["imbalance"]) & at_least(trace.levels.engine, 0.5)
        return own & np.isin(context.slots(trace), context.imbalanced_slots)


def _starves(traces: Sequence[Trace], lost: float) -> bool:
    """Return whether one of the GPUs waits for input for at least half of `lost`, the percentage of time."""
    waits = [time_share(trace, at_least(trace.losses["input"])) for trace in traces]
    return bool(waits) and 100.0 * max(waits) >= _OFTEN * lost
