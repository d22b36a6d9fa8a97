"""Results of runs: programs, what is known of their work, and the effect of earlier advice."""

from .program import Program, program_of_command, program_of_launch, program_of_run, workload_of
from .result import observed_of, pace_of_run, seconds_of
from .since import Since, kept_since, since_of

__all__ = [
    "Program",
    "Since",
    "kept_since",
    "observed_of",
    "pace_of_run",
    "program_of_command",
    "program_of_launch",
    "program_of_run",
    "seconds_of",
    "since_of",
    "workload_of",
]
