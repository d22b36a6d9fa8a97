"""What may be argued about: weights, thresholds, and the failure rate that checkpoints are meant for."""

from dataclasses import dataclass, field

#: The resources that can be the binding one.
RESOURCES = ("compute", "memory", "interconnect")

#: The losses, in the order in which they are told.
LOSSES = ("idle", "input", "launch", "occupancy", "imbalance", "communication", "checkpoint", "capped")


@dataclass(frozen=True)
class Weights:
    """What each resource's level is multiplied by before the highest one binds; the product is at most 1."""

    compute: float = 1.0
    memory: float = 1.0
    interconnect: float = 1.0

    def of(self, resource: str) -> float:
        """The weight of ``compute``, ``memory`` or ``interconnect``."""
        return float(getattr(self, resource))


@dataclass(frozen=True)
class Thresholds:
    """From where on a sample counts as a sign of something. All are judgements: see the README.

    Parameters
    ----------
    works
        Activity of engine or SMs from which a GPU counts as at work.
    binding
        Level below which no resource is the binding one.
    cores
        CPU cores used per GPU of a node from which its host counts as busy preparing input.
    cpu, pressure
        Share of the job's CPU, and of time stalled on CPU or I/O, that count as busy.
    read
        Bytes per second read by a host that count as busy.
    link
        Level of NVLink that counts as communication.
    network
        Bytes per second of a host's network interfaces that count as communication.
    burst, burst_ratio
        Bytes per second written by a host that count as a checkpoint, where they are also so many times
        the run's median rate.
    imbalance
        How far the busiest GPU must be above the job's median for the others to count as waiting for it.
    """

    works: float = 0.02
    binding: float = 0.05
    cores: float = 0.5
    cpu: float = 0.8
    pressure: float = 0.1
    read: float = 100e6
    link: float = 0.1
    network: float = 1e9
    burst: float = 100e6
    burst_ratio: float = 5.0
    imbalance: float = 0.25


@dataclass(frozen=True)
class Settings:
    """How a table is scored.

    Parameters
    ----------
    gpu_hours_per_failure
        GPU hours after which to expect one interruption of a job, for checkpoint intervals; by default
        what 16 384 H100s showed over 54 days, 419 unexpected interruptions (arXiv:2407.21783, table 5).
    """

    weights: Weights = field(default_factory=Weights)
    thresholds: Thresholds = field(default_factory=Thresholds)
    gpu_hours_per_failure: float = 54 * 24 * 16384 / 419
