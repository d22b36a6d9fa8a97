"""Rendezvous of a launch's ranks: its address and port, determined on the host from the list of nodes."""

import asyncio
import random
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from gipfel_cluster.model import GipfelError
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
