"""One job on its node: run folder, EDF, recorder, container, record."""

from .script import batch_script
from .spec import JOB_VARIABLE, JobSpec

__all__ = ["JOB_VARIABLE", "JobSpec", "batch_script"]
