"""Schedulers with a common Protocol: Slurm, and a local one that runs jobs on this machine."""

from .local import LocalScheduler
from .machine import SlurmPresence, slurm_presence
from .protocol import JobRequest, JobStatus, Partition, Scheduler
from .slurm import SlurmScheduler

__all__ = [
    "JobRequest",
    "JobStatus",
    "LocalScheduler",
    "Partition",
    "Scheduler",
    "SlurmPresence",
    "SlurmScheduler",
    "slurm_presence",
]
