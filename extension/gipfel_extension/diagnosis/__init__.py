"""Find slow ranks and changes of pace in a job: tables in, verdicts out."""

from .diagnose import Diagnosis, diagnose
from .roles import Roles
from .steps import StepTable
from .verdict import KINDS, Verdict

__all__ = ["KINDS", "Diagnosis", "Roles", "StepTable", "Verdict", "diagnose"]
