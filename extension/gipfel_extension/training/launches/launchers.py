"""Launchers of ranks (torchrun, srun, accelerate): the command that starts them on a node."""

from collections.abc import Callable
from typing import Literal, NamedTuple

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


def _torchrun(attempt: Attempt, node_rank: int) -> tuple[str, ...]:
    """Return the argv of ``torch.distributed.run``, started through `PROGRAM` with the ranks' own Python.

    The node that hosts the store gets ``is_host=1``, because torch would otherwise compare host names, which
    differ on many clusters. Source: ``_matches_machine_hostname`` in torch's ``elastic/rendezvous/utils.py``.
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


def _srun(_attempt: Attempt, _node_rank: int) -> tuple[str, ...]:
    """Return the argv of every rank; `rank_program` sets RANK and the other variables from the task ID."""
    return (SAME_PYTHON, PROGRAM, "rank")


def _accelerate(attempt: Attempt, node_rank: int) -> tuple[str, ...]:
    """Return the argv of ``accelerate launch`` with a static rendezvous."""
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


class Launcher(NamedTuple):
    """A launcher.

    ``per`` is ``node`` if one process on each node starts the ranks, ``rank`` if Slurm starts each rank.
    ``command`` returns the argv on the node of an index, with the placeholders `SAME_PYTHON` and `PROGRAM`.
    ``needs`` are packages that the image's Python must have.
    """

    per: Literal["node", "rank"]
    command: Callable[[Attempt, int], tuple[str, ...]]
    needs: tuple[str, ...] = ()
    restarts_itself: bool = False
    """True if it restarts failed ranks itself."""


LAUNCHERS = {
    "torchrun": Launcher("node", _torchrun, ("torch",), restarts_itself=True),
    "srun": Launcher("rank", _srun),
    "accelerate": Launcher("node", _accelerate, ("torch", "accelerate")),
}
