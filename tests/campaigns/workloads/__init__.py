"""Workload shapes whose cause of loss is known, derived from how the hardware works, not from the rules.

``SHAPES`` is the table. ``recording`` samples programs; ``phases`` has the phases that programs consist of.
"""

from . import groups, hosts, kernels, later, limits
from .recording import GRID_S, SHAPES, Job, Shape

__all__ = ["GRID_S", "SHAPES", "Job", "Shape", "groups", "hosts", "kernels", "later", "limits"]
