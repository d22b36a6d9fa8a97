"""Limits on draining nodes and opening cases, which bound a bad rule and a flood of reports."""

from collections.abc import Mapping

from ..settings import DrainSettings, Settings
from .nodes import NodeState


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
