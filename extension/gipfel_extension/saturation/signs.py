"""Signs of why a GPU waits: what its host, its links and the other GPUs of the job did at that time."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..telemetry.sample import Columns, Device, SampleTable
from .beats import Beats, crowd, nearest
from .levels import Flags, Floats, Levels, column
from .settings import Thresholds
from .staircase import Staircase

#: Bits of clock-event reasons that mean power or temperature (NVML's nvmlClocksEventReasons).
CAPPING = 0x04 | 0x08 | 0x20 | 0x40 | 0x80


@dataclass(frozen=True)
class Signs:
    """One GPU's signs, one value per sample.

    Parameters
    ----------
    writes
        A host of the job writes a burst.
    talks
        Links or network are active, and there is somebody in the job to talk to.
    prepares
        The GPU's host is busy.
    lags
        How far the busiest GPU of the job is above this one, where most of the job is behind it; else 0.
    capped
        The clocks are held down for power or temperature.
    """

    writes: Flags
    talks: Flags
    prepares: Flags
    lags: Floats
    capped: Flags


def host_of(table: SampleTable, gpu: Device) -> Device | None:
    """The host of a GPU: that of its node, or the only one where the GPU names no node.

    A real host says nothing about a simulated GPU.
    """
    hosts = [host for host in table.hosts if host.simulated == gpu.simulated]
    named = [host for host in hosts if host.node == gpu.node]
    return named[0] if named else hosts[0] if not gpu.node and len(hosts) == 1 else None


def bursts_of(columns: Columns, thresholds: Thresholds) -> Flags:
    """Where a host writes far more than it does mostly."""
    written = column(columns, "IO_WRITE_BYTES")
    known = written[np.isfinite(written)]
    usual = float(np.median(known)) if len(known) else 0.0
    with np.errstate(invalid="ignore"):
        return np.asarray(written >= max(thresholds.burst, thresholds.burst_ratio * usual), np.bool_)


def _any(columns: Columns, bounds: Mapping[str, float]) -> Flags:
    with np.errstate(invalid="ignore"):
        reached = [column(columns, metric) >= least for metric, least in bounds.items()]
        return np.asarray(np.logical_or.reduce(reached), np.bool_)


class Observer:
    """Reads signs off a table.

    Parameters
    ----------
    gpus
        Levels and steps of the GPUs that worked at all, by UUID: the others wait for nobody.
    """

    def __init__(
        self,
        table: SampleTable,
        beats: Beats,
        thresholds: Thresholds,
        gpus: Mapping[str, tuple[Levels, Staircase]],
    ) -> None:
        self._table = table
        self._beats = beats
        self._thresholds = thresholds
        self._gpus = gpus
        rows = [(beats.places(levels.time_ns)[0], steps.busy) for levels, steps in gpus.values()]
        self._top, self._middle = crowd(rows, len(beats.occupied))
        self._writing = self._bursts()

    def signs(self, gpu: Device) -> Signs:
        """The signs of one GPU that worked."""
        levels, steps = self._gpus[gpu.uuid]
        places, _ = self._beats.places(levels.time_ns)
        several = len(self._table.gpus) > 1
        talks = self._host(
            gpu, levels, dict.fromkeys(("NET_TX_BYTES", "NET_RX_BYTES"), self._thresholds.network)
        )
        with np.errstate(invalid="ignore"):
            if "nvlink" in levels.links:
                talks = talks | (levels.links["nvlink"] >= self._thresholds.link)
            top, middle = self._top[places], self._middle[places]
            behind = top - np.fmax(middle, steps.busy)
            lags = np.where((top - middle >= self._thresholds.imbalance) & several, behind, 0.0)
        reasons = column(self._table.of(gpu.uuid), "CLOCKS_EVENT_REASONS")
        return Signs(
            self._writing[places],
            talks & several,
            self._host(gpu, levels, self._busy(gpu)),
            np.nan_to_num(np.maximum(0.0, lags)),
            (np.nan_to_num(reasons).astype(np.int64) & CAPPING) != 0,
        )

    def _busy(self, gpu: Device) -> dict[str, float]:
        limits = self._thresholds
        beside = sum(other.node == gpu.node for other in self._table.gpus)
        return {
            "CPU_CORES_USED": limits.cores * beside,
            "CPU_UTIL": limits.cpu,
            "PRESSURE_CPU": limits.pressure,
            "PRESSURE_IO": limits.pressure,
            "IO_READ_BYTES": limits.read,
        }

    def _host(self, gpu: Device, levels: Levels, bounds: Mapping[str, float]) -> Flags:
        """Whether any of a host's metrics reached its bound at the time of each of the GPU's samples."""
        host = host_of(self._table, gpu)
        if host is None:
            return np.zeros(len(levels.time_ns), np.bool_)
        columns = self._table.of(host.uuid)
        rows, near = nearest(levels.time_ns, columns["time_ns"], 1.5e9 * self._beats.interval)
        return near & _any(columns, bounds)[rows] if len(columns["time_ns"]) else near

    def _bursts(self) -> Flags:
        """Whether any host of the job writes a burst at each beat."""
        writing = np.zeros(len(self._beats.occupied), np.bool_)
        real = {gpu.simulated for gpu in self._table.gpus}
        for host in (host for host in self._table.hosts if host.simulated in real):
            columns = self._table.of(host.uuid)
            places, there = self._beats.places(columns["time_ns"][bursts_of(columns, self._thresholds)])
            writing[places[there]] = True
        return writing
