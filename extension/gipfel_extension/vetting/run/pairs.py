"""Pair rounds: the attribution says who meets whom, and in the end whose fault it is."""

from collections.abc import Sequence

from ..attribution.conclude import conclude
from ..attribution.rounds import next_round
from ..attribution.state import PairMeasurement, PairRound, PairSettings, PairState
from ..checks.registry import check_class
from ..model import CheckResult, Owner
from ..probing import ProbeAnswer, ProbeSpec
from ..protocol import ProtocolCheck
from .board import Board
from .desk import Desk
from .fabric import Network, held_against, network_of, settings_for
from .groups import GroupOutcome, run_groups


def run_pairs(board: Board, desk: Desk, entry: ProtocolCheck, spec: ProbeSpec, nodes: Sequence[str]) -> None:
    """Measure in rounds as long as the attribution wants to know more, then add its verdicts.

    Raises
    ------
    RunEnded
        The run ends first.
    """
    state = _state(board, desk, entry, nodes)
    lacking, network = "", Network()
    gpus = max(
        (desk.peers.present[node].hello.gpus for node in nodes if node in desk.peers.present), default=0
    )
    while (planned := next_round(state)) is not None:
        outcomes = _run_round(desk, spec, planned, state)
        lacking = lacking or next((each.answer.missing for each in outcomes if each.answer.missing), "")
        found = network_of(outcomes, gpus if spec.per_gpu else 1)
        network = max(network, found, key=lambda each: (each.rate * each.adapters, each.by_sockets))
        state = state.with_round(_measurements(planned, outcomes))
        if not any(each.samples for each in state.measurements) and _all_say_the_same(state):
            # Such as an image without torch: more rounds would say it again.
            break
    if lacking and not any(each.samples for each in state.measurements):
        board.add([_lacking(entry, node, lacking) for node in nodes])
        return
    figure = network.figure(spec)
    settings = settings_for(state.settings, entry, figure)
    results = conclude(state.model_copy(update={"settings": settings}))
    judged = [held_against(each, entry, settings, network, figure) for each in results]
    board.add([each.model_copy(update={"severity": entry.severity}) for each in judged])


def _run_round(desk: Desk, spec: ProbeSpec, planned: PairRound, state: PairState) -> list[GroupOutcome]:
    """Run the pairs of a round; a node that did not answer before does not hold up the others once more."""
    silent = {node: each.error for each in state.measurements for node in each.accused}
    pairs = [(pair.first, pair.second) for pair in planned.pairs]
    measured = iter(run_groups(desk, spec, [pair for pair in pairs if not silent.keys() & set(pair)]))
    outcomes = []
    for pair in pairs:
        gone = tuple(node for node in pair if node in silent)
        left_out = GroupOutcome(pair, ProbeAnswer(error=silent[gone[0]]), gone) if gone else None
        outcomes.append(left_out or next(measured))
    return outcomes


def _lacking(entry: ProtocolCheck, node: str, module: str) -> CheckResult:
    """Return the verdict where the image lacks what the probe needs: no node has shown anything."""
    reason = f"Nothing was measured: the image lacks {module}."
    result = entry.not_run(node, node, reason, f"Put {module} into the image.")
    return result.model_copy(update={"owner": Owner.IMAGE})


def _state(board: Board, desk: Desk, entry: ProtocolCheck, nodes: Sequence[str]) -> PairState:
    check = check_class(entry.type).model_validate(entry.parameters)
    settings = getattr(check, "pairs", PairSettings())
    floor = entry.threshold.at_least if entry.threshold else None
    if floor is not None and not settings.floor:
        settings = settings.model_copy(update={"floor": floor})
    if entry.threshold and entry.threshold.below_baseline is not None and not settings.baseline:
        settings = settings.model_copy(update={"baseline": board.past.usual(entry) or 0.0})
    present = desk.peers.present
    return PairState(
        check=entry.name,
        type=entry.type,
        nodes=tuple(nodes),
        settings=settings,
        switches={
            node: present[node].hello.switch
            for node in nodes
            if node in present and present[node].hello.switch
        },
        history={node: board.past.fit(node, entry.name) for node in nodes},
    )


def _measurements(planned: PairRound, outcomes: Sequence[GroupOutcome]) -> tuple[PairMeasurement, ...]:
    return tuple(
        PairMeasurement(
            round=planned.number,
            first=pair.first,
            second=pair.second,
            samples=() if outcome.answer.wrong else outcome.answer.samples,
            error=outcome.answer.error or _wrong(outcome.answer.wrong),
            accused=outcome.accused,
            role=pair.role,
        )
        for pair, outcome in zip(planned.pairs, outcomes, strict=True)
    )


def _wrong(values: int) -> str:
    return f"{values} values of the result were wrong." if values else ""


def _all_say_the_same(state: PairState) -> bool:
    return (
        len({each.error.partition(": ")[2] for each in state.measurements}) == 1
        and not any(each.accused for each in state.measurements)
        and len({each.round for each in state.measurements}) > 1
    )
