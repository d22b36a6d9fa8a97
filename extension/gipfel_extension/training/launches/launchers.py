"""Programs that start the ranks on a node, by their names: torchrun, srun and accelerate.

A launcher turns an `Attempt`, in which nodes, addresses and port are decided, into an argv for each node. It
starts nothing itself. To add one: a class here, a line in `LAUNCHERS`, a word in `record.spec.LaunchSpec`.
"""

from collections.abc import Callable
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
    the store. ``gpu_bound`` is whether ranks have GPUs, near which they must run.
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
    join_timeout_s: float = 30.0

    @property
    def endpoint(self) -> str:
        """Return address and port of the store."""
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
        """Return the argv on a node; `SAME_PYTHON` and `PROGRAM` are filled in there."""


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


class Torchrun:
    """``torch.distributed.run`` on each node, started by `PROGRAM` with the ranks' own Python."""

    name: str = "torchrun"
    per: Literal["node", "rank"] = "node"
    restarts_itself: bool = True
    needs: tuple[str, ...] = ("torch",)

    def command(self, attempt: Attempt, node_rank: int) -> tuple[str, ...]:
        """Return the argv on a node.

        The node that hosts the store gets ``is_host=1``: torch compares names, which differ on many clusters.
        Source:
        ``_matches_machine_hostname`` in torch's ``elastic/rendezvous/utils.py``.
        """
        most = len(attempt.nodes)
        span = str(most) if attempt.nodes_min == most else f"{attempt.nodes_min}:{most}"
        hosts = int(node_rank == 0)
        return (
            SAME_PYTHON,
            PROGRAM,
            "torch.distributed.run",
            f"--nnodes={span}",
            f"--nproc-per-node={attempt.ranks_per_node}",
            "--rdzv-backend=gipfel",
            f"--rdzv-endpoint={attempt.endpoint}",
            f"--rdzv-id={attempt.run_id}",
            f"--rdzv-conf=is_host={hosts},join_timeout={attempt.join_s},last_call_timeout={attempt.join_timeout_s:g}",
            f"--local-addr={attempt.addresses[node_rank]}",
            f"--max-restarts={attempt.restarts}",
            "--monitor-interval=0.5",
            *(["--numa-binding=node"] if attempt.gpu_bound else []),
            PROGRAM,
            "rank",
        )


class Srun:
    """One task a rank; the program sets RANK and the others itself, from its task."""

    name: str = "srun"
    per: Literal["node", "rank"] = "rank"
    restarts_itself: bool = False
    needs: tuple[str, ...] = ()

    def command(self, attempt: Attempt, node_rank: int) -> tuple[str, ...]:  # noqa: ARG002 - the Protocol's
        """Return the argv of every rank."""
        return (SAME_PYTHON, PROGRAM, "rank")


class Accelerate:
    """``accelerate launch`` on each node, with a static rendezvous."""

    name: str = "accelerate"
    per: Literal["node", "rank"] = "node"
    restarts_itself: bool = False
    needs: tuple[str, ...] = ("torch", "accelerate")

    def command(self, attempt: Attempt, node_rank: int) -> tuple[str, ...]:
        """Return the argv on a node."""
        ranks = len(attempt.nodes) * attempt.ranks_per_node
        return (
            SAME_PYTHON,
            "-m",
            "accelerate.commands.launch",
            # Without GPUs, too, it is the way to several processes.
            *(["--multi_gpu"] if ranks > 1 else []),
            f"--num_machines={len(attempt.nodes)}",
            f"--num_processes={ranks}",
            f"--machine_rank={node_rank}",
            f"--main_process_ip={attempt.addresses[0]}",
            f"--main_process_port={attempt.port}",
            "--rdzv_backend=static",
            "--same_network",
            "--mixed_precision=no",
            "--dynamo_backend=no",
            PROGRAM,
            "rank",
        )


LAUNCHERS: dict[str, Callable[[], Launcher]] = {
    "torchrun": Torchrun,
    "srun": Srun,
    "accelerate": Accelerate,
}


def launcher_of(name: str) -> Launcher:
    """Return the launcher of a name of `LAUNCHERS`."""
    return LAUNCHERS[name]()
