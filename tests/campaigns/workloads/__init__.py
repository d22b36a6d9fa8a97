"""Workload shapes whose cause of loss is known, written from what the hardware does: never from the rules.

``SHAPES`` is the table. ``recording`` makes samples of programs; ``phases`` are what programs are made of.
"""

from . import groups, hosts, kernels, later, limits
from .recording import GRID_S, Job, Shape
from .register import SHAPES

__all__ = ["GRID_S", "SHAPES", "Job", "Shape", "groups", "hosts", "kernels", "later", "limits"]
