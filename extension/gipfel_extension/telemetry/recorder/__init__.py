"""The recorder: one small process per node that reads sources, writes segments and publishes ticks.

It stands beside the workload and never ends because of it or it because of the recorder: what a source or the
disk refuses becomes an event and missing values.
"""

from .loop import Recorder
from .settings import Settings

__all__ = ["Recorder", "Settings"]
