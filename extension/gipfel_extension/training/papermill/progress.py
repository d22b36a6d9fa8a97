"""Progress and outcome of a notebook's run, in a small file next to its output."""

import json
import os
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from gipfel_cluster.model import Frozen, one_line

from ...telemetry.files import read_regular

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


class Outcome(Frozen):
    """Outcome of a notebook's run: ``problem`` is empty if it completed, else one line.

    ``cell`` is the number, from 1, of the code cell in which the run ended. ``signal`` is the number of the
    signal that interrupted it, else 0.
    """

    state: State
    output: Path
    progress: Progress
    problem: str = ""
    cell: int | None = None
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
    path = progress_file(output)
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        # Lone surrogates in the text of a cell become question marks.
        text = json.dumps(progress.model_dump(), ensure_ascii=False)
        file.write(text.encode(errors="replace").decode() + "\n")
    temporary.replace(path)


def read_progress(output: Path) -> Progress | None:
    """Return the progress of a notebook's run; None if the file is missing or unreadable."""
    try:
        return Progress.model_validate_json(read_regular(progress_file(output), _MAX_BYTES))
    except (OSError, ValidationError):
        return None


def first_code_line(source: str) -> str:
    """Return the first non-blank line of a cell, at most 80 characters."""
    lines = (one_line(line) for line in source.splitlines())
    return next((line for line in lines if line), "")[:_MAX_LINE]
