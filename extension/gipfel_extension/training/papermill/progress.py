"""Progress and outcome of a notebook's run, in a small file next to its output; rules for resuming it.

`plan_resume` decides from which cell a run resumes, by these rules, in this order:

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

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from gipfel_cluster.model import Frozen, GipfelError, one_line

from ...telemetry.files import read_regular, replace_file

State = Literal["running", "completed", "failed", "died", "interrupted"]
_MAX_LINE = 80
_MAX_BYTES = 1 << 20
#: Exit statuses of the command that runs a notebook; 138 is papermill's own for a dead kernel.
STATUS: dict[State, int] = {"completed": 0, "failed": 1, "died": 138, "interrupted": 130}


class Progress(Frozen):
    """Progress of a run; times are UTC in ISO 8601, durations seconds.

    ``cells`` is the number of code cells, ``done`` the number of finished ones, and ``kept`` the number of
    those that finished in an earlier run. ``current`` is the number, from 1, of the code cell that is running
    or has failed, None between cells. ``line`` is the first line of its code, ``current_started`` its start.
    """

    state: State = "running"
    cells: int = Field(0, ge=0)
    done: int = Field(0, ge=0)
    kept: int = Field(0, ge=0)
    current: int | None = None
    line: str = ""
    current_started: str = ""
    started: str = ""
    updated: str = ""
    elapsed: float = Field(0.0, ge=0)
    problem: str = ""

    def __str__(self) -> str:
        return f"{self.done} of {self.cells} cells"


class Outcome(Progress):
    """Final progress of a notebook's run: ``problem`` is empty if it completed, else one line.

    ``signal`` is the number of the signal that interrupted it, else 0.
    """

    signal: int = 0

    @property
    def exit_status(self) -> int:
        """Return the exit status of a command that only runs the notebook; 128 + n after signal n."""
        return 128 + self.signal if self.signal else STATUS[self.state]


def progress_file(output: Path) -> Path:
    """Return the path of a notebook's progress: a hidden file in the directory of the output."""
    return output.with_name(f".{output.name}.progress")


def write_progress(output: Path, progress: Progress) -> None:
    """Replace the progress file atomically, but without syncing it to disk as the output."""
    text = json.dumps(progress.model_dump(), ensure_ascii=False)
    # Lone surrogates in the text of a cell become question marks.
    replace_file(progress_file(output), text.encode(errors="replace").decode() + "\n")


def read_progress(output: Path) -> Progress | None:
    """Return the progress of a notebook's run; None if the file is missing or unreadable."""
    try:
        return Progress.model_validate_json(read_regular(progress_file(output), _MAX_BYTES))
    except (OSError, ValidationError):
        return None


def report_line(text: str) -> None:
    """Write a line about a run into the log."""
    sys.stderr.write(f"gipfel: {one_line(text)}\n")


def first_code_line(source: str) -> str:
    """Return the first non-blank line of a cell, at most 80 characters."""
    lines = (one_line(line) for line in source.splitlines())
    return next((line for line in lines if line), "")[:_MAX_LINE]


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
    for number, ((_, cell), (_, old)) in enumerate(zip(now, before, strict=False)):
        finished = old.metadata.get("papermill", {}).get("status") == "completed"
        # The order in the injected cell is that of the command line; its values have already been compared.
        injected = "injected-parameters" in cell.metadata.get("tags", ())
        if finished and old.source != cell.source and not injected:
            line = first_code_line(cell.source)
            return number, [f"cell {number + 1} has changed ({line}): it and all after it run again"]
        if not finished:
            return number, []
    return min(len(now), len(before)), []


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
