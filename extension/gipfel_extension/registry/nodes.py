"""Draining and resuming nodes with ``scontrol``, node states from ``sinfo``, and jobs from ``squeue``.

`drain_refusal`, `resume_refusal` and `case_refusal` are the limits that contain wrong rules and floods of
reports.
"""

import re
from collections.abc import Mapping
from typing import Protocol

from gipfel_cluster.model import Frozen, GipfelError
from gipfel_cluster.scheduler.machine import run_command
from gipfel_cluster.scheduler.notation import expand_hostlist

from .settings import DrainSettings, Settings

_LIMIT_S = 20.0
# The name of a single node: no hostlist, no option, and not "ALL", which scontrol takes for all nodes.
_NODE = re.compile(r"(?!(?i:all)\Z)[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_JOB = re.compile(r"[0-9]{1,12}(_[0-9]{1,9})?")
_REASON = re.compile(r"[A-Za-z0-9 ._-]{1,120}")
_IN_SERVICE = {
    "idle",
    "mixed",
    "allocated",
    "completing",
    "planned",
    "reserved",
    "alloc",
    "mix",
    "comp",
    "plnd",
}
_LISTING = "%N|%R|%T|%E"


class NodeState(Frozen):
    """State of a node in Slurm; ``out_of_service`` for any cause; ``reason`` is the one that Slurm shows."""

    name: str
    partitions: tuple[str, ...]
    state: str
    reason: str
    out_of_service: bool

    @property
    def drained(self) -> bool:
        """True if the node was drained, or is draining."""
        return "drain" in self.state


class NodeControl(Protocol):
    """Queries and commands for a cluster's nodes."""

    async def states(self) -> Mapping[str, NodeState]:
        """Return the state of every node by its name."""

    async def job(self, job: str) -> tuple[str, frozenset[str]] | None:
        """Return the user and nodes of a job; None if the scheduler no longer knows it."""

    def drain_command(self, node: str, reason: str) -> tuple[str, ...]:
        """Return the command that drains a node."""

    def resume_command(self, node: str) -> tuple[str, ...]:
        """Return the command that resumes a node."""

    async def run(self, argv: tuple[str, ...]) -> None:
        """Run one of these commands."""


class SlurmNodes:
    """Nodes of one Slurm cluster.

    Parameters
    ----------
    environment
        Environment of Slurm's commands: ``PATH``, ``SLURM_CONF``.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)

    async def states(self) -> Mapping[str, NodeState]:
        """Return the states from ``sinfo``, which prints one line per node and partition."""
        output = await self._output(("sinfo", "--noheader", "--all", "--Node", f"--format={_LISTING}"))
        return read_states(output)

    async def job(self, job: str) -> tuple[str, frozenset[str]] | None:
        """Return user and nodes from ``squeue``, which knows a job for ``MinJobAge`` after its end."""
        if not _JOB.fullmatch(job):
            return None
        argv = ("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%u|%N")
        try:
            output = await self._output(argv)
        except GipfelError as error:
            if "Invalid job id" in error.problem:
                return None
            raise
        user, _, nodes = (output.strip().splitlines() or [""])[0].partition("|")
        return (user, frozenset(expand_hostlist(nodes))) if user else None

    def drain_command(self, node: str, reason: str) -> tuple[str, ...]:
        """Return the ``scontrol update`` command that drains a node.

        Raises
        ------
        GipfelError
            The node's name or the reason contains characters that are not allowed.
        """
        if not _REASON.fullmatch(reason):
            raise GipfelError(f"{reason!r} is not valid as the reason of a drain.")
        return ("scontrol", "update", f"NodeName={_valid_node(node)}", "State=DRAIN", f"Reason={reason}")

    def resume_command(self, node: str) -> tuple[str, ...]:
        """Return the ``scontrol update`` command that resumes a node."""
        return ("scontrol", "update", f"NodeName={_valid_node(node)}", "State=RESUME")

    async def run(self, argv: tuple[str, ...]) -> None:
        """Run a command.

        Raises
        ------
        GipfelError
            The command failed, is missing, or did not end in time.
        """
        await self._output(argv)

    async def _output(self, argv: tuple[str, ...]) -> str:
        try:
            done = await run_command(argv, environment=self._environment, limit=_LIMIT_S)
        except TimeoutError:
            raise GipfelError(f"{argv[0]} did not answer within {_LIMIT_S:g} s.") from None
        if done.code:
            raise GipfelError(f"{argv[0]}: {done.errors or done.output}"[:500])
        return done.output


def read_states(output: str) -> dict[str, NodeState]:
    """Return the nodes of ``sinfo`` lines ``node|partition|state|reason``; other lines are ignored."""
    nodes: dict[str, NodeState] = {}
    for line in output.splitlines():
        parts = line.split("|", 3)
        if len(parts) < 4:
            continue
        name, partition, state, reason = (part.strip() for part in parts)
        known = nodes.get(name)
        state = state.lower()
        nodes[name] = NodeState(
            name=name,
            partitions=((*known.partitions, partition) if known else (partition,)),
            state=state,
            reason="" if reason == "none" else reason,
            # These suffixes of a state mean power saving or planning; with others the node accepts no jobs.
            out_of_service=state.rstrip("~#!%-") not in _IN_SERVICE,
        )
    return nodes


def _valid_node(node: str) -> str:
    if not _NODE.fullmatch(node):
        raise GipfelError(f"{node!r} is not a valid node name.")
    return node


def case_refusal(settings: Settings, *, opened_last_hour: int, open_now: int) -> str:
    """Return why unvouched reports can't open cases now, in one sentence; empty if they can."""
    if opened_last_hour >= settings.cases_per_hour:
        return (
            f"{opened_last_hour} cases were opened within an hour, and {settings.cases_per_hour} are allowed."
        )
    if open_now >= settings.open_cases:
        return f"{open_now} cases are open, and {settings.open_cases} are allowed."
    return ""


def drain_refusal(
    node: str,
    cluster: str,
    nodes: Mapping[str, NodeState],
    settings: DrainSettings,
    *,
    drained_last_hour: int,
) -> str:
    """Return why a node may not be drained, in one sentence; empty if it may be.

    All nodes that are out of service count for ``max_share``, for any cause. For example, with five of a
    hundred nodes down, a limit of 0.05 refuses the sixth.
    """
    state = nodes.get(node)
    if cluster != settings.cluster:
        return (
            f"This registry may not drain nodes of {cluster}: drain.cluster in its settings is "
            f"{settings.cluster or 'empty'}."
        )
    if state is None:
        return f"The scheduler of {cluster} has no node {node}."
    if state.drained or state.out_of_service:
        return f"{node} is already out of service: {state.state}, {state.reason or 'no reason given'}."
    if drained_last_hour >= settings.per_hour:
        return f"{drained_last_hour} nodes were drained within an hour, and {settings.per_hour} are allowed."
    refusals = (_share_refusal(each, nodes, settings.max_share) for each in state.partitions)
    return next(filter(None, refusals), "")


def _share_refusal(partition: str, nodes: Mapping[str, NodeState], max_share: float) -> str:
    members = [each for each in nodes.values() if partition in each.partitions]
    out_of_service = sum(each.out_of_service for each in members) + 1
    if out_of_service <= max_share * len(members):
        return ""
    return (
        f"{out_of_service} of {len(members)} nodes of {partition} would be out of service, "
        f"and {max_share:.0%} are allowed."
    )


def resume_refusal(
    node: str, cluster: str, nodes: Mapping[str, NodeState], *, reason: str, allowed: str
) -> str:
    """Return why a node may not be resumed; only nodes that the same case drained may be."""
    state = nodes.get(node)
    if cluster != allowed:
        return f"This registry may not resume nodes of {cluster}."
    if state is None:
        return f"The scheduler of {cluster} has no node {node}."
    if not state.drained:
        return f"{node} is not drained: {state.state}."
    if state.reason != reason:
        return f"{node} was drained for another reason: {state.reason or 'no reason given'}."
    return ""
