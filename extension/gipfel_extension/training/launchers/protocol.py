"""What a launcher is asked: the command on each node of an attempt; nothing here starts a process."""

from typing import Literal, Protocol

from pydantic import Field

from gipfel_cluster.model import Frozen, GipfelError

#: In a command, the interpreter that runs it inside the container.
SAME_PYTHON = "{python}"
#: In a command, the program of the ranks, as the container sees it.
PROGRAM = "{program}"


class Attempt(Frozen):
    """One start of a launch's ranks, as everything about it was decided on the host.

    ``nodes`` are names and ``addresses`` where they reach each other, in the same order; the first one hosts
    the store. ``gpu_bound`` is whether ranks have GPUs, near which they shall run.
    """

    number: int = 0
    nodes: tuple[str, ...] = Field(min_length=1)
    addresses: tuple[str, ...] = Field(min_length=1)
    port: int = Field(ge=1, le=65535)
    ranks_per_node: int = Field(ge=1)
    nodes_min: int = Field(1, ge=1)
    restarts: int = 0
    run_id: str = "gipfel"
    gpu_bound: bool = False
    join_s: int = 600
    gather_s: float = 30.0

    @property
    def endpoint(self) -> str:
        """Address and port of the store."""
        host = self.addresses[0]
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


class Launcher(Protocol):
    """Turns an attempt into one argv for each node, or for each rank."""

    name: str
    #: ``node``: one process a node starts the ranks; ``rank``: Slurm starts every one.
    per: Literal["node", "rank"]
    #: Whether it starts failed ranks again itself.
    restarts_itself: bool
    #: What the image's Python must be able to import.
    needs: tuple[str, ...]

    def command(self, attempt: Attempt, node_rank: int) -> tuple[str, ...]:
        """The argv on a node; `SAME_PYTHON` and `PROGRAM` are filled in there."""


def check_attempt(attempt: Attempt) -> None:
    """Refuse an attempt whose ranks could not find each other.

    Raises
    ------
    GipfelError
        Several nodes, and the store's address is one that every node takes for itself.
    """
    host = attempt.addresses[0]
    if len(attempt.nodes) > 1 and (host in {"localhost", "::1", "0.0.0.0", ""} or host.startswith("127.")):  # noqa: S104
        raise GipfelError(
            f"The node {attempt.nodes[0]} is known here as {host} only, where no other node reaches it.",
            "Ask the cluster's administrators for an address of the node in Slurm or in /etc/hosts.",
        )
