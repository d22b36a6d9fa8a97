"""Kernel side: live views of a run, measurements in a notebook, and a training loop's own numbers.

Names are imported on first use, so that importing the package costs a notebook or a training script nothing.
This file and `log` run with any CPython since 3.9, the others with 3.11.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

# Not on first use: the import of a module of this name would put it in the function's place.
from .log import log

if TYPE_CHECKING:
    from .measurement import Measurement, measure
    from .plot import SaturationPlot
    from .run import KernelRun, present_run
    from .saturation import Saturation
    from .summary import SaturationSummary
    from .workload import run_workload

__all__ = [
    "KernelRun",
    "Measurement",
    "Saturation",
    "SaturationPlot",
    "SaturationSummary",
    "log",
    "measure",
    "present_run",
    "run_workload",
]

_HOMES = {
    "KernelRun": "run",
    "Measurement": "measurement",
    "Saturation": "saturation",
    "SaturationPlot": "plot",
    "SaturationSummary": "summary",
    "measure": "measurement",
    "present_run": "run",
    "run_workload": "workload",
}


class _OldPythonError(ImportError):
    def _render_traceback_(self) -> list[str]:
        # IPython asks for it: in a cell this is one line.
        return [str(self)]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if sys.version_info < (3, 11):
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        raise _OldPythonError(f"gipfel_widgets needs Python 3.11 or newer; this kernel is Python {version}.")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
