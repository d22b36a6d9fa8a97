"""Execution of one notebook in this process."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

from gipfel_cluster.model import GipfelError, one_line

from .notebook_file import escape_braces, find_kernel, kernel_of
from .progress import Outcome, Progress

__all__ = ["Outcome", "Progress", "run_notebook"]


def run_notebook(
    notebook: Path,
    output: Path,
    parameters: Mapping[str, Any] | None = None,
    *,
    resume: bool = False,
    strict: bool = False,
    kernel: str = "",
    directory: Path | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    log_output: bool = False,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    start_timeout_s: int = 60,
    cell_timeout_s: int | None = None,
    autosave_s: int = 5,
) -> Outcome:
    """Run a notebook with papermill in this process, and write the executed notebook to `output`.

    Every finished cell is saved, and the progress is written to a file (`progress.read_progress`). In the
    main thread SIGTERM, SIGHUP and Ctrl-C interrupt the kernel, save everything and end the run.

    Parameters
    ----------
    parameters
        Names and values for the cell tagged ``parameters``.
    resume
        Start at the first cell that `output` has not finished; see `progress` for the rules.
    strict
        Allow only parameters that the notebook's ``parameters`` cell sets.
    kernel
        Name of a kernel; by default that of the notebook. It gets the environment of this process.
    directory
        Working directory of the kernel; by default the current directory.
    on_progress
        Called at each change, in the caller's thread.
    log_output
        Whether the output of cells is also written to the logger ``papermill``.
    stdout, stderr
        Streams to which the output of cells is also written.
    start_timeout_s, cell_timeout_s, autosave_s
        Time limits in seconds for the start of the kernel and for each cell (None: no limit), and seconds
        between two saves while a cell is running (0: never).

    Raises
    ------
    GipfelError
        No cell was run: the notebook, a parameter, the kernel or `output` can't be used, or `output` can't be
        resumed.
    """
    import papermill  # noqa: PLC0415 - a second
    from papermill.engines import papermill_engines  # noqa: PLC0415
    from papermill.exceptions import PapermillException  # noqa: PLC0415

    from .engine import NAME, GipfelEngine  # noqa: PLC0415 - it takes papermill

    papermill_engines.register(NAME, GipfelEngine)
    name = kernel or kernel_of(notebook)
    find_kernel(name)
    last: list[Progress] = []

    def on_update(progress: Progress) -> None:
        last[:] = [progress]
        if on_progress is not None:
            on_progress(progress)

    signal = 0
    try:
        papermill.execute_notebook(
            escape_braces(notebook),
            escape_braces(output),
            dict(parameters or {}),
            engine_name=NAME,
            kernel_name=kernel or None,
            cwd=str(directory) if directory else None,
            progress_bar=False,
            log_output=log_output,
            stdout_file=stdout,
            stderr_file=stderr,
            start_timeout=start_timeout_s,
            execution_timeout=cell_timeout_s,
            autosave_cell_every=autosave_s,
            resume=resume,
            strict=strict,
            on_progress=on_update,
        )
    except SystemExit as ended:
        if not last:
            raise
        signal = int(ended.code or 0) - 128
    except GipfelError:
        raise
    except PapermillException as error:
        if not last:
            raise GipfelError(f"The notebook can't be run: {one_line(str(error))[:300]}.") from error
    except Exception as error:
        if not last or last[0].state == "running":
            why = one_line(f"{type(error).__name__}: {error}")[:300]
            raise GipfelError(f"The notebook can't be run: {why}.") from error
    progress = last[0]
    return Outcome(
        state=progress.state,
        output=output,
        progress=progress,
        problem=progress.problem,
        cell=progress.current if progress.state != "completed" else None,
        signal=max(0, signal),
    )
