"""Settings of the score: weights, thresholds, and the failure rate that checkpoints are for."""

from dataclasses import dataclass, field

#: The resources that can be the binding one.
RESOURCES = ("compute", "memory", "interconnect")

#: The losses, in the order in which they are listed.
LOSSES = (
    "idle",
    "input",
    "launch",
    "occupancy",
    "imbalance",
    "communication",
    "checkpoint",
    "capped",
    "start_up",
    "unexplained",
)


@dataclass(frozen=True)
class Weights:
    """Factors of the resources' levels, before the highest one binds; each product is at most 1."""

    compute: float = 1.0
    memory: float = 1.0
    interconnect: float = 1.0

    def of(self, resource: str) -> float:
        """Return the weight of ``compute``, ``memory`` or ``interconnect``."""
        return float(getattr(self, resource))


@dataclass(frozen=True)
class Thresholds:
    """Levels from which a sample indicates a cause. All are estimates: see the README.

    Parameters
    ----------
    works
        Activity of engine or SMs from which a GPU counts as working.
    binding
        Level below which no resource is the binding one.
    workers
        CPU cores used per GPU of a node, beyond one for the thread that launches kernels, from which the host
        counts as loading input.
    launching
        CPU cores used per GPU from which a thread counts as launching kernels, or as busy at all.
    pressure
        Share of the time stalled on I/O, or on CPU, that counts as waiting for storage, or for cores.
    read
        Bytes per second read by a host, from any file system, that count as loading.
    copies
        Level of a link from the host that counts as copying input while nothing runs.
    decoder
        Activity of a video decoder that counts as preparing input.
    link
        Level of a link between GPUs that counts as communication.
    network
        Bytes per second that a host both sends and receives, without those of its file systems, that count as
        communication.
    burst, burst_ratio
        Bytes per second written by a host that count as a checkpoint, if they are also at least so many
        times the run's median rate.
    wait
        Difference of the busiest GPU from the job's median in one sample, from which the others count as
        waiting.
    lag, lag_seconds
        The same for means over so many seconds, of levels relative to each GPU's typical level. It finds a
        rank that is always a little slower.
    steady
        Relative spread of the engine's activity over one second below which gaps between kernels count as
        small.
    fine
        Seconds between samples up to which that spread can be computed.
    few_warps
        Occupancy per SM activity up to which SMs hold too few warps to hide latency.
    power
        Share of the power limit below which SMs that have work count as waiting.
    """

    works: float = 0.02
    binding: float = 0.05
    workers: float = 0.5
    launching: float = 0.5
    pressure: float = 0.1
    read: float = 100e6
    copies: float = 0.03
    decoder: float = 0.3
    link: float = 0.1
    network: float = 1e9
    burst: float = 100e6
    burst_ratio: float = 5.0
    wait: float = 0.25
    lag: float = 0.03
    lag_seconds: float = 5.0
    steady: float = 0.25
    fine: float = 0.25
    few_warps: float = 0.15
    power: float = 0.5


@dataclass(frozen=True)
class Settings:
    """Settings of a score.

    Parameters
    ----------
    gpu_hours_per_failure
        GPU hours after which to expect one interruption of a job, for checkpoint intervals. The default is
        what 16 384 H100s showed over 54 days: 419 unexpected interruptions (arXiv:2407.21783, table 5).
    """

    weights: Weights = field(default_factory=Weights)
    thresholds: Thresholds = field(default_factory=Thresholds)
    gpu_hours_per_failure: float = 54 * 24 * 16384 / 419
