"""Live views of a run in notebooks, measurements, launches, and logging of a training loop's metrics.

Names are imported on first use, so that importing the package takes a notebook or a training script no time.
This file and `log` run with CPython 3.9 or newer, the other modules with 3.11 or newer.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

# Imported here, since a later import of the module `log` would replace the function.
from .log import log, roles

if TYPE_CHECKING:
    from .checkpoints import Checkpoints
    from .displays import PlanTable, SaturationPlot, SaturationSummary, plan
    from .explanation import Explanation, explain
    from .launch_cell import LaunchCell, launch
    from .launch_static import LaunchList, launches
    from .lesson import Lesson
    from .measurement import Measurement, measure, run_workload
    from .run import KernelRun, load, present_run
    from .saturation import Saturation
    from .vetting import Vetting, vet

__all__ = [
    "Checkpoints",
    "Explanation",
    "KernelRun",
    "LaunchCell",
    "LaunchList",
    "Lesson",
    "Measurement",
    "PlanTable",
    "Saturation",
    "SaturationPlot",
    "SaturationSummary",
    "Vetting",
    "explain",
    "launch",
    "launches",
    "load",
    "log",
    "measure",
    "plan",
    "present_run",
    "roles",
    "run_workload",
    "vet",
]

_MODULES = {
    "Checkpoints": "checkpoints",
    "Explanation": "explanation",
    "KernelRun": "run",
    "LaunchCell": "launch_cell",
    "LaunchList": "launch_static",
    "Lesson": "lesson",
    "Measurement": "measurement",
    "PlanTable": "displays",
    "Saturation": "saturation",
    "SaturationPlot": "displays",
    "SaturationSummary": "displays",
    "Vetting": "vetting",
    "explain": "explanation",
    "launch": "launch_cell",
    "launches": "launch_static",
    "load": "run",
    "measure": "measurement",
    "plan": "displays",
    "present_run": "run",
    "run_workload": "measurement",
    "vet": "vetting",
}


class _OldPythonError(ImportError):
    def _render_traceback_(self) -> list[str]:
        # IPython calls this method: the error is then one line in a cell.
        return [str(self)]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _require_python()
    return getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)


def load_ipython_extension(shell: Any) -> None:
    """Register ``%%launch``; kernels started by Gipfel's JupyterLab load this automatically.

    Its modules are imported on first use, so that kernels start as fast as without it.
    """
    from IPython.core.magic import no_var_expand  # noqa: PLC0415 - only in a notebook

    # Without it, IPython would replace {…} and $… in values for the program by variables.
    @no_var_expand
    def launch(line: str, cell: str = "") -> None:
        """Launch the cell's own code, a script, a module or a notebook on many GPUs; see ``--help``."""
        _require_python()
        from .launch_run import run_magic  # noqa: PLC0415 - on first use

        run_magic(shell, line, cell)

    shell.register_magic_function(launch, "line_cell", "launch")


def _require_python() -> None:
    if sys.version_info < (3, 11):
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        raise _OldPythonError(f"gipfel_widgets needs Python 3.11 or newer; this kernel is Python {version}.")
