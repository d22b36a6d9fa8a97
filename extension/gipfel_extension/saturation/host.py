"""Indicators of a host's activity in each sample: input, communication, writes, busy and idle cores."""

from dataclasses import dataclass

import numpy as np

from ..telemetry.sample import Columns, Device, SampleTable
from .levels import Flags, Floats, column
from .settings import Thresholds

#: Metrics of bytes read and written on any file system: block devices and processes, Lustre, NFS.
READS = ("IO_READ_BYTES", "LUSTRE_READ_BYTES", "NFS_READ_BYTES")
WRITES = ("IO_WRITE_BYTES", "LUSTRE_WRITE_BYTES", "NFS_WRITE_BYTES")

#: Counters of the network, and file systems whose bytes cross them too.
_REMOTE = {
    "NET_RX_BYTES": ("LUSTRE_READ_BYTES", "NFS_READ_BYTES"),
    "NET_TX_BYTES": ("LUSTRE_WRITE_BYTES", "NFS_WRITE_BYTES"),
}
#: CPU cores per GPU below which a host counts as idle.
_IDLE_CORES = 0.3


@dataclass(frozen=True)
class HostIndicators:
    """Activity of a host, one value per sample of the host; False where nothing was recorded.

    Parameters
    ----------
    write_burst
        The host writes far more than usual, such as a checkpoint.
    communicating
        The host sends and receives data over the network, not counting its file systems.
    loading_input
        The host reads, waits for storage or cores, or uses more cores than launching kernels takes.
    busy
        At least as many cores are in use as launching kernels takes.
    idle
        Hardly any core is in use, and the host neither loads input nor writes.
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
    cores = column(columns, "CPU_CORES_USED") / gpus
    reads = np.logical_or.reduce([column(columns, metric) >= limits.read for metric in READS])
    stalls = column(columns, "PRESSURE_IO") >= limits.pressure
    # Threads wait for cores, so more threads run than only the one that launches kernels.
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
        found |= np.asarray(written >= max(thresholds.burst, thresholds.burst_ratio * median), np.bool_)
    return found


def bidirectional_rate(columns: Columns) -> Floats:
    """Return the lower of a host's send and receive rate in bytes per second, without file systems.

    Collectives transfer data in both directions, file systems mostly in one.
    """
    received, sent = (
        column(columns, network) - np.nansum([column(columns, remote) for remote in file_systems], axis=0)
        for network, file_systems in _REMOTE.items()
    )
    return np.asarray(np.fmin(received, sent), np.float64)
