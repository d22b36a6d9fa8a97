"""Run a step: a command on nodes of a job, in a container of an EDF on each node."""

from .handle import StepHandle, start_step
from .spec import IMAGE_PYTHON, PYTHON, StepJob, StepSpec, StepState, TaskLocation

__all__ = [
    "IMAGE_PYTHON",
    "PYTHON",
    "StepHandle",
    "StepJob",
    "StepSpec",
    "StepState",
    "TaskLocation",
    "start_step",
]
