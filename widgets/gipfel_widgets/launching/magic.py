"""``%%launch`` and ``%launch``, which kernels that the lab starts have from the beginning."""

from typing import Any

from .options import asked_in
from .run import Face, PaperView, run_cell
from .show import CellOutput, somebody_looks


def run_magic(shell: Any, line: str, cell: str = "") -> None:
    """Carry out the magic in an IPython shell.

    Raises
    ------
    GipfelError
        The line can't be understood, or the launch can't be started or was waited for and has failed.
    """
    variables: dict[str, Any] = shell.user_ns
    asked = asked_in(line, cell, variables)
    if asked is None:
        return
    attended = somebody_looks()
    launched = run_cell(asked, CellOutput(), face_for(attended=attended), attended=attended)
    # As `_` is the last value: later cells wait for it and read it.
    variables["_launch"] = launched


def face_for(*, attended: bool) -> Face:
    """Return the live view where a user is present, else a static one."""
    if not attended:
        return PaperView()
    from .view import LaunchView  # noqa: PLC0415 - widgets need a frontend

    return LaunchView()
