"""Schedulers: one Protocol, with Slurm and this machine itself behind it."""

from .local import LocalScheduler
from .protocol import JobRequest, JobStatus, Partition, Scheduler
from .slurm import SlurmScheduler

__all__ = ["JobRequest", "JobStatus", "LocalScheduler", "Partition", "Scheduler", "SlurmScheduler"]
