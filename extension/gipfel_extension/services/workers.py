"""Workers of a part on the further nodes of its job; the part itself runs on the first.

Each worker is a step in the container of the job's EDF. Programs on several nodes connect to each other by
TCP, which only the programs themselves can protect from other users of the nodes.
"""

import asyncio
import random
import socket
from collections.abc import Mapping
from pathlib import Path

from gipfel_cluster.edf.gate import Gate
from gipfel_cluster.model import GipfelError
from gipfel_cluster.regular_files import last_line
from gipfel_cluster.steps import StepHandle, StepSpec, start_step
from gipfel_cluster.steps.container import job_nodes
from gipfel_cluster.workloads.submission import submission_context

from .blueprint import Part
from .plan import resolve_part

# Below the range of ephemeral ports, so that no outgoing connection takes the port before it is used.
_FIRST, _LAST, _TRIES = 20000, 32000, 200
_GRACE_S = 15.0
#: Values of a blueprint's placeholders ``${nodes.*}`` for a service on one node; nothing listens on the port.
ONE_NODE = {"nodes.count": "1", "nodes.rank": "0", "nodes.first": "127.0.0.1", "nodes.port": "29501"}
LOGS = "workers"


class JobNodes:
    """The nodes of a service's job; `references` has values of the placeholders ``${nodes.*}``."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.names = job_nodes(environment)
        self._address = "127.0.0.1" if len(self.names) == 1 else _address(self.names[0], environment)
        self._port = _free_port()

    def references(self, rank: int) -> dict[str, str]:
        """Return the placeholders' values for the node with this number in the job."""
        return {
            "nodes.count": str(len(self.names)),
            "nodes.rank": str(rank),
            "nodes.first": self._address,
            "nodes.port": str(self._port),
        }


class Workers:
    """Running workers of one part.

    Example
    -------
    ``workers = Workers(folder, environment)``, ``workers.start(part, nodes, references, own, gate)``, from
    time to time ``workers.problem()``, at the end ``workers.stop()``.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        run = environment.get("GIPFEL_RUN")
        self._folder, self._environment = (Path(run) if run else folder) / LOGS, environment
        self._steps: dict[str, StepHandle] = {}

    def start(
        self,
        part: Part,
        nodes: JobNodes,
        references: Mapping[str, str],
        own: Mapping[str, str],
        gate: Gate | None,
    ) -> None:
        """Start the part's worker on each further node, with ``own`` added to the part's environment.

        Raises
        ------
        GipfelError
            A step can't be started.
        """
        worker = part.model_copy(update={"command": part.workers})
        for rank, node in enumerate(nodes.names[1:], start=1):
            argv, variables = resolve_part(worker, {**references, **nodes.references(rank)})
            spec = StepSpec(
                command=argv,
                nodes=(node,),
                environment={**variables, **own},
                folder=str(self._folder / node),
                name=f"worker-{node}",
                network=gate,
                grace_s=_GRACE_S,
            )
            self._steps[node] = start_step(spec, self._environment)

    def problem(self) -> str:
        """Return a message about the first worker that has ended; empty while all run."""
        for node, step in self._steps.items():
            status = step.poll()
            if status is not None:
                why = step.state.problem or last_line(self._folder / node / "node-0.log")
                return f"The worker on {node} ended with status {status}: {why or 'it wrote nothing'}"
        return ""

    def stop(self) -> None:
        """End all workers."""
        for step in self._steps.values():
            step.signal(15)
        for step in self._steps.values():
            step.stop()
        self._steps.clear()


def _address(node: str, environment: Mapping[str, str]) -> str:
    """Return the numeric address of a node, because the workers' images may not resolve names."""
    try:
        context = submission_context(environment)
        name = asyncio.run(context.scheduler(context.default_setting("scheduler")).address(node))
        return str(socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise GipfelError(f"The node {node} has no address for other nodes: {error}.") from error


def _free_port() -> int:
    for _ in range(_TRIES):
        port = random.randrange(_FIRST, _LAST)  # noqa: S311 - not a secret
        with socket.socket() as tried:
            try:
                tried.bind(("", port))
            except OSError:
                continue
            return port
    raise GipfelError("No free port was found on this node.")
