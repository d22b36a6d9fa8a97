"""Execution manager for papermill, which records the state of each cell and saves the notebook."""

import contextlib
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nbformat
from papermill.engines import NotebookExecutionManager
from papermill.exceptions import PapermillExecutionError

from gipfel_cluster.model import one_line

from .output import Document, Saver, try_write
from .progress import Progress, ResumePlan, State, first_code_line, report_line, write_progress


class Manager(NotebookExecutionManager):  # type: ignore[misc]
    """Papermill's manager, which saves in the background and keeps cells of an earlier run.

    When a cell ends, the saver writes its outputs in the background, and the end of the next cell waits for
    this write. A crash of this process or node can lose only the outputs of the running cell and of the cell
    before it.

    Parameters
    ----------
    write
        Function that writes the notebook's text; None without an output.
    local
        Path of the output, next to which the progress is written; None for a remote output.
    plan, earlier
        Cells that are kept, and the notebook that they are from.
    """

    def __init__(
        self,
        notebook: Any,
        *,
        write: Callable[[str], None] | None,
        local: Path | None,
        plan: ResumePlan,
        earlier: Any,
        **options: Any,
    ) -> None:
        super().__init__(notebook, **options)
        self.plan = plan
        self.state: State = "running"
        self.problem = ""
        self.failed: int | None = None
        self._earlier = earlier
        self._local = local
        self._document: Document | None = None
        self._write = write
        self._saver: Saver | None = None
        self._finished_version = 0
        self._current: int | None = None
        self._current_started = ""
        self._started_at = time.monotonic()
        code_cells = [i for i, cell in enumerate(self.nb.cells) if cell.get("cell_type") == "code"]
        self._numbers = {i: number for number, i in enumerate(code_cells, 1)}
        self._done: set[int] = set()
        self._aborted = False
        self._final_progress: Progress | None = None

    def notebook_start(self, **options: Any) -> None:
        """Clear the outputs of an earlier run except kept cells, and save.

        Raises
        ------
        OSError
            The notebook can't be saved; no cell has run.
        """
        super().notebook_start(**options)
        for new, old in self.plan.kept.items():
            cell, before = self.nb.cells[new], self._earlier.cells[old]
            cell.outputs, cell.execution_count = before.outputs, before.execution_count
            cell.metadata.papermill = before.metadata.papermill
            self._done.add(new)
        # nbformat validates the notebook and adds missing fields.
        nbformat.writes(self.nb)  # type: ignore[no-untyped-call]
        self._document = Document(self.nb)
        if self._write is not None:
            if (error := try_write(self._state(self._document))) is not None:
                raise error
            self._saver = Saver(report_line)

    def cell_start(self, cell: Any, cell_index: int | None = None, **options: Any) -> None:
        """Record that a cell starts."""
        self._current, self._current_started = cell_index, _now()
        super().cell_start(cell, cell_index, **options)
        self.cell_changed(cell_index)
        self._save_state(urgent=False)

    def cell_complete(self, cell: Any, cell_index: int | None = None, **options: Any) -> None:
        """Record that a cell has ended, and wait until the cell before it is saved."""
        super().cell_complete(cell, cell_index, **options)
        if cell_index is not None and cell.metadata.papermill["status"] == self.COMPLETED:
            self._done.add(cell_index)
            self._current = None
        self.cell_changed(cell_index)
        version = self._save_state(urgent=True)
        if self._saver is not None:
            self._saver.wait(self._finished_version)
        self._finished_version = version

    def cell_aborted(
        self, cell: Any, cell_index: int, state: State, output: Mapping[str, Any] | None
    ) -> None:
        """Record that a cell was aborted: by a dead kernel, its time limit, or a signal."""
        self.state, self.failed = state, cell_index
        super().cell_exception(cell, cell_index)
        if output is not None:
            cell.outputs.append(nbformat.from_dict(dict(output)))  # type: ignore[no-untyped-call]
        self.cell_changed(cell_index)

    def cell_exception(self, cell: Any, cell_index: int | None = None, **options: Any) -> None:
        """Record that a cell has failed."""
        self.state, self.failed = "failed", cell_index
        error = options.get("exception")
        if getattr(error, "ename", "") == "SystemExit" and getattr(error, "evalue", "") in {"", "0"}:
            # The notebook has ended itself, which papermill treats as success.
            self.state, self.failed = "completed", None
        else:
            what = f"{getattr(error, 'ename', 'error')}: {getattr(error, 'evalue', '')}"
            self.problem = one_line(f"cell {self.number_of(cell_index)} failed: {what}")[:240]
        super().cell_exception(cell, cell_index, **options)
        self.cell_changed(cell_index)

    def notebook_complete(self, **options: Any) -> None:
        """Record that the run has ended."""
        if self.state == "running":
            about = (cell.metadata.papermill for cell in self.nb.cells)
            is_complete = all(each.get("status") == self.COMPLETED for each in about)
            self.state = "completed" if is_complete else "interrupted"
        super().notebook_complete(**options)
        if self.state != "completed":
            self._mark_pending()
        elif (allowed := _allowed_error(self.nb)) is not None:
            # Papermill continues after an error that a tag allows, and fails at the end of the notebook.
            index, output = allowed
            self.state, self.failed = "failed", index
            what = one_line(f"{output.ename}: {output.evalue}")[:200]
            self.problem = f"cell {self.number_of(index)} was allowed to fail: {what}"

    def save(self, **_options: Any) -> None:
        """Only record the time: the other callbacks pass changes to the saver."""
        self.last_save_time = self.now()

    def autosave_cell(self, **_options: Any) -> None:
        """Save the output of the running cell every ``autosave_cell_every`` seconds."""
        if self.autosave_cell_every == 0 or self._current is None:
            return
        if (self.now() - self.last_save_time).total_seconds() >= self.autosave_cell_every:
            self.save()
            self.cell_changed(self._current)
            self._save_state(urgent=True)

    def checkpoint(self) -> None:
        """Wait until everything is written."""
        if self._document is not None:
            self._document = Document(self.nb)
        version = self._save_state(urgent=True)
        if self._saver is not None:
            self._saver.wait(version)

    def abort(self, error: Exception) -> None:
        """Record that the run has ended because of an error outside of its cells."""
        if self.state == "running":
            self.state = "failed"
            self.problem = one_line(f"{type(error).__name__}: {error}")[:240]
        self._aborted = True

    def close(self) -> None:
        """Write the final state and stop saving.

        Raises
        ------
        OSError
            The notebook could not be written.
        """
        if self._document is not None:
            self._final_progress = self.progress()
            if self._aborted and self.failed is not None:
                _mark_error_cell(self.nb)
            self._document = Document(self.nb)
            self._save_state(urgent=True)
        saver, self._saver = self._saver, None
        if saver is not None:
            saver.close()

    def number_of(self, index: int | None) -> int | None:
        """Return the number of a cell among the code cells, from 1."""
        return None if index is None else self._numbers.get(index)

    def progress(self) -> Progress:
        """Return the progress of the run."""
        if self._final_progress is not None:
            return self._final_progress
        index = self._current if self.failed is None else self.failed
        number = self.number_of(index)
        started = self.start_time.isoformat(timespec="milliseconds") if self.start_time else ""
        return Progress(
            state=self.state,
            cells=len(self._numbers),
            done=len(self._done & set(self._numbers)),
            kept=len(self.plan.kept),
            current=number,
            line=first_code_line(self.nb.cells[index].source) if number and index is not None else "",
            current_started=self._current_started if number else "",
            started=started,
            updated=_now(),
            elapsed=round(time.monotonic() - self._started_at, 3),
            problem=self.problem,
        )

    def _mark_pending(self) -> None:
        """Mark cells that have not started as pending, because papermill marks them as completed."""
        for cell in self.nb.cells:
            about = cell.metadata.papermill
            if about.get("status") == self.COMPLETED and about.get("start_time") is None:
                about["status"] = self.PENDING

    def cell_changed(self, index: int | None) -> None:
        """Mark the outputs of a cell as changed; the cell may have ended."""
        if self._document is not None and index is not None:
            self._document.change(index)

    def _save_state(self, *, urgent: bool) -> int:
        if self._document is None or self._saver is None:
            return 0
        return self._saver.put(self._state(self._document), urgent=urgent)

    def _state(self, document: Document) -> Callable[[], None]:
        """Return a thread-safe function that writes the notebook and its progress as they are now."""
        text, progress, write, local = document.snapshot(), self.progress(), self._write, self._local

        def state() -> None:
            if write is not None:
                write(text())
            if local is not None:
                # Written after the notebook, so that the notebook has every cell that the progress counts.
                write_progress(local, progress)

        return state


def _allowed_error(notebook: Any) -> tuple[int, Any] | None:
    """Return the index of the first cell with an error other than a regular exit, and the error output."""
    for index, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", ()):
            regular_exit = output.get("ename") == "SystemExit" and output.get("evalue") in {"", "0"}
            if output.output_type == "error" and not regular_exit:
                return index, output
    return None


def _mark_error_cell(notebook: Any) -> None:
    """Insert papermill's marker before the cell where the run was aborted, as before a failed cell."""
    from papermill.execute import raise_for_execution_errors  # noqa: PLC0415 - it imports the engines

    with contextlib.suppress(PapermillExecutionError):
        raise_for_execution_errors(notebook, None)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
