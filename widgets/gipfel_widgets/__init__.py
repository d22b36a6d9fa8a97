"""Kernel side: live views of a run and measurements in a notebook.

Names are imported on first use, so that importing the package costs a notebook nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

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


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
