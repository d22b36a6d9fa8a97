"""Put a command behind a gate: `gated_invocation` renders it with the gate's variables and process."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..edf.gate import INHERITED, MODE, Gate, Gates, gates_of
from ..edf.model import Edf
from ..engines.protocol import ContainerRequest, Engine, Invocation
from ..hooks import engine_invocation
from ..model import GipfelError, one_line
from ..runs import write_atomically
from ..runtime import Runtime
from . import INSIDE, inside_ranges
from .log import CLOSED, DIRECTORY, OUTSIDE, GateLog

#: Environment variable with the plan of a gate as JSON, for `__main__`.
PLAN_VARIABLE = "GIPFEL_GATE_PLAN"
PROXY_PORT = 3128
#: Engines whose containers are children of the process that starts them, and so stay in its namespaces.
_ENGINES = ("host", "bubblewrap")
_PROXY = f"http://127.0.0.1:{PROXY_PORT}"
VARIABLES: dict[str, str] = {
    **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), _PROXY),
    **dict.fromkeys(("no_proxy", "NO_PROXY"), "localhost,127.0.0.1,::1"),
    # lo is the only interface; libraries skip it unless these variables name it.
    **dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"), "lo"),
    "GIPFEL_GATE": "1",
}


def applied_gates(
    edf: Edf,
    environment: Mapping[str, str],
    own: Gate | None,
    *,
    engine: str,
    nodes: int = 1,
    tasks: int = 1,
    unreachable: str = "",
) -> tuple[Gates | None, str]:
    """Return the gates of a command that starts now, and why it runs outside of them (empty if it does not).

    The gates are None if none is declared, or if the command runs outside of them.

    Parameters
    ----------
    own
        The gate that the launch or job itself declares.
    nodes, tasks
        Number of nodes of the command, and of its tasks on each; all tasks connect with each other.
    unreachable
        For a command that others must connect to, the problem with a gate as a sentence; else empty.

    Raises
    ------
    GipfelError
        The command can't run behind a gate, and the mode is ``refuse``.
    """
    gates = gates_of(edf.annotations, environment, own)
    if gates is None:
        return None, ""
    problem = gate_problem(engine, nodes=nodes, tasks=tasks, unreachable=unreachable)
    if not problem:
        return gates, ""
    if gates.mode == "refuse":
        raise GipfelError(problem, f"Change that, or set {MODE} to warn: it then runs outside of the gate.")
    return None, problem


def gated_invocation(
    request: ContainerRequest,
    engine: Engine,
    environment: Mapping[str, str],
    own: Gate | None = None,
    *,
    runtime: Runtime,
    python: str,
    run: str,
    node: str,
    program: str,
    nodes: int = 1,
    tasks: int = 1,
    unreachable: str = "",
) -> Invocation:
    """Render a request behind the gates that apply to it, or with a note on why it runs outside of them.

    Parameters
    ----------
    environment
        Variables, in which the site declares gates; other parameters are those of `applied_gates` and
        `gate_invocation`.
    program
        What runs, for the log of a command outside of its gates: ``rank 3``, ``the kernel``.

    Raises
    ------
    GipfelError
        As for `applied_gates`, `gate_invocation` and `engine_invocation`.
    """
    gates, outside = applied_gates(
        request.edf, environment, own, engine=engine.name, nodes=nodes, tasks=tasks, unreachable=unreachable
    )
    if gates:
        request = gate_request(request)
    invocation = engine_invocation(request, engine, python=python, runtime=runtime)
    if gates:
        return gate_invocation(invocation, gates, run=run, node=node, python=python)
    if outside:
        notes = (*invocation.notes, record_outside(run, node, program, outside))
        invocation = invocation.model_copy(update={"notes": notes})
    return invocation


def gate_problem(engine: str, *, nodes: int = 1, tasks: int = 1, unreachable: str = "") -> str:
    """Return why a command can't run behind a gate, as a sentence; empty if it can."""
    if unreachable:
        return unreachable
    if nodes > 1:
        return (
            f"A launch on {nodes} nodes can't run behind a gate: its ranks connect over the nodes' own "
            "network, which a gate does not have."
        )
    if tasks > 1:
        return (
            f"{tasks} tasks that Slurm starts one by one can't run behind a gate: each would have a network "
            "of its own. The launcher torchrun starts them together."
        )
    if engine not in _ENGINES:
        return f"Containers of the engine {engine} can't run behind a gate: another process starts them."
    return ""


def gate_request(request: ContainerRequest) -> ContainerRequest:
    """Return the request with the variables of the gate's proxy, which neither image nor EDF can change."""
    return request.model_copy(
        update={
            "environment": request.environment | VARIABLES,
            "protected": (*request.protected, *VARIABLES),
        }
    )


def with_gates(request: ContainerRequest, environment: Mapping[str, str]) -> ContainerRequest:
    """Return the request with the gates of EDF and site in a variable, for what its command starts itself."""
    gates = gates_of(request.edf.annotations, environment)
    if gates is None:
        return request
    variables = request.environment | {INHERITED: gates.model_dump_json()}
    return request.model_copy(update={"environment": variables, "protected": (*request.protected, INHERITED)})


def gate_invocation(
    invocation: Invocation, gates: Gates, *, run: str, node: str, python: str | Sequence[str]
) -> Invocation:
    """Return the process that enters the gates and then becomes the process of the invocation.

    Parameters
    ----------
    run
        The run folder, or another directory in which ``gate/`` is created; empty to write no log.
    python
        A Python of the host with Gipfel's packages, as a path or as the first words of an argv.

    Raises
    ------
    GipfelError
        The site's list of the cluster's address ranges is not valid.
    """
    try:
        inside_ranges(invocation.environment)
    except ValueError as error:
        raise GipfelError(
            f"The gate can't be made: {INSIDE} is not a list of address ranges: {error}.",
            "Write ranges such as 10.0.0.0/8, separated by spaces.",
        ) from error
    words = (python,) if isinstance(python, str) else tuple(python)
    plan = json.dumps(
        {
            "gates": gates.model_dump(mode="json"),
            # A property, which the dump leaves out: the ports on which the gate listens.
            "ports": gates.ports,
            "folder": str(Path(run, DIRECTORY)) if run else "",
            "node": node,
        }
    )
    return invocation.model_copy(
        update={
            "argv": (*words, "-I", "-m", "gipfel_cluster.egress", *invocation.argv),
            "environment": invocation.environment | {PLAN_VARIABLE: plan},
            "notes": (*invocation.notes, f"The network is behind a gate, which allows {gates}."),
        }
    )


def record_outside(run: str, node: str, program: str, problem: str) -> str:
    """Record in the gate log that a program runs outside of its declared gates; return this as a sentence."""
    folder = Path(run, DIRECTORY) if run else None
    # In place of a destination: the program, without a port.
    GateLog(folder, node).note(program, 0, OUTSIDE, allowed=True, reason=problem)
    return f"Outside of the gate: {program} on {node}. {problem}"


def close_gates(run: Path, by: str, reason: str, time_ns: int) -> None:
    """End the network of all gates of a run; they notice it within two seconds.

    Raises
    ------
    OSError
        The file can't be written.
    """
    folder = run / DIRECTORY
    folder.mkdir(mode=0o700, exist_ok=True)
    content = {"by": one_line(by)[:100], "reason": one_line(reason)[:300], "time_ns": time_ns}
    write_atomically(folder / CLOSED, json.dumps(content) + "\n")
