"""Layout plans of a model on GPUs: DP x TP x PP x ZeRO, before anything is requested from a cluster."""

from .layout import MACHINES, Layout, Machine, Transformer
from .planner import Plan, plan

__all__ = ["MACHINES", "Layout", "Machine", "Plan", "Transformer", "plan"]
