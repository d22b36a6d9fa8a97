"""Results of runs: what ran, what is known of it, and what became of the advice of the run before."""

from .program import Program, program_of_command, program_of_launch, program_of_run
from .workload import workload_of

__all__ = ["Program", "program_of_command", "program_of_launch", "program_of_run", "workload_of"]
