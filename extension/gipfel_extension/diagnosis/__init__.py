"""Find slow ranks and changes of pace in a job: functions from tables of steps and samples to verdicts."""

from .diagnose import Diagnosis, diagnose
from .roles import Roles
from .steps import StepTable
from .verdict import KINDS, Verdict

__all__ = ["KINDS", "Diagnosis", "Roles", "StepTable", "Verdict", "diagnose"]
