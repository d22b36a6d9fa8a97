"""Launchers of ranks (torchrun, srun, accelerate), and the address and port at which the ranks meet."""

import asyncio
import random
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol

from pydantic import Field

from gipfel_cluster.model import Frozen, GipfelError
from gipfel_cluster.scheduler import SlurmScheduler
from gipfel_cluster.steps import PYTHON, StepJob, StepSpec, start_step

from ...telemetry.files import read_tail

# Below the range of ephemeral ports, so that no outgoing connection takes the port before it is used.
_FIRST, _LAST = 20000, 32000
_TRIES = 200
_PROBE_S = 60.0
_MAX_LOG_BYTES = 64 << 10
_PROBE = (
    "import random, socket\n"
    "for _ in range(200):\n"
    "    port = random.randrange({first}, {last})\n"
    "    try:\n"
    "        with socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET) as s:\n"
    "            s.bind(('', port))\n"
    "    except OSError:\n"
    "        continue\n"
    "    print('port', port, flush=True)\n"
    "    break\n"
)
#: Placeholder in a command for the interpreter inside the container.
SAME_PYTHON = "{python}"
#: Placeholder in a command for the path of `rank_program` inside the container.
PROGRAM = "{program}"


def addresses_of(nodes: Sequence[str], environment: Mapping[str, str], *, slurm: bool) -> tuple[str, ...]:
    """Return the addresses at which the nodes reach each other; loopback only for a single node.

    Raises
    ------
    GipfelError
        A node has no address that other nodes can reach.
    """
    if len(nodes) == 1:
        return ("127.0.0.1",)
    return asyncio.run(_addresses(nodes, environment, slurm=slurm))


async def _addresses(nodes: Sequence[str], environment: Mapping[str, str], *, slurm: bool) -> tuple[str, ...]:
    scheduler = SlurmScheduler(environment=environment)
    found = []
    for node in nodes:
        name = await scheduler.address(node) if slurm else node
        found.append(await asyncio.to_thread(_resolved, name, node))
    return tuple(found)


def _resolved(name: str, node: str) -> str:
    """Return a numeric address, because a container may not resolve names; IPv4 is preferred."""
    try:
        answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise GipfelError(
            f"The node {node} has no address: {name} can't be resolved.",
            "Contact the cluster's administrators.",
        ) from error
    numeric = [str(each[4][0]) for each in sorted(answers, key=lambda each: each[0] != socket.AF_INET)]
    usable = [each for each in numeric if not each.startswith("127.") and each != "::1"]
    if not usable:
        raise GipfelError(
            f"The node {node} resolves only to {numeric[0]}, which other nodes can't reach.",
            "Give it another address in /etc/hosts, or set NodeAddr in Slurm's configuration.",
        )
    return usable[0]


def free_port(node: str, setting: StepJob, folder: Path, environment: Mapping[str, str]) -> int:
    """Return a free port of the node that hosts the store.

    Raises
    ------
    GipfelError
        No free port was found, or the node does not respond.
    """
    if not setting.slurm_job or node in {environment.get("SLURMD_NODENAME"), socket.gethostname()}:
        return _local_free_port()
    program = _PROBE.format(first=_FIRST, last=_LAST)
    log = folder / "port" / "node-0.log"
    log.parent.mkdir(mode=0o700, exist_ok=True)
    log.unlink(missing_ok=True)
    spec = StepSpec(
        command=(PYTHON, "-I", "-c", program),
        folder=str(log.parent),
        nodes=(node,),
        gpus_per_node=0,
        name="port",
        time_limit_s=_PROBE_S,
    )
    plain = setting.model_copy(update={"edf": ""})
    with start_step(spec, environment, job=plain) as step:
        step.wait(_PROBE_S + 30)
    for line in _log_lines(log):
        word, _, number = line.partition(" ")
        if word == "port" and number.isdecimal():
            return int(number)
    raise GipfelError(f"No free port was found on {node}.", "See port/ in the launch's directory.")


def _log_lines(log: Path) -> list[str]:
    try:
        return read_tail(log, _MAX_LOG_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return []


def _local_free_port() -> int:
    for _ in range(_TRIES):
        port = random.randrange(_FIRST, _LAST)  # noqa: S311 - not for security
        family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        with socket.socket(family) as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise GipfelError("No free port was found on this node.", "Stop other launches on this node.")


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


def check_attempt(attempt: Attempt) -> None:
    """Check that the ranks of an attempt can reach its store.

    Raises
    ------
    GipfelError
        The attempt has several nodes, and the address of the store is a loopback address.
    """
    host = attempt.addresses[0]
    if len(attempt.nodes) > 1 and (host in {"localhost", "::1", "0.0.0.0", ""} or host.startswith("127.")):  # noqa: S104
        raise GipfelError(
            f"The node {attempt.nodes[0]} resolves only to {host}, which other nodes can't reach.",
            "Ask the cluster's administrators for an address of the node in Slurm or in /etc/hosts.",
        )


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
