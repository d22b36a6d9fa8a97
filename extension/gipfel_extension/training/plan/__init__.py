"""How a model would be laid out on GPUs: DP x TP x PP x ZeRO, before anything is asked of a cluster."""

from .layout import Layout
from .machine import MACHINES, Machine
from .planner import Plan, plan
from .transformer import Transformer

__all__ = ["MACHINES", "Layout", "Machine", "Plan", "Transformer", "plan"]
