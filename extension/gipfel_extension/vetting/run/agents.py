"""Start the agents: on this machine, as tasks of this Slurm step, or in a step of their own."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from gipfel_cluster.steps import PYTHON, StepSpec, start_step

from .location import Location, LocationKind
from .rendezvous import RENDEZVOUS_VARIABLE, Rendezvous

_AGENT = f"{__package__}.agent"
_SOON_S, _END_S = 3.0, 12.0


class Agents(Protocol):
    """Agents that were started, or that connect by themselves."""

    def problem(self, node: str) -> str:
        """Return why the agent of a node has ended or can't connect, as a sentence; empty where unknown."""

    def end(self) -> None:
        """See to it that those that were started have ended; they have been told."""


class LocalAgent:
    """Agent of this node, a child of this process in a session of its own."""

    def __init__(self, rendezvous: Rendezvous, node: str, environment: Mapping[str, str]) -> None:
        self._node = node
        self._process = subprocess.Popen(
            [sys.executable, "-m", _AGENT, str(os.getpid()), node],
            env={**environment, RENDEZVOUS_VARIABLE: rendezvous.model_dump_json()},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def problem(self, node: str) -> str:
        """Return how it ended."""
        status = self._process.poll()
        if node != self._node or status is None:
            return ""
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        return f"Its agent {how}."

    def end(self) -> None:
        """Wait for it; ask it to end where it has not heard that it may, and kill it at last."""
        for number, seconds in ((signal.SIGTERM, _SOON_S), (signal.SIGKILL, _END_S)):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
                return
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
        self._process.wait(_END_S)


class TasksOfStep(LocalAgent):
    """Other tasks of this Slurm step, which connect by themselves through a file."""

    def __init__(self, rendezvous: Rendezvous, node: str, environment: Mapping[str, str], file: Path) -> None:
        self._file = file
        rendezvous.write(file)
        super().__init__(rendezvous, node, environment)

    def end(self) -> None:
        """Tell those that come too late, and wait for our own."""
        with contextlib.suppress(OSError):
            Rendezvous.over().write(self._file)
        super().end()


class StepOfAgents:
    """Step with an agent on every node of the job."""

    def __init__(
        self, rendezvous: Rendezvous, nodes: tuple[str, ...], folder: Path, environment: Mapping[str, str]
    ) -> None:
        spec = StepSpec(
            command=(PYTHON, "-m", _AGENT),
            nodes=nodes,
            environment={RENDEZVOUS_VARIABLE: rendezvous.model_dump_json()},
            folder=str(folder),
            name="vet",
            grace_s=10,
        )
        self._handle = start_step(spec, environment)

    def problem(self, node: str) -> str:  # noqa: ARG002 - a step ends as a whole
        """Return how the step ended."""
        status = self._handle.poll()
        if status is None:
            return ""
        return f"The step of its agent ended with status {status}. {self._handle.state.problem}".strip()

    def end(self) -> None:
        """Wait for the step; stop it where it does not end."""
        if self._handle.wait(_END_S) is None:
            self._handle.stop()


def start_agents(
    location: Location, rendezvous: Rendezvous, folder: Path, environment: Mapping[str, str]
) -> Agents:
    """Start what must be started for agents to come.

    Raises
    ------
    GipfelError
        The step can't be started.
    """
    if location.kind is LocationKind.STEP:
        return TasksOfStep(rendezvous, location.node, environment, location.rendezvous(folder))
    if location.kind is LocationKind.ALLOCATION and location.nodes != (location.node,):
        return StepOfAgents(rendezvous, location.nodes, folder / "vetting", environment)
    return LocalAgent(rendezvous, location.node, environment)
