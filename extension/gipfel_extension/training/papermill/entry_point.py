"""Entry point of papermill's engine ``gipfel``: nothing is imported before it is used.

The engine itself needs papermill, which loads its entry points while it is only half imported.
"""

from typing import Any


class EntryPoint:
    """Forwards papermill's calls to `engine.GipfelEngine`."""

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
    from .engine import GipfelEngine  # noqa: PLC0415 - see above

    return GipfelEngine
