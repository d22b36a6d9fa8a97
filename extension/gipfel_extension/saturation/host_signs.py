"""Evidence on the host of GPUs: it loads, talks, writes, is busy, or does nothing."""

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
#: CPU cores per GPU below which a host does nothing.
_RESTS = 0.3


@dataclass(frozen=True)
class HostSigns:
    """One host's evidence, one value per sample of its own; False where nothing was recorded."""

    writes: Flags
    talks: Flags
    loads: Flags
    busy: Flags
    rests: Flags


def host_of(table: SampleTable, gpu: Device) -> Device | None:
    """Return the host of a GPU: that of its node, or the only one where the GPU names no node.

    A real host says nothing about a simulated GPU.
    """
    hosts = [host for host in table.hosts if host.simulated == gpu.simulated]
    named = [host for host in hosts if host.node == gpu.node]
    return named[0] if named else hosts[0] if not gpu.node and len(hosts) == 1 else None


def host_signs(table: SampleTable, host: Device, limits: Thresholds) -> HostSigns:
    """Return the evidence of a host."""
    columns = table.of(host.uuid)
    gpus = max(1, sum(gpu.node == host.node or not gpu.node for gpu in table.gpus))
    writes = bursts_of(columns, limits)
    with np.errstate(invalid="ignore"):
        cores = column(columns, "CPU_CORES_USED") / gpus
        reads = np.logical_or.reduce([column(columns, metric) >= limits.read for metric in READS])
        stalls = column(columns, "PRESSURE_IO") >= limits.pressure
        # Threads that wait for a core: there are more of them than the one that launches.
        crowded = column(columns, "PRESSURE_CPU") >= limits.pressure
        loads = reads | (stalls & ~writes) | crowded | (cores >= 1.0 + limits.workers)
        rests = (cores < _RESTS) & ~loads & ~writes
        talks = both_ways(columns) >= limits.network
        return HostSigns(writes, talks, loads, cores >= limits.launching, rests)


def bursts_of(columns: Columns, thresholds: Thresholds) -> Flags:
    """Return where a host writes far more to one kind of file system than it mostly does."""
    found = np.zeros(len(columns["time_ns"]), np.bool_)
    for metric in WRITES:
        written = column(columns, metric)
        known = written[np.isfinite(written)]
        usual = float(np.median(known)) if len(known) else 0.0
        with np.errstate(invalid="ignore"):
            found |= np.asarray(written >= max(thresholds.burst, thresholds.burst_ratio * usual), np.bool_)
    return found


def both_ways(columns: Columns) -> Floats:
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
