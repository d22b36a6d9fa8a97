"""The recorder: one small process per node that reads sources, writes segments and publishes ticks.

It runs beside the workload, and neither ends because of the other: what a source or the disk refuses becomes
an event and missing values.
"""

from .disk import Settings
from .loop import Recorder

__all__ = ["Recorder", "Settings"]
