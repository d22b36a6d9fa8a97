"""The recorder: one small process per node that reads sources, writes segments and publishes ticks.

It runs beside the workload and does not affect it. Errors of a source or of the disk don't end the recording:
they become events and missing values.
"""

from .loop import Recorder
from .sample_files import Settings

__all__ = ["Recorder", "Settings"]
