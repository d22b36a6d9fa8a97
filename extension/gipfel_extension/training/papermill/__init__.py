"""Notebooks through papermill: every cell is saved when it ends, and a run can resume where it stopped.

`engine.run_notebook` runs a notebook in this process; ``papermill --engine gipfel`` uses the same engine
through `EntryPoint`. This module imports nothing else, because importing papermill takes a second, and
papermill loads its entry points while it is only partly imported.
"""

from typing import Any


class EntryPoint:
    """Entry point of the engine ``gipfel``, which forwards papermill's calls to `engine.GipfelEngine`."""

    @classmethod
    def execute_notebook(cls, *arguments: Any, **options: Any) -> Any:
        """Execute a notebook."""
        return _engine().execute_notebook(*arguments, **options)

    @classmethod
    def nb_kernel_name(cls, *arguments: Any, **options: Any) -> Any:
        """Return the name of a notebook's kernel."""
        return _engine().nb_kernel_name(*arguments, **options)

    @classmethod
    def nb_language(cls, *arguments: Any, **options: Any) -> Any:
        """Return the language of a notebook."""
        return _engine().nb_language(*arguments, **options)


def _engine() -> Any:
    from .engine import GipfelEngine  # noqa: PLC0415 - see the module's docstring

    return GipfelEngine
