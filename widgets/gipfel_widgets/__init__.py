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
    from .displays import PlanTable, SaturationPlot, SaturationSummary, plan
    from .explanation import Explanation, explain
    from .launch_cell import LaunchCell, launch
    from .launch_static import LaunchList, launches
    from .measurement import Measurement, measure, run_workload
    from .run import KernelRun, present_run
    from .saturation import Saturation
    from .vetting import Vetting, vet

__all__ = [
    "Explanation",
    "KernelRun",
    "LaunchCell",
    "LaunchList",
    "Measurement",
    "PlanTable",
    "Saturation",
    "SaturationPlot",
    "SaturationSummary",
    "Vetting",
    "explain",
    "launch",
    "launches",
    "log",
    "measure",
    "plan",
    "present_run",
    "run_workload",
    "vet",
]

_HOMES = {
    "Explanation": "explanation",
    "KernelRun": "run",
    "LaunchCell": "launch_cell",
    "LaunchList": "launch_static",
    "Measurement": "measurement",
    "PlanTable": "displays",
    "Saturation": "saturation",
    "SaturationPlot": "displays",
    "SaturationSummary": "displays",
    "Vetting": "vetting",
    "explain": "explanation",
    "launch": "launch_cell",
    "launches": "launch_static",
    "measure": "measurement",
    "plan": "displays",
    "present_run": "run",
    "run_workload": "measurement",
    "vet": "vetting",
}


class _OldPythonError(ImportError):
    def _render_traceback_(self) -> list[str]:
        # IPython asks for it: in a cell this is one line.
        return [str(self)]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _need_new_python()
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)


def load_ipython_extension(shell: Any) -> None:
    """Let a notebook have ``%%launch``; kernels that the lab starts load this by themselves.

    What the magic needs is imported on its first use: a kernel starts as fast as without it.
    """
    from IPython.core.magic import no_var_expand  # noqa: PLC0415 - only a notebook has it

    # IPython would put variables in place of {…} and $… in values that are meant for the program.
    @no_var_expand
    def launch(line: str, cell: str = "") -> None:
        """Launch the cell's own code, a script, a module or a notebook on many GPUs; see ``--help``."""
        _need_new_python()
        from .launch_run import run_magic  # noqa: PLC0415 - on first use, as the others

        run_magic(shell, line, cell)

    shell.register_magic_function(launch, "line_cell", "launch")


def _need_new_python() -> None:
    if sys.version_info < (3, 11):
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        raise _OldPythonError(f"gipfel_widgets needs Python 3.11 or newer; this kernel is Python {version}.")
