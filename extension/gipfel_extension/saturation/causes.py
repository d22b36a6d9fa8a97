"""Causes of the losses of one GPU: each loss of each sample is assigned to a cause that indicators show.

`IndicatorReader` derives the indicators from the metrics of the GPU's host, its links and the other GPUs of
the job at that time; `losses_of` assigns the losses.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..telemetry.sample import Columns, Device, SampleTable
from .host import HostIndicators, bidirectional_rate, host_indicators_of, host_of
from .levels import Flags, Floats, Levels, column, fractions
from .loss_breakdown import LossBreakdown, TimeGrid, max_and_median, nearest_rows
from .settings import LOSSES, Thresholds

#: Ratio of pipe activity to SM activity from which kernels count as computing; a kernel that waits in a
#: collective only spins.
_MIN_PIPE_PER_SM = 0.08
#: Ratio of a link's received to sent bytes from which the received data counts as input.
_MIN_ONE_WAY_RATIO = 3.0
#: Share of PCIe's ceiling, in both directions, that counts as communication of GPUs without NVLink.
_MIN_PCIE_BOTH_WAYS = 0.2
#: Bytes per second from which GPUs or nodes count as exchanging data.
_MIN_EXCHANGE = 1e8
VIDEO = tuple(f"NVDEC{engine}_ACTIVE" for engine in range(8))


@dataclass(frozen=True)
class GpuIndicators:
    """Indicators of why a GPU waits, one value per sample.

    Parameters
    ----------
    write_burst
        A host of the job writes a burst, such as a checkpoint.
    communicating
        Links or network carry data both ways, and the job has several GPUs.
    loading_input
        Input is being loaded: the host reads, uses more cores than launching kernels takes, or copies data to
        the GPU.
    decoder_busy
        A video decoder is busy.
    waiting_for_others
        Share of the sample, 0 to 1, in which the GPU waits while a slower GPU of the job works.
    small_gaps
        Kernels have pauses far below a second between them, while a thread of the host is busy.
    host_idle
        The host does nothing.
    small_kernels
        Kernels on few SMs compute, rather than wait for other GPUs; always true in a job of one GPU.
    few_warps
        SMs hold few warps and the power draw is low: there are too few warps to keep the units busy.
    """

    write_burst: Flags
    communicating: Flags
    loading_input: Flags
    decoder_busy: Flags
    waiting_for_others: Floats
    small_gaps: Flags
    host_idle: Flags
    small_kernels: Flags
    few_warps: Flags


class IndicatorReader:
    """Derives indicators from a table of samples.

    Parameters
    ----------
    gpus
        Levels and breakdown by UUID, only of GPUs that worked at some time: the others wait for nothing.
    watts
        Power limit by UUID; 0 where unknown.
    """

    def __init__(
        self,
        table: SampleTable,
        grid: TimeGrid,
        thresholds: Thresholds,
        gpus: Mapping[str, tuple[Levels, LossBreakdown]],
        watts: Mapping[str, float],
    ) -> None:
        self._table = table
        self._grid = grid
        self._limits = thresholds
        self._gpus = gpus
        self._watts = watts
        self._multi_gpu = len(table.gpus) > 1
        self._window = max(1, round(thresholds.lag_seconds / grid.interval))
        indices = {uuid: grid.indices(levels.time_ns)[0] for uuid, (levels, _) in gpus.items()}
        length = len(grid.occupied)
        self._peers = max_and_median(
            [(indices[uuid], breakdown.busy) for uuid, (_, breakdown) in gpus.items()], length
        )
        self._peers_smoothed = max_and_median(
            [(indices[uuid], self._relative_busy(breakdown)) for uuid, (_, breakdown) in gpus.items()], length
        )
        real = {gpu.simulated for gpu in table.gpus}
        hosts = [host for host in table.hosts if host.simulated in real]
        self._hosts = {host.uuid: host_indicators_of(table, host, thresholds) for host in hosts}
        self._host_write_bursts = self._bursts(hosts)
        self._exchanging = self._multi_gpu and self._exchanges_data(hosts)

    def indicators_of(self, gpu: Device) -> GpuIndicators:
        """Return the indicators of one GPU that worked."""
        levels, breakdown = self._gpus[gpu.uuid]
        columns = self._table[gpu.uuid]
        indices, _ = self._grid.indices(levels.time_ns)
        with np.errstate(invalid="ignore", divide="ignore"):
            communicating, loading_input, launching, host_idle = self._host_indicators(gpu, levels)
            return GpuIndicators(
                self._host_write_bursts[indices],
                (communicating | self._links_busy(levels, columns)) & self._multi_gpu,
                loading_input | _copying_input(levels, columns, self._limits),
                decoder_busy(columns, self._limits.decoder),
                self._waiting_for_others(breakdown, indices) if self._exchanging else np.zeros(len(indices)),
                launching & self._small_gaps(levels),
                host_idle,
                self._small_kernels(levels),
                self._few_warps(gpu, levels, columns),
            )

    def _host_indicators(self, gpu: Device, levels: Levels) -> tuple[Flags, Flags, Flags, Flags]:
        host = host_of(self._table, gpu)
        indicators: HostIndicators | None = self._hosts.get(host.uuid) if host else None
        if host is None or indicators is None or not len(indicators.communicating):
            return (np.zeros(len(levels.time_ns), np.bool_),) * 4
        rows, near = nearest_rows(
            levels.time_ns, self._table[host.uuid]["time_ns"], 1.5e9 * self._grid.interval
        )
        every = (indicators.communicating, indicators.loading_input, indicators.busy, indicators.idle)
        communicating, loading_input, busy, host_idle = (near & flags[rows] for flags in every)
        return communicating, loading_input, busy, host_idle

    def _exchanges_data(self, hosts: Sequence[Device]) -> bool:
        """Return whether GPUs may wait for each other: they exchange data, or their traffic is unknown."""
        links = [column(self._table[uuid], "NVLINK_TX_BYTES") for uuid in self._gpus]
        network = [bidirectional_rate(self._table[host.uuid]) for host in hosts] if len(hosts) > 1 else []
        seen = [each[np.isfinite(each)] for each in (*links, *network)]
        return any(not len(each) or each.max() >= _MIN_EXCHANGE for each in seen)

    def _links_busy(self, levels: Levels, columns: Columns) -> Flags:
        """Return the samples in which GPUs communicate over NVLink or, without it, both ways over PCIe."""
        if "nvlink" in levels.links:
            return np.asarray(levels.links["nvlink"] >= self._limits.link, np.bool_)
        least = np.minimum(column(columns, "PCIE_TX_BYTES"), column(columns, "PCIE_RX_BYTES"))
        most = np.maximum(column(columns, "PCIE_TX_BYTES"), column(columns, "PCIE_RX_BYTES"))
        level = levels.links.get("pcie", np.full(len(least), np.nan)) * least / most
        return np.asarray(level >= _MIN_PCIE_BOTH_WAYS, np.bool_)

    def _waiting_for_others(self, breakdown: LossBreakdown, indices: np.typing.NDArray[np.int64]) -> Floats:
        """Return the level of waiting for a slower GPU: in the same sample, or over some seconds.

        A rank that is slightly slower makes the others wait for a part of each step, which shows only in
        means over several steps. The difference of these means is then distributed over the samples in which
        the others wait.
        """
        top, middle = (each[indices] for each in self._peers)
        now = np.where(top - middle >= self._limits.wait, top - np.fmax(middle, breakdown.busy), 0.0)
        top, middle = (each[indices] for each in self._peers_smoothed)
        own = self._relative_busy(breakdown)
        behind = np.where(
            top - np.fmax(middle, own) >= self._limits.lag, (top - own) * breakdown.typical_busy, 0.0
        )
        now = np.maximum(0.0, np.nan_to_num(now))
        # What single samples already show is not counted twice.
        more = behind - _moving_mean(now, self._window)
        waits = np.maximum(0.0, breakdown.gpu_idle + breakdown.sms_empty - now)
        share = np.clip(more / np.maximum(1e-9, _moving_mean(waits, self._window)), 0.0, 1.0)
        return np.asarray(now + np.nan_to_num(share * waits), np.float64)

    def _small_kernels(self, levels: Levels) -> Flags:
        if not self._multi_gpu:
            return np.ones(len(levels.time_ns), np.bool_)
        if self._grid.interval > self._limits.fine:
            # Large kernels and waiting for others within one sample look like small kernels.
            return np.zeros(len(levels.time_ns), np.bool_)
        return _with_neighbours(levels.math >= _MIN_PIPE_PER_SM * levels.active)

    def _relative_busy(self, breakdown: LossBreakdown) -> Floats:
        """Return the mean busy level over some seconds relative to the GPU's typical one, to compare GPUs."""
        typical = breakdown.typical_busy
        return _moving_mean(
            np.minimum(1.0, breakdown.busy / typical) if typical else breakdown.busy, self._window
        )

    def _small_gaps(self, levels: Levels) -> Flags:
        """Return the samples in which the engine is on for a steady share of time: its pauses are short."""
        if levels.recorded_parts:
            spread = levels.recorded_parts["SCORE_SPREAD"]
            return np.asarray(
                (levels.engine > 0.05) & (spread <= self._limits.steady * levels.engine), np.bool_
            )
        if self._grid.interval > self._limits.fine:
            return np.zeros(len(levels.time_ns), np.bool_)
        window = max(3, round(1.0 / self._grid.interval))
        mean = _moving_mean(levels.engine, window)
        spread = np.sqrt(np.maximum(0.0, _moving_mean(levels.engine**2, window) - mean**2))
        return np.asarray((mean > 0.05) & (spread <= self._limits.steady * mean), np.bool_)

    def _few_warps(self, gpu: Device, levels: Levels, columns: Columns) -> Flags:
        warps = fractions(columns, "SM_OCCUPANCY") / levels.active
        power = column(columns, "POWER_USAGE") / (self._watts.get(gpu.uuid) or np.nan)
        return np.asarray((warps <= self._limits.few_warps) & (power <= self._limits.power), np.bool_)

    def _bursts(self, hosts: Sequence[Device]) -> Flags:
        """Return for each slot whether any host of the job writes a burst."""
        write_burst = np.zeros(len(self._grid.occupied), np.bool_)
        for host in hosts:
            times = self._table[host.uuid]["time_ns"][self._hosts[host.uuid].write_burst]
            indices, there = self._grid.indices(times)
            write_burst[indices[there]] = True
        return write_burst


