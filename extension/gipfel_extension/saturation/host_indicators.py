"""Indicators of what the host of GPUs does: it loads input, communicates, writes, computes, or is idle."""

from dataclasses import dataclass

import numpy as np

from ..telemetry.sample import Columns, Device, SampleTable
from .levels import Flags, Floats, column
from .settings import Thresholds

#: Bytes read and written below any file system: block devices and processes, Lustre, NFS.
READS = ("IO_READ_BYTES", "LUSTRE_READ_BYTES", "NFS_READ_BYTES")
WRITES = ("IO_WRITE_BYTES", "LUSTRE_WRITE_BYTES", "NFS_WRITE_BYTES")

#: File systems whose bytes cross the network's counters too.
_REMOTE = (("LUSTRE_READ_BYTES", "NFS_READ_BYTES"), ("LUSTRE_WRITE_BYTES", "NFS_WRITE_BYTES"))
#: CPU cores per GPU below which a host counts as idle.
_IDLE_CORES = 0.3


@dataclass(frozen=True)
class HostIndicators:
    """Activity of a host, one value per sample of the host; False where nothing was recorded.

    Parameters
    ----------
    write_burst
        It writes far more than usual, such as a checkpoint.
    communicating
        Its network carries data both ways.
    loading_input
        It reads, waits for storage or cores, or computes beyond one core per GPU.
    busy
        At least as many cores are in use as launching kernels takes.
    idle
        It does nothing of these.
    """

    write_burst: Flags
    communicating: Flags
    loading_input: Flags
    busy: Flags
    idle: Flags


def host_of(table: SampleTable, gpu: Device) -> Device | None:
    """Return the host of a GPU: that of its node, or the only one where the GPU names no node.

    A real host is never the host of a simulated GPU.
    """
    hosts = [host for host in table.hosts if host.simulated == gpu.simulated]
    named = [host for host in hosts if host.node == gpu.node]
    return named[0] if named else hosts[0] if not gpu.node and len(hosts) == 1 else None


def host_indicators_of(table: SampleTable, host: Device, limits: Thresholds) -> HostIndicators:
    """Return the indicators of a host."""
    columns = table[host.uuid]
    gpus = max(1, sum(gpu.node == host.node or not gpu.node for gpu in table.gpus))
    write_burst = write_bursts(columns, limits)
    with np.errstate(invalid="ignore"):
        cores = column(columns, "CPU_CORES_USED") / gpus
        reads = np.logical_or.reduce([column(columns, metric) >= limits.read for metric in READS])
        stalls = column(columns, "PRESSURE_IO") >= limits.pressure
        # Threads that wait for a core: there are more of them than the one that launches.
        crowded = column(columns, "PRESSURE_CPU") >= limits.pressure
        loading_input = reads | (stalls & ~write_burst) | crowded | (cores >= 1.0 + limits.workers)
        idle = (cores < _IDLE_CORES) & ~loading_input & ~write_burst
        communicating = bidirectional_rate(columns) >= limits.network
        return HostIndicators(write_burst, communicating, loading_input, cores >= limits.launching, idle)


def write_bursts(columns: Columns, thresholds: Thresholds) -> Flags:
    """Return the samples in which a host writes far more to one kind of file system than its median."""
    found = np.zeros(len(columns["time_ns"]), np.bool_)
    for metric in WRITES:
        written = column(columns, metric)
        known = written[np.isfinite(written)]
        median = float(np.median(known)) if len(known) else 0.0
        with np.errstate(invalid="ignore"):
            found |= np.asarray(written >= max(thresholds.burst, thresholds.burst_ratio * median), np.bool_)
    return found


def bidirectional_rate(columns: Columns) -> Floats:
    """Return the bytes per second that a host both sends and receives.

    Collectives go both ways, file systems one.
    """
    received = column(columns, "NET_RX_BYTES") - _sum(columns, _REMOTE[0])
    sent = column(columns, "NET_TX_BYTES") - _sum(columns, _REMOTE[1])
    least: Floats = np.fmin(received, sent)
    return least


def _sum(columns: Columns, metrics: tuple[str, ...]) -> Floats:
    total: Floats = np.nansum([column(columns, metric) for metric in metrics], axis=0)
    return total
