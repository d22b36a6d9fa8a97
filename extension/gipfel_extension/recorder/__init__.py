"""The recorder: one small process per node that reads sources, writes segments and publishes ticks.

It runs beside the workload, and neither ends because of the other: errors of a source or of the disk become
events and missing values.
"""

from .loop import Recorder
from .sample_files import Settings

__all__ = ["Recorder", "Settings"]
