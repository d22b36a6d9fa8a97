"""``%%launch`` and ``%launch``: after ``%load_ext gipfel_widgets``."""

from typing import Any

from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand

from .options import asked_in
from .run import Face, PaperView, run_cell
from .show import CellOutput, somebody_looks


@magics_class
class LaunchMagics(Magics):
    """The magics of launches."""

    # IPython would put variables in place of {…} and $… in values that are meant for the program.
    @no_var_expand
    @line_cell_magic
    def launch(self, line: str, cell: str = "") -> None:
        """Launch the cell's own code, a script, a module or a notebook on many GPUs; see ``--help``."""
        variables: dict[str, Any] = self.shell.user_ns if self.shell is not None else {}
        asked = asked_in(line, cell, variables)
        if asked is None:
            return
        attended = somebody_looks()
        launched = run_cell(asked, CellOutput(), face_for(attended=attended), attended=attended)
        # As `_` is the last value: later cells wait for it and read it.
        variables["_launch"] = launched


def face_for(*, attended: bool) -> Face:
    """The live view where somebody looks, else paper."""
    if not attended:
        return PaperView()
    from .view import LaunchView  # noqa: PLC0415 - widgets need a frontend

    return LaunchView()
