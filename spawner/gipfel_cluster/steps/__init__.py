"""Steps: a command on the nodes of a job, in the container of an EDF on each, from anywhere in the job."""

from .handle import StepHandle, start_step
from .spec import IMAGE_PYTHON, PYTHON, StepSetting, StepSpec, StepState, TaskLocation

__all__ = [
    "IMAGE_PYTHON",
    "PYTHON",
    "StepHandle",
    "StepSetting",
    "StepSpec",
    "StepState",
    "TaskLocation",
    "start_step",
]
