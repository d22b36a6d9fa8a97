"""What keeps a job waiting and what changed in it: tables in, verdicts out."""

from .diagnose import Diagnosis, diagnose
from .roles import Roles
from .steps import StepTable
from .verdict import KINDS, Verdict

__all__ = ["KINDS", "Diagnosis", "Roles", "StepTable", "Verdict", "diagnose"]
