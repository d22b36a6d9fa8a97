"""Rules for resuming a notebook that stopped; pure.

The rules, in the order in which they are applied:

1. Only an output of Gipfel's engine is resumed, because papermill marks a cell in which the kernel died as
   finished.
2. The parameters must be equal; otherwise nothing is run.
3. The run resumes at the first code cell that has not finished, or whose code has changed, or that follows a
   changed cell. With another kernel it starts at the first cell.
4. Cells before that point are kept with their outputs and not executed again, except cells tagged ``setup``
   and the cells with parameters.
5. The new kernel has only the state of these executed cells. Variables, imports, open files and GPU memory of
   kept cells are lost, so later cells must read them from files.
6. Data, modules and the environment are not compared.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from gipfel_cluster.model import Frozen, GipfelError, one_line

from .progress import first_code_line

ERROR_MARKER = "papermill-error-cell-tag"
_EXECUTED_TAGS = frozenset({"setup", "parameters", "injected-parameters"})


class ResumePlan(Frozen):
    """Cells that a run keeps from an earlier one.

    ``kept`` maps the index of each cell that is not run to that of the same cell in the earlier notebook;
    ``notes`` are for the user, one line each.
    """

    kept: dict[int, int] = Field(default_factory=dict)
    complete: bool = False
    notes: tuple[str, ...] = ()


def plan_resume(notebook: Any, earlier: Any, *, kernel: str) -> ResumePlan:
    """Return which cells of `earlier`, an executed notebook, a run of `notebook` keeps.

    Raises
    ------
    GipfelError
        The parameters differ.
    """
    about = earlier.metadata.get("gipfel")
    if not isinstance(about, Mapping) or "engine" not in about:
        return _run_all("the output was not written by Gipfel's engine")
    _check_parameters(notebook, earlier)
    if about.get("kernel") not in {None, kernel}:
        return _run_all(
            f"it ran with the kernel {one_line(str(about.get('kernel')))[:60]!r}, now it is {kernel!r}"
        )
    now = _code_cells(notebook)
    before = [pair for pair in _code_cells(earlier) if ERROR_MARKER not in pair[1].metadata.get("tags", ())]
    unchanged, notes = _finished(now, before)
    pairs = zip(now[:unchanged], before[:unchanged], strict=True)
    kept = {
        new: old for (new, cell), (old, _) in pairs if not _EXECUTED_TAGS & set(cell.metadata.get("tags", ()))
    }
    if unchanged == len(now):
        return ResumePlan(
            kept={new: old for (new, _), (old, _) in zip(now, before, strict=False)}, complete=True
        )
    has_setup = any("setup" in cell.metadata.get("tags", ()) for _, cell in now)
    if kept and not has_setup:
        notes.append("no cell is tagged 'setup': the kernel has no variables of the kept cells")
    return ResumePlan(kept=kept, notes=tuple(notes))


def _finished(now: list[tuple[int, Any]], before: list[tuple[int, Any]]) -> tuple[int, list[str]]:
    """Return how many code cells from the start have finished and are unchanged."""
    for number, (_, cell) in enumerate(now):
        if number >= len(before):
            return number, []
        old = before[number][1]
        finished = old.metadata.get("papermill", {}).get("status") == "completed"
        # The order in the injected cell is that of the command line; its values have already been compared.
        injected = "injected-parameters" in cell.metadata.get("tags", ())
        if finished and old.source != cell.source and not injected:
            line = first_code_line(cell.source)
            return number, [f"cell {number + 1} has changed ({line}): it and all after it run again"]
        if not finished:
            return number, []
    return len(now), []


def _check_parameters(notebook: Any, earlier: Any) -> None:
    now = dict(notebook.metadata.get("papermill", {}).get("parameters", {}))
    before = dict(earlier.metadata.get("papermill", {}).get("parameters", {}))
    for name in sorted(set(now) | set(before)):
        old, new = before.get(name, "its default"), now.get(name, "its default")
        # NaN is not equal to itself.
        if old != new and repr(old) != repr(new):
            raise GipfelError(
                f"The output can't be resumed: {name} was {_short(old)} and is {_short(new)}.",
                "Give the same parameters, or run it without --resume.",
            )


def _code_cells(notebook: Any) -> list[tuple[int, Any]]:
    return [(index, cell) for index, cell in enumerate(notebook.cells) if cell.cell_type == "code"]


def _run_all(why: str) -> ResumePlan:
    return ResumePlan(notes=(f"{why}: every cell runs",))


def _short(value: object) -> str:
    return one_line(str(value))[:60]