def _copying_input(levels: Levels, columns: Columns, limits: Thresholds) -> Flags:
    """Return the samples in which data comes from the host, and hardly any goes back."""
    found = np.zeros(len(levels.time_ns), np.bool_)
    for link, (to_host, from_host) in (
        ("pcie", ("PCIE_TX_BYTES", "PCIE_RX_BYTES")),
        ("c2c", ("C2C_TX_ALL_BYTES", "C2C_RX_ALL_BYTES")),
    ):
        level = levels.links.get(link)
        if level is not None:
            one_way = column(columns, from_host) >= _MIN_ONE_WAY_RATIO * column(columns, to_host)
            found |= np.asarray((level >= limits.copies) & one_way, np.bool_)
    return found


def _with_neighbours(flags: Flags) -> Flags:
    """Return where a flag is true for a sample and both neighbours: a sample between phases mixes them."""
    before, after = np.append(True, flags[:-1]), np.append(flags[1:], True)
    return np.asarray(flags & before & after, np.bool_)


def decoder_busy(columns: Columns, minimum: float) -> Flags:
    """Return the samples in which a video decoder's activity is at least `minimum`; False if not recorded."""
    found = np.zeros(len(columns["time_ns"]), np.bool_)
    for metric in (*VIDEO, "DEC_UTIL"):
        if metric in columns:
            found |= np.asarray(fractions(columns, metric) >= minimum, np.bool_)
    return found


