"""One start of a launch's ranks: where they meet, its steps on the nodes, and how they ended."""

import json
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from gipfel_cluster.model import GipfelError
from gipfel_cluster.ports import free_ports
from gipfel_cluster.regular_files import read_regular, read_tail_lines
from gipfel_cluster.runs import write_atomically
from gipfel_cluster.scheduler import SlurmScheduler
from gipfel_cluster.scheduler.machine import run_sync
from gipfel_cluster.steps import IMAGE_PYTHON, PYTHON, StepHandle, StepJob, StepSpec, start_step
from gipfel_cluster.steps.spec import NODES_VARIABLE, RANKS_VARIABLE
from gipfel_cluster.workloads.directory import MAX_BYTES

from ..record import LaunchState
from ..record.spec import LaunchPlan
from .launchers import LAUNCHERS, Attempt

PROGRAM_FILE, PROBE_FILE, ATTEMPT_FILE = "program.py", "probe.py", "attempt.json"
# Delay in seconds before the step of a node that left is restarted; by then the others run without it.
_REJOIN_S = 40.0
#: Variable with the key of the rendezvous, which is never written to a file or an argument.
_KEY = "GIPFEL_RENDEZVOUS_KEY"
# Below the range of ephemeral ports, so that no outgoing connection takes the port before it is used.
_FIRST, _LAST = 20000, 32000
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
    scheduler = SlurmScheduler(environment=environment)
    names = [run_sync(scheduler.address(node)) if slurm else node for node in nodes]
    return tuple(_resolved(name, node) for name, node in zip(names, nodes, strict=True))


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
    usable = [each for each in numeric if not each.startswith("127.") and each not in {"::1", "0.0.0.0"}]  # noqa: S104
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
        return free_ports("")[0]
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
    for line in read_tail_lines(log, _MAX_LOG_BYTES):
        word, _, number = line.partition(" ")
        if word == "port" and number.isdecimal():
            return int(number)
    raise GipfelError(f"No free port was found on {node}.", "See port/ in the launch's directory.")


