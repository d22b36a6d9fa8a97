"""One job on its node: run folder, EDF, recorder, broker, container, record."""

from ..scheduler.protocol import batch_script
from .spec import JOB_VARIABLE, JobSpec

__all__ = ["JOB_VARIABLE", "JobSpec", "batch_script"]
