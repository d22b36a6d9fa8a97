"""Results of runs: what ran, what is known of it, and what became of the advice of the run before."""

from .measured import observed_of, pace_of_run, seconds_of
from .program import Program, program_of_command, program_of_launch, program_of_run
from .since import Since, kept_since, since_of
from .workload import workload_of

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