def tracking_variables(run: Path, folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return MLflow's variables for a launch from ``tracking.json`` of its job's run; empty without it.

    A launch alone in its job logs to the job's MLflow run; each of several launches in a job has a run of its
    own. The variables do not include the server's token: a program reads ``MLFLOW_TRACKING_TOKEN``, or gets
    it from the file that ``GIPFEL_TRACK_TOKEN_FILE`` names.
    """
    try:
        tracked = json.loads(read_regular(run / "tracking.json", MAX_BYTES))
        own = tracked.get("launches", {}).get(folder.name) if folder.parent.parent == run else None
        found = {
            "MLFLOW_TRACKING_URI": str(tracked["uri"]),
            "MLFLOW_EXPERIMENT_ID": str(tracked["experiment_id"]),
            "MLFLOW_RUN_ID": str(own or tracked["run_id"]),
        }
    except (OSError, ValueError, KeyError, AttributeError, RecursionError):
        return {}
    names = ("GIPFEL_TRACK_TOKEN_FILE",)
    return {**found, **{name: environment[name] for name in names if environment.get(name)}}


class RunningAttempt:
    """Steps of an attempt: one for all nodes, or in an elastic launch one for each node.

    Parameters
    ----------
    state
        State of the launch, with its nodes and their GPUs.
    restarts
        Number of restarts that are left.
    extra
        Additional content of ``attempt.json``.

    Raises
    ------
    GipfelError
        The nodes can't reach each other, or have no free port.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        state: LaunchState,
        *,
        setting: StepJob,
        environment: Mapping[str, str],
        restarts: int,
        extra: Mapping[str, object],
    ) -> None:
        self._plan = plan
        self._setting = setting
        self._environment = environment
        self._gpus = dict(state.gpus)
        self._launcher = LAUNCHERS[plan.spec.launcher]
        self._max_rejoins = plan.spec.restarts if self._launcher.restarts_itself else 0
        spec, job, nodes = plan.spec, setting.slurm_job, state.nodes
        has_devices = any(Path(each).exists() for each in ("/dev/nvidiactl", "/dev/kfd"))
        # The ranks meet at the address and the port of the first node.
        self._attempt = Attempt(
            number=state.attempt,
            nodes=nodes,
            addresses=addresses_of(nodes, environment, slurm=bool(job)),
            port=free_port(nodes[0], setting, Path(plan.host_folder), environment),
            ranks_per_node=spec.gpus_per_node,
            nodes_min=min(spec.nodes_min or len(nodes), len(nodes)),
            restarts=restarts,
            run_id=f"{job or 'here'}-{state.number}-{state.attempt}",
            gpu_bound=bool(state.gpus) and has_devices,
            join_timeout_s=spec.join_timeout_s,
        )
        self._key = secrets.token_hex(32)
        self._left_at: dict[str, float] = {}
        self.rejoined = 0
        self.notes: list[str] = []
        self._steps: dict[str, StepHandle] = {}
        self._starts: dict[str, int] = {}
        self._write(extra)

    @property
    def endpoint(self) -> str:
        """Return address and port of the store."""
        return self._attempt.endpoint

    def start(self) -> None:
        """Start the steps.

        Raises
        ------
        GipfelError
            A step can't be started.
        """
        if self._plan.spec.elastic:
            for node in self._attempt.nodes:
                self._start(node, (node,))
        else:
            self._start("all", self._attempt.nodes)

    def poll(self) -> int | None:
        """Return the exit status once every step has ended; until then, restart steps of nodes that left."""
        if not self._plan.spec.elastic:
            return self._steps["all"].poll()
        host = self._attempt.nodes[0]
        status = self._steps[host].poll()
        if status is not None:
            # The first node hosts the store, so the other nodes can't continue without it.
            for node, step in self._steps.items():
                if node != host:
                    step.stop() if status else step.wait(self._plan.spec.grace_s)
                    step.stop()
            return status
        for node, step in self._steps.items():
            if node != host and step.poll() is not None:
                self._restart_node(node, step)
        return None

    def _restart_node(self, node: str, step: StepHandle) -> None:
        if step.poll() == 0 or self._max_rejoins <= self.rejoined:
            return
        now = time.monotonic()
        if node not in self._left_at:
            self._left_at[node] = now
            self.notes.append(f"{node} left with status {step.poll()}")
        elif now - self._left_at[node] > _REJOIN_S:
            del self._left_at[node]
            self.rejoined += 1
            self.notes.append(f"{node} is restarted")
            self._start(node, (node,))

    def stop(self) -> None:
        """Stop all steps; when this returns, all their processes have ended."""
        for step in self._steps.values():
            step.signal(15)
        for step in self._steps.values():
            step.stop()

    @property
    def problem(self) -> str:
        """Return the reason why a step could not start; empty if all have started."""
        return next((step.state.problem for step in self._steps.values() if step.state.problem), "")

    def _start(self, name: str, nodes: tuple[str, ...]) -> None:
        number = self._starts[name] = self._starts.get(name, 0) + 1
        spec, per_node = self._plan.spec, self._launcher.per == "node"
        arguments = ("node",) if per_node else ("rank",)
        step = StepSpec(
            command=(IMAGE_PYTHON, f"{self._plan.folder}/{PROGRAM_FILE}", *arguments),
            edf=self._plan.edf,
            python=self._plan.python,
            nodes=nodes,
            tasks_per_node=1 if per_node else spec.gpus_per_node,
            gpus={node: self._gpus[node] for node in nodes if node in self._gpus},
            gpus_per_node=None if self._gpus else 0,
            environment={
                _KEY: self._key,
                RANKS_VARIABLE: str(spec.gpus_per_node if per_node else 1),
                # In an elastic launch, each node has its own step.
                NODES_VARIABLE: str(len(self._attempt.nodes)),
            },
            network=spec.network,
            directory=self._plan.directory,
            folder=f"{self._plan.host_folder}/steps",
            name=f"attempt-{self._attempt.number}-{name}-{number}",
            kill_on_bad_exit=not spec.elastic,
            grace_s=spec.grace_s if spec.grace_s > 35 else 35,  # torchrun gives its ranks 30 s
        )
        mounts = self._plan.mounts
        self._steps[name] = start_step(step, self._environment, job=self._setting, mounts=mounts)

    def _write(self, extra: Mapping[str, object]) -> None:
        attempt, launcher = self._attempt, self._launcher
        content = {
            **extra,
            "resume": self._plan.spec.resume or bool(attempt.number),
            "number": attempt.number,
            "per": launcher.per,
            "commands": [launcher.command(attempt, index) for index in range(len(attempt.nodes))],
            "nodes": attempt.nodes,
            "addresses": attempt.addresses,
            "port": attempt.port,
            "ranks_per_node": attempt.ranks_per_node,
            "cpus": self._setting.cpus,
            "kind": "notebook" if self._plan.spec.kind == "cell" else self._plan.spec.kind,
            "target": self._plan.target,
            "arguments": self._plan.spec.arguments,
            "parameters": self._plan.spec.parameters,
            "kernel": self._plan.spec.kernel,
            "environment": self._plan.spec.environment,
            "checkpoint": self._plan.checkpoint,
            "failure_s": self._failure_s(),
            "profile": self._plan.spec.profile,
            "step_hooks": self._plan.spec.step_hooks,
            "hang_after_s": self._plan.spec.hang_after_s,
        }
        write_atomically(Path(self._plan.host_folder, ATTEMPT_FILE), json.dumps(content))

    def _failure_s(self) -> float:
        """Return the job's expected seconds between failures, from vettings and the site; 0 if unknown."""
        plan, nodes = self._plan, len(self._attempt.nodes)
        if not plan.checkpoint:
            return 0.0
        from ...saturation.settings import Settings  # noqa: PLC0415 - most launches do not need them
        from ...vetting.history.queries import known_failures, site_failure_s  # noqa: PLC0415

        known, site_s = (
            known_failures(plan.cluster, self._environment),
            site_failure_s(self._environment),
        )
        default_s = 3600.0 * Settings().gpu_hours_per_failure / max(1, self._attempt.ranks_per_node)
        return known.between_s(site_s or default_s) / nodes if known.node_s > 0 or site_s else 0.0
