"""PyTorch's own launcher: authenticated c10d rendezvous, failed ranks start again, elastic."""

from typing import Literal

from .protocol import PROGRAM, SAME_PYTHON, Attempt


class Torchrun:
    """``torch.distributed.run`` on each node, started by `PROGRAM` with the ranks' own Python."""

    name: str = "torchrun"
    per: Literal["node", "rank"] = "node"
    restarts_itself: bool = True
    needs: tuple[str, ...] = ("torch",)

    def command(self, attempt: Attempt, node_rank: int) -> tuple[str, ...]:
        """The argv on a node.

        The node that hosts the store is told so: torch compares names, which differ on many clusters. Source:
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
            f"--rdzv-conf=is_host={hosts},join_timeout={attempt.join_s},last_call_timeout={attempt.gather_s:g}",
            f"--local-addr={attempt.addresses[node_rank]}",
            f"--max-restarts={attempt.restarts}",
            "--monitor-interval=0.5",
            *(["--numa-binding=node"] if attempt.gpu_bound else []),
            PROGRAM,
            "rank",
        )
