"""Hugging Face's launcher, told everything, so that no configuration file of the user's changes it."""

from typing import Literal

from .protocol import PROGRAM, SAME_PYTHON, Attempt


class Accelerate:
    """``accelerate launch`` on each node, with a static rendezvous."""

    name: str = "accelerate"
    per: Literal["node", "rank"] = "node"
    restarts_itself: bool = False
    needs: tuple[str, ...] = ("torch", "accelerate")

    def command(self, attempt: Attempt, node_rank: int) -> tuple[str, ...]:
        """The argv on a node."""
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
