"""Score of how well a run used its GPUs, losses with their causes, and advice."""

from .advice import Advice, advise
from .advice.model import Workload
from .report.document import document_of
from .result import GpuScore, JobScore, RankScore, Spread, Total, Trace
from .score import score_table
from .settings import LOSSES, RESOURCES, Ceilings, Settings, Thresholds, Weights, ceilings_of

__all__ = [
    "LOSSES",
    "RESOURCES",
    "Advice",
    "Ceilings",
    "GpuScore",
    "JobScore",
    "RankScore",
    "Settings",
    "Spread",
    "Thresholds",
    "Total",
    "Trace",
    "Weights",
    "Workload",
    "advise",
    "ceilings_of",
    "document_of",
    "score_table",
]
