"""Schedulers: one Protocol, with Slurm and this machine itself behind it."""

from .local import LocalScheduler
from .protocol import JobRequest, JobStatus, Partition, Scheduler
from .slurm import SlurmScheduler
from .slurm_presence import SlurmPresence, default_scheduler, slurm_presence

__all__ = [
    "JobRequest",
    "JobStatus",
    "LocalScheduler",
    "Partition",
    "Scheduler",
    "SlurmPresence",
    "SlurmScheduler",
    "default_scheduler",
    "slurm_presence",
]
