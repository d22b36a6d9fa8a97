"""How a notebook's run ended."""

from pathlib import Path

from gipfel_cluster.model import Frozen

from .progress import Progress, State

#: Exit statuses of the command that runs a notebook; 138 is papermill's own for a dead kernel.
STATUS: dict[State, int] = {"completed": 0, "failed": 1, "died": 138, "interrupted": 130}


class Outcome(Frozen):
    """How a notebook's run ended: ``problem`` is empty where it completed, else one line.

    ``cell`` is the number of the cell where it ended among the code cells, from 1. ``signal`` is the number
    of the signal that interrupted it, else 0.
    """

    state: State
    output: Path
    progress: Progress
    problem: str = ""
    cell: int | None = None
    signal: int = 0

    @property
    def exit_status(self) -> int:
        """What a command that only runs the notebook exits with; 128 + n after signal n."""
        return 128 + self.signal if self.signal else STATUS[self.state]
