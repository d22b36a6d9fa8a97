"""Launchers of ranks (torchrun, srun, accelerate): the command that starts them on a node."""

from collections.abc import Callable
from typing import Literal, Protocol

from pydantic import Field

from gipfel_cluster.model import Frozen

#: Placeholder in a command for the interpreter inside the container.
SAME_PYTHON = "{python}"
#: Placeholder in a command for the path of `rank_program` inside the container.
PROGRAM = "{program}"


class Attempt(Frozen):
    """Parameters of one start of a launch's ranks, determined on the host.

    ``nodes`` are names, and ``addresses`` are their addresses in the same order; the first node hosts the
    store. ``gpu_bound`` is true if ranks have GPUs and must run on the NUMA node of their GPU.
    ``nodes_min`` is the smallest number of nodes, ``restarts`` the number of restarts that are left, and
    ``run_id`` identifies the rendezvous. ``join_s`` is the time limit in seconds for the first nodes to join,
    and ``join_timeout_s`` the seconds for which torchrun then waits for more nodes.
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
    """Interface of a launcher."""

    name: str
    #: ``node``: one process on each node starts the ranks; ``rank``: Slurm starts each rank.
    per: Literal["node", "rank"]
    #: True if the launcher restarts failed ranks itself.
    restarts_itself: bool
    #: Packages that the image's Python must have.
    needs: tuple[str, ...]

    def command(self, attempt: Attempt, node_rank: int) -> tuple[str, ...]:
        """Return the argv on a node, with the placeholders `SAME_PYTHON` and `PROGRAM`."""


class Torchrun:
    """``torch.distributed.run`` on each node, started through `PROGRAM` with the ranks' own Python."""

    name: str = "torchrun"
    per: Literal["node", "rank"] = "node"
    restarts_itself: bool = True
    needs: tuple[str, ...] = ("torch",)

    def command(self, attempt: Attempt, node_rank: int) -> tuple[str, ...]:
        """Return the argv on a node.

        The node that hosts the store gets ``is_host=1``, because torch would otherwise compare host names,
        which differ on many clusters. Source: ``_matches_machine_hostname`` in torch's
        ``elastic/rendezvous/utils.py``.
        """
        most = len(attempt.nodes)
        nodes = str(most) if attempt.nodes_min == most else f"{attempt.nodes_min}:{most}"
        is_host = int(node_rank == 0)
        return (
            SAME_PYTHON,
            PROGRAM,
            "torch.distributed.run",
            f"--nnodes={nodes}",
            f"--nproc-per-node={attempt.ranks_per_node}",
            "--rdzv-backend=gipfel",
            f"--rdzv-endpoint={attempt.endpoint}",
            f"--rdzv-id={attempt.run_id}",
            f"--rdzv-conf=is_host={is_host},join_timeout={attempt.join_s},last_call_timeout={attempt.join_timeout_s:g}",
            f"--local-addr={attempt.addresses[node_rank]}",
            f"--max-restarts={attempt.restarts}",
            "--monitor-interval=0.5",
            *(["--numa-binding=node"] if attempt.gpu_bound else []),
            PROGRAM,
            "rank",
        )


class Srun:
    """One Slurm task for each rank; `rank_program` sets RANK and the other variables from the task ID."""

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
            # Needed for several processes, even without GPUs.
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
    """Return the launcher with a name in `LAUNCHERS`."""
    return LAUNCHERS[name]()
