"""Results of runs: their programs and workloads, and the effect of earlier advice."""

from .advice_effect import AdviceEffect, advice_effect, saved_advice_effect
from .program import Program, program_of_command, program_of_launch, program_of_run, workload_of
from .result import observed_of, rates_of_run, seconds_of

__all__ = [
    "AdviceEffect",
    "Program",
    "advice_effect",
    "observed_of",
    "program_of_command",
    "program_of_launch",
    "program_of_run",
    "rates_of_run",
    "saved_advice_effect",
    "seconds_of",
    "workload_of",
]
