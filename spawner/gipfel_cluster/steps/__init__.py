"""Steps: a command on the nodes of a job, in the container of an EDF on each, from anywhere in the job."""

from .handle import StepHandle
from .spec import IMAGE_PYTHON, PYTHON, StepSetting, StepSpec, StepState, TaskPlace
from .start import start_step

__all__ = [
    "IMAGE_PYTHON",
    "PYTHON",
    "StepHandle",
    "StepSetting",
    "StepSpec",
    "StepState",
    "TaskPlace",
    "start_step",
]
