"""Drains and resumes nodes through ``scontrol``, and asks ``sinfo`` and ``squeue`` what is true.

Limits on draining nodes and opening cases, which bound a bad rule and a flood of reports.
"""

import re
import shlex
from collections.abc import Mapping
from typing import Protocol

from gipfel_cluster.model import Frozen, GipfelError
from gipfel_cluster.scheduler.command import run_command
from gipfel_cluster.scheduler.notation import expand_hostlist

from .settings import DrainSettings, Settings

_LIMIT_S = 20.0
# Not a hostlist, not an option, not a list: one node. "ALL" is a word of scontrol's and no node's.
_NODE = re.compile(r"(?!(?i:all)\Z)[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_JOB = re.compile(r"[0-9]{1,12}(_[0-9]{1,9})?")
_REASON = re.compile(r"[A-Za-z0-9 ._-]{1,120}")
_AT_WORK = {"idle", "mixed", "allocated", "completing", "planned", "reserved", "alloc", "mix", "comp", "plnd"}
_LISTING = "%N|%R|%T|%E"


class NodeState(Frozen):
    """A node as the scheduler sees it; ``out`` of service for whatever cause, ``reason`` in Slurm's words."""

    name: str
    partitions: tuple[str, ...]
    state: str
    reason: str
    out: bool

    @property
    def drained(self) -> bool:
        """Whether it takes no more jobs because somebody said so."""
        return "drain" in self.state


class Nodes(Protocol):
    """What can be asked of a cluster's nodes and done to them."""

    async def states(self) -> Mapping[str, NodeState]:
        """Every node by its name."""

    async def job(self, job: str) -> tuple[str, frozenset[str]] | None:
        """Whose a job is and on which nodes; None where the scheduler does not know it any more."""

    def drain_command(self, node: str, reason: str) -> tuple[str, ...]:
        """The argument list that drains it."""

    def resume_command(self, node: str) -> tuple[str, ...]:
        """The argument list that takes it back."""

    async def run(self, argv: tuple[str, ...]) -> None:
        """Run one of them."""


class SlurmNodes:
    """The nodes of one Slurm.

    Parameters
    ----------
    environment
        For Slurm's commands: ``PATH``, ``SLURM_CONF``.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)

    async def states(self) -> Mapping[str, NodeState]:
        """Ask ``sinfo``, which has one line per node and partition."""
        output = await self._output(("sinfo", "--noheader", "--all", "--Node", f"--format={_LISTING}"))
        return read_states(output)

    async def job(self, job: str) -> tuple[str, frozenset[str]] | None:
        """Ask ``squeue``, which knows a job for some minutes after its end (``MinJobAge``)."""
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
        """``scontrol update`` with one node.

        Raises
        ------
        GipfelError
            The name or the reason could be read as more than that.
        """
        if not _REASON.fullmatch(reason):
            raise GipfelError(f"{reason!r} can't be the reason of a drain.")
        return ("scontrol", "update", f"NodeName={_one(node)}", "State=DRAIN", f"Reason={reason}")

    def resume_command(self, node: str) -> tuple[str, ...]:
        """``scontrol update`` with one node."""
        return ("scontrol", "update", f"NodeName={_one(node)}", "State=RESUME")

    async def run(self, argv: tuple[str, ...]) -> None:
        """Run it.

        Raises
        ------
        GipfelError
            It failed, is missing, or did not end in time.
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


def as_typed(argv: tuple[str, ...]) -> str:
    """The command as a person would type it."""
    return shlex.join(argv)


def read_states(output: str) -> dict[str, NodeState]:
    """The nodes of a listing ``node|partition|state|reason``; lines that are none are left out."""
    nodes: dict[str, NodeState] = {}
    for line in output.splitlines():
        parts = line.split("|", 3)
        if len(parts) < 4:
            continue
        name, partition, state, reason = (part.strip() for part in parts)
        known = nodes.get(name)
        word = state.lower()
        nodes[name] = NodeState(
            name=name,
            partitions=((*known.partitions, partition) if known else (partition,)),
            state=word,
            reason="" if reason == "none" else reason,
            # Of the marks behind a state, these are of power saving and planning; others keep jobs away.
            out=word.rstrip("~#!%-") not in _AT_WORK,
        )
    return nodes


def _one(node: str) -> str:
    if not _NODE.fullmatch(node):
        raise GipfelError(f"{node!r} can't be the name of a node.")
    return node


def case_refusal(settings: Settings, *, opened_last_hour: int, open_now: int) -> str:
    """Return why users' reports open no more cases now, in one sentence; empty where they do."""
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
    """Why not, in one sentence; empty where it may.

    Nodes that are out of service already count for the share, whoever took them out: with five of a hundred
    down, a sixth is one too many at 0.05.
    """
    state = nodes.get(node)
    if cluster != settings.cluster:
        return (
            f"This registry may not drain nodes of {cluster}: its settings name {settings.cluster or 'none'}."
        )
    if state is None:
        return f"The scheduler of {cluster} knows no node {node}."
    if state.drained or state.out:
        return f"{node} is out of service already: {state.state}, {state.reason or 'no reason given'}."
    if drained_last_hour >= settings.per_hour:
        return f"{drained_last_hour} nodes were drained within an hour, and {settings.per_hour} are allowed."
    refusals = (_share_refusal(each, nodes, settings.most_share) for each in state.partitions)
    return next(filter(None, refusals), "")


def _share_refusal(partition: str, nodes: Mapping[str, NodeState], most_share: float) -> str:
    beside = [each for each in nodes.values() if partition in each.partitions]
    after = sum(each.out for each in beside) + 1
    if after <= most_share * len(beside):
        return ""
    words = f"{after} of {len(beside)} nodes of {partition} would be out of service"
    return f"{words}, and {most_share:.0%} are allowed."


def resume_refusal(
    node: str, cluster: str, nodes: Mapping[str, NodeState], *, reason: str, allowed: str
) -> str:
    """Why a node may not be taken back: only those are that this registry drained, for this case."""
    state = nodes.get(node)
    if cluster != allowed:
        return f"This registry may not resume nodes of {cluster}."
    if state is None:
        return f"The scheduler of {cluster} knows no node {node}."
    if not state.drained:
        return f"{node} is not drained: {state.state}."
    if state.reason != reason:
        return f"{node} was drained by somebody else: {state.reason or 'no reason given'}."
    return ""
