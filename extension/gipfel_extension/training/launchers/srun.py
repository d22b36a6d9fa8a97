"""Plain Slurm tasks: every rank is one, and finds the others by MASTER_ADDR and MASTER_PORT."""

from typing import Literal

from .protocol import PROGRAM, SAME_PYTHON, Attempt


class Srun:
    """One task a rank; the program sets RANK and the others itself, from its task."""

    name: str = "srun"
    per: Literal["node", "rank"] = "rank"
    restarts_itself: bool = False
    needs: tuple[str, ...] = ()

    def command(self, attempt: Attempt, node_rank: int) -> tuple[str, ...]:  # noqa: ARG002 - the Protocol's
        """The argv of every rank."""
        return (SAME_PYTHON, PROGRAM, "rank")
