"""Waiting for input: the host prepares data, and the GPU has nothing to run."""

import numpy as np

from ..causes import VIDEO, decodes
from ..host_signs import host_of
from ..levels import Flags, column
from ..result import Trace
from ..time_grid import nearest
from .losses import RUNNING, LossRule
from .model import Applies, Case, Knob, seen, share

#: Share of the job's CPU from which there are no cores for more workers.
_FULL = 0.8


class LoaderWorkers(LossRule):
    """The GPU waits while its host is busy: more workers, or more cores for them."""

    name = "loader-workers"
    knob = Knob(
        "DataLoader(num_workers=…)",
        "https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading",
    )
    loss = "input"
    least = 3.0
    host_metrics = ("CPU_CORES_USED", "CPU_UTIL", "IO_READ_BYTES", "PRESSURE_IO", "PRESSURE_CPU")

    def gain(self, case: Case, trace: Trace) -> float:
        """Nothing where a video decoder is what is waited for: workers don't make it faster."""
        where = ~decodes(case.table.of(trace.device.uuid), case.settings.thresholds.decoder)
        return self.lost_where(trace, where)

    def gain_least(self, case: Case, trace: Trace) -> float:
        """Return what twice the workers would give back, where half of the cores are free.

        The loader is what is waited for, so it works all the time: with twice the workers, a batch takes
        half of it.
        """
        busy = self._host_mean(case, trace, "CPU_UTIL")
        if busy is None or busy > 0.5:
            return 0.0
        lost = self.lost(trace) / 100.0
        remaining = 1.0 - (1.0 - lost) / max(0.5, 1.0 - lost)
        return 100.0 * (lost - remaining)

    def words(self, case: Case, trace: Trace) -> tuple[str, str]:
        """Percent of the time, and what the host did."""
        cores, busy = (self._host_mean(case, trace, metric) for metric in ("CPU_CORES_USED", "CPU_UTIL"))
        used = f" while its host used {cores:.1f} CPU cores" if cores is not None else ""
        sentence = f"{self.subject(case)} waited for input {self.lost(trace):.0f} % of the time{used}."
        if busy is not None and busy >= _FULL:
            return (
                sentence,
                "All cores are taken: ask for more of them, or prepare the data ahead of the run.",
            )
        return sentence, "Raise the DataLoader's num_workers."

    def _host_mean(self, case: Case, trace: Trace, metric: str) -> float | None:
        host = host_of(case.table, trace.device)
        if host is None:
            return None
        columns = case.table.of(host.uuid)
        waiting = trace.levels.time_ns[self.where(case, trace) & trace.scored]
        rows, near = nearest(waiting, columns["time_ns"], 1.5e9 * case.job.interval)
        values = column(columns, metric)[rows[near]] if near.any() else np.zeros(0)
        known = values[np.isfinite(values)]
        return float(known.mean()) if len(known) else None


class PinnedMemory(LossRule):
    """Data comes over PCIe at a fraction of its rate while nothing runs: copies from pageable memory."""

    name = "pinned-memory"
    knob = Knob(
        "DataLoader(pin_memory=True), .to(device, non_blocking=True)",
        "https://docs.pytorch.org/docs/stable/data.html#memory-pinning",
    )
    loss = "input"
    least = 3.0
    metrics = ("PCIE_RX_BYTES", *RUNNING)

    def where(self, case: Case, trace: Trace) -> Flags:
        """Nothing runs, and PCIe is neither quiet nor near what it can do."""
        rate = case.column(trace, "PCIE_RX_BYTES")
        level = trace.levels.links.get("pcie", np.full(len(rate), np.nan))
        with np.errstate(invalid="ignore"):
            return seen(trace.losses["input"]) & (level >= 0.03) & (level <= 0.5)

    def gain(self, case: Case, trace: Trace) -> float:
        """The share of the time in which it is to be seen."""
        return 100.0 * share(trace, self.where(case, trace))

    def words(self, case: Case, trace: Trace) -> tuple[str, str]:
        """The rate at which data came."""
        rate = (self.mean(case, trace, "PCIE_RX_BYTES") or 0.0) / 1e9
        return (
            f"While {case.name(trace.device)} waited for input, data came over PCIe at {rate:.1f} GB/s.",
            "Copy from pinned memory, and without blocking.",
        )


class VideoDecoder(LossRule):
    """The GPU's video decoders are busy, and its SMs wait for frames."""

    name = "video-decoder"
    knob = Knob("NVDEC", "https://docs.nvidia.com/video-technologies/video-codec-sdk/index.html")
    loss = "input"
    applies = Applies("work on video")
    metrics = (*VIDEO, *RUNNING)

    def where(self, case: Case, trace: Trace) -> Flags:
        """The loss is there, and a decoder is busy."""
        busy = decodes(case.table.of(trace.device.uuid), case.settings.thresholds.decoder)
        return super().where(case, trace) & busy

    def gain(self, case: Case, trace: Trace) -> float:
        """Return what is lost while a decoder is busy."""
        return self.lost_where(trace, self.where(case, trace))

    def words(self, case: Case, trace: Trace) -> tuple[str, str]:
        """Percent of the time."""
        lost = self.lost_where(trace, self.where(case, trace))
        return (
            f"The SMs of {case.name(trace.device)} waited {lost:.0f} % of the time for its video decoders.",
            "Decode smaller frames, spread videos over all decoders, or decode once and keep the frames.",
        )
