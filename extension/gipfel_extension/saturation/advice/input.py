"""Rules about input: the host prepares data while the GPU has nothing to run."""

import numpy as np

from ..causes import VIDEO, decoder_busy
from ..levels import Flags, column, host_of
from ..result import Trace
from ..time_grid import nearest_rows
from .losses import RUNNING, LossRule
from .model import AdviceContext, Applicability, Knob, at_least, time_share

#: CPU utilization of the job from which no cores are free for more workers.
_FULL = 0.8
_TRY = (
    "`gipfel data try DATA --run RUN` measures how many samples per second suffice, and what delivers them."
)


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
        """Return the loss outside of video decoding, which more workers don't speed up."""
        where = ~decoder_busy(context.table[trace.device.uuid], context.settings.thresholds.decoder)
        return self.percent_lost_where(trace, where)

    def gain_least(self, context: AdviceContext, trace: Trace) -> float:
        """Return the gain of twice the workers, where half of the cores are free; else 0.

        The GPU waits for the loader, so the loader works all the time: with twice the workers, a batch takes
        half of the time.
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
        values = column(columns, metric)[rows[near]] if near.any() else np.zeros(0)
        known = values[np.isfinite(values)]
        return float(known.mean()) if len(known) else None


class PinnedMemory(LossRule):
    """Rule: data comes over PCIe at a fraction of its rate while nothing runs, as from pageable memory."""

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
        with np.errstate(invalid="ignore"):
            return at_least(trace.losses["input"]) & (level >= 0.03) & (level <= 0.5)

    def gain(self, context: AdviceContext, trace: Trace) -> float:
        """Return the percentage of the time in which such copies are present."""
        return 100.0 * time_share(trace, self.where(context, trace))

    def texts(self, context: AdviceContext, trace: Trace) -> tuple[str, str]:
        """Return the rate of the copies, and what to do."""
        rate = (self.mean(context, trace, "PCIE_RX_BYTES") or 0.0) / 1e9
        return (
            f"While {context.name(trace.device)} waited for input, data came over PCIe at {rate:.1f} GB/s.",
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
        return self.percent_lost_where(trace, self.where(context, trace))

    def texts(self, context: AdviceContext, trace: Trace) -> tuple[str, str]:
        """Return the percentage of the time, and what to do."""
        lost = self.percent_lost_where(trace, self.where(context, trace))
        return (
            (
                f"The SMs of {context.name(trace.device)} waited {lost:.0f} % of the time "
                "for its video decoders."
            ),
            "Decode smaller frames, spread videos over all decoders, or decode once and store the frames.",
        )