def _moving_mean(values: Floats, window: int) -> Floats:
    """Return the mean of `window` samples around each sample, ignoring unknown values."""
    known = np.isfinite(values)
    sums = np.cumsum(np.concatenate([[0.0], np.where(known, values, 0.0)]))
    counts = np.cumsum(np.concatenate([[0], known]))
    ends = np.minimum(len(values), np.arange(len(values)) + (window + 1) // 2)
    starts = np.maximum(0, np.arange(len(values)) - window // 2)
    counted = counts[ends] - counts[starts]
    return np.where(counted > 0, (sums[ends] - sums[starts]) / np.maximum(1, counted), np.nan)


def losses_of(
    levels: Levels, breakdown: LossBreakdown, indicators: GpuIndicators | None, before_work: Flags
) -> Mapping[str, Floats]:
    """Return the losses by cause; with the saturation they add up to 1 in each known sample; else NaN.

    A loss without an indicator is ``unexplained``.

    Parameters
    ----------
    indicators
        None for a GPU that never worked: it did not wait for anything, so `gpu_idle` is the loss ``idle``.
    before_work
        True in samples before the job's work began. Their loss is ``start_up``, regardless of the indicators.
    """
    zero = np.zeros_like(breakdown.gpu_idle)
    if indicators is None:
        found = {
            "idle": breakdown.gpu_idle,
            "launch": breakdown.sms_empty,
            "unexplained": breakdown.sms_stalled,
        }
    else:
        found = _attribute(levels, breakdown, indicators)
    losses = {name: np.where(before_work, zero, found.get(name, zero)) for name in LOSSES}
    losses["start_up"] = np.where(before_work, 1.0 - levels.saturation, zero)
    return losses


def _attribute(levels: Levels, breakdown: LossBreakdown, indicators: GpuIndicators) -> dict[str, Floats]:
    # Causes in order of certainty: each takes its part of the level, and the next ones get the rest.
    gpu_idle, idle_checkpoint = _split(breakdown.gpu_idle, indicators.write_burst)
    gpu_idle, idle_communication = _split(gpu_idle, indicators.communicating)
    gpu_idle, loading_input = _split(gpu_idle, indicators.loading_input | indicators.decoder_busy)
    idle_imbalance = np.minimum(gpu_idle, indicators.waiting_for_others)
    gpu_idle, idle_launch = _split(gpu_idle - idle_imbalance, indicators.small_gaps)
    gpu_idle, host_idle = _split(gpu_idle, indicators.host_idle)
    # A rank that waits for others runs a kernel that spins on few SMs: that is `sms_empty`, not `gpu_idle`.
    sms_empty, empty_checkpoint = _split(breakdown.sms_empty, indicators.write_burst)
    sms_empty, empty_communication = _split(sms_empty, indicators.communicating)
    sms_empty, empty_input = _split(sms_empty, indicators.decoder_busy)
    empty_imbalance = np.minimum(sms_empty, np.maximum(0.0, indicators.waiting_for_others - idle_imbalance))
    sms_empty, empty_launch = _split(sms_empty - empty_imbalance, indicators.small_kernels)
    capped = _lost_clock(levels, breakdown)
    sms_stalled, few_warps = _split(breakdown.sms_stalled - capped, indicators.few_warps)
    return {
        "idle": host_idle,
        "input": loading_input + empty_input,
        "launch": idle_launch + empty_launch,
        "occupancy": few_warps,
        "imbalance": idle_imbalance + empty_imbalance,
        "communication": idle_communication + empty_communication,
        "checkpoint": idle_checkpoint + empty_checkpoint,
        "capped": capped,
        "unexplained": gpu_idle + sms_empty + sms_stalled,
    }


def _lost_clock(levels: Levels, breakdown: LossBreakdown) -> Floats:
    """Return the level lost because the SM clock is below its maximum.

    Memory and links have their own clocks: while they are the binding resource, the SM clock costs nothing.
    """
    others = np.nan_to_num(np.fmax(levels.resources["memory"], levels.resources["interconnect"]))
    work = np.maximum(0.0, breakdown.busy - others)
    work = np.where(levels.pipes >= others, np.fmax(work, levels.pipes), work)
    return np.asarray(np.minimum(breakdown.sms_stalled, (1.0 - levels.clock) * work), np.float64)


def _split(level: Floats, flag: Flags) -> tuple[Floats, Floats]:
    """Split a level: return it with 0 where the flag is true, and with 0 where the flag is false."""
    return np.where(flag, 0.0 * level, level), np.where(flag, level, 0.0 * level)
