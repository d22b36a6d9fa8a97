"""Run the rounds of pairs that the attribution plans, while there is time, and add its verdicts.

`Network` compares the results with the network's reference values. `RoundTime` estimates how many rounds fit
into the run's time limit.
"""

import math
import statistics
from collections.abc import Callable, Sequence

from pydantic import ValidationError

from gipfel_cluster.model import Frozen

from ..attribution.conclude import conclude
from ..attribution.measurements import PairMeasurement, PairRound, PairSettings, PairState
from ..attribution.rounds import next_round
from ..check import check_class
from ..model import CheckResult, Owner, Verdict
from ..probing import ProbeAnswer, ProbeSpec
from ..protocol import ProtocolCheck
from ..reference_values import ReferenceValue, network_reference
from ..threshold import with_unit
from .dispatch import Dispatcher, RunEnded
from .groups import GroupOutcome, run_groups
from .report_builder import ReportBuilder

#: Methods whose measurement is the rate from one node to the other.
_COMPARABLE = ("allreduce", "send")
_SOCKETS = "socket"


class Network(Frozen):
    """Network between two nodes, as the probe reports it.

    Parameters
    ----------
    fabric
        Type of the node's adapters; empty where sysfs lists no known one.
    rate
        Bits per second of one adapter.
    transport
        Network that NCCL reports to use; "gloo" on CPUs; empty if it reports none.
    """

    fabric: str = ""
    adapters: int = 0
    rate: float = 0.0
    transport: str = ""

    @property
    def name(self) -> str:
        """Return a name for messages."""
        return self.fabric or (f"NCCL's network {self.transport}" if self.transport else "this network")

    @property
    def by_sockets(self) -> bool:
        """Return whether NCCL uses sockets although the node has a faster network."""
        return bool(self.fabric) and self.transport.lower() == _SOCKETS

    def reference(self, spec: ProbeSpec) -> ReferenceValue | None:
        """Return the reference value for this probe; None if none is known."""
        if self.transport == "gloo" or spec.request.get("method") not in _COMPARABLE:
            return None
        # One rank uses one adapter.
        one = not spec.per_gpu or spec.request.get("method") == "send"
        return network_reference(self.fabric, self.rate, min(1, self.adapters) if one else self.adapters)


def fastest_network(outcomes: Sequence[GroupOutcome], gpus: int) -> Network:
    """Return the fastest network of all pairs, so that nodes that lack an adapter are compared with it.

    Parameters
    ----------
    gpus
        Number of ranks on a node; each uses at most one adapter.
    """
    # Among equal networks, prefer one that uses sockets, so that the use of sockets is reported.
    return max(
        (_network(each.answer, gpus) for each in outcomes),
        key=lambda each: (each.rate * each.adapters, each.by_sockets),
        default=Network(),
    )


def _network(answer: ProbeAnswer, gpus: int) -> Network:
    try:
        network = Network.model_validate(answer.evidence.get("network") or {})
    except ValidationError:
        return Network()
    return network.model_copy(update={"adapters": min(network.adapters, max(1, gpus))})


def settings_with_floor(
    settings: PairSettings, entry: ProtocolCheck, reference: ReferenceValue | None
) -> PairSettings:
    """Return the settings with the floor that follows from the network's reference value."""
    share = entry.threshold.of_reference if entry.threshold else None
    if share is None or reference is None:
        return settings
    return settings.model_copy(update={"floor": max(settings.floor, share * reference.value)})


def judge_by_network(
    result: CheckResult,
    entry: ProtocolCheck,
    settings: PairSettings,
    network: Network,
    reference: ReferenceValue | None,
) -> CheckResult:
    """Return the result of a node after comparing it with the network's reference value."""
    measured = result.measurement
    if measured is None or not entry.threshold:
        return result
    if result.verdict is Verdict.FAIL and network.by_sockets and measured < settings.floor:
        reason = f"{result.reason} NCCL uses sockets, though the node has {network.name}."
        fix = "Install NCCL's network plugin in the image, or enable the hook that mounts it."
        return result.with_verdict(Verdict.FAIL, reason, fix=fix, owner=Owner.IMAGE)
    if result.verdict not in {Verdict.PASS, Verdict.DEGRADED}:
        return result
    if reference is not None and measured > reference.implausible_above:
        maximum = with_unit(reference.implausible_above, result.unit)
        reason = f"{with_unit(measured, result.unit)} is more than {network.name} can do ({maximum})."
        fix = "The measurement must be wrong. Report it with the evidence."
    elif entry.threshold.of_reference is not None and not (settings.floor or settings.baseline):
        reason = (
            f"{with_unit(measured, result.unit)}: no reference value is known for {network.name}"
            " and there is no stored baseline, so that all pairs may be equally slow."
        )
        line = f", line {entry.line}" if entry.line else ""
        fix = f"Set at_least in the threshold of the check {entry.name!r}{line} of the protocol."
    else:
        return result
    return result.with_verdict(Verdict.INCONCLUSIVE, reason, fix=fix, owner=Owner.PROTOCOL)


#: Seconds reserved for verdicts and the report after the last round.
_MARGIN_S = 3.0
#: Seconds that must be left for the first round, whose duration is unknown.
_FIRST_ROUND_S = 5.0
#: Rounds reserved to confirm the suspects of the survey.
_CONFIRM_ROUNDS = 6
#: Upper limit of `PairSettings.survey_rounds`.
_MAX_SURVEY_ROUNDS = 16
#: A node without a measurement with this many working partners is not measured again.
_MAX_FAILED_PARTNERS = 2


class RoundTime:
    """Time that is left for rounds of pairs.

    Parameters
    ----------
    until
        Time of `clock` at which the last round must have ended; infinite if there is no limit.
    """

    def __init__(self, until: float, clock: Callable[[], float]) -> None:
        self._until, self._clock = until - _MARGIN_S, clock
        #: Seconds of the rounds that have ended.
        self.durations: list[float] = []

    @property
    def remaining(self) -> float:
        """Return the remaining seconds."""
        return self._until - self._clock()

    @property
    def suffices(self) -> bool:
        """Return whether another round of median duration fits."""
        return self.remaining >= (statistics.median(self.durations) if self.durations else _FIRST_ROUND_S)

    def limit_survey(self, state: PairState) -> PairState:
        """Return the state with fewer survey rounds if there is no time for every pair and for suspects."""
        settings = state.settings
        done = len({each.round for each in state.measurements if each.role == "survey"})
        # Decided late, when the duration of a round is known well.
        if not state.every_pair or done < settings.survey_rounds or math.isinf(self.remaining):
            return state
        room = int(self.remaining / max(statistics.median(self.durations), 1e-3))
        confirm = min(settings.confirm_rounds, _CONFIRM_ROUNDS)
        if done + room - confirm >= len(state.nodes) - 1 + len(state.nodes) % 2:
            return state
        rounds = min(_MAX_SURVEY_ROUNDS, max(settings.survey_rounds, done + room - confirm))
        fewer = settings.model_copy(update={"every_pair_up_to": 0, "survey_rounds": rounds})
        return state.model_copy(update={"settings": fewer})


def run_pairs(
    builder: ReportBuilder,
    dispatcher: Dispatcher,
    entry: ProtocolCheck,
    spec: ProbeSpec,
    nodes: Sequence[str],
    *,
    later_s: float,
) -> None:
    """Measure the rounds that the attribution plans, while there is time; then add its verdicts.

    Parameters
    ----------
    later_s
        Seconds to reserve for later checks.

    Raises
    ------
    RunEnded
        The run ends before; verdicts on the finished rounds are added.
    """
    pairs = _Pairs(builder, dispatcher, entry, spec=spec, nodes=nodes, later_s=later_s)
    try:
        pairs.measure()
    except RunEnded:
        pairs.cut_short = True
        if pairs.rounds:
            builder.add(pairs.verdicts())
        raise
    builder.add(pairs.verdicts())


class _Pairs:
    """Runner of the rounds of one check, with their state."""

    def __init__(
        self,
        builder: ReportBuilder,
        dispatcher: Dispatcher,
        entry: ProtocolCheck,
        *,
        spec: ProbeSpec,
        nodes: Sequence[str],
        later_s: float,
    ) -> None:
        self._builder, self._dispatcher, self._entry, self._spec = builder, dispatcher, entry, spec
        self._state = _state(builder, dispatcher, entry, nodes)
        self._time = RoundTime(dispatcher.due - later_s, dispatcher.clock)
        self._lacking, self._network = "", Network()
        self._gpus = dispatcher.pool.gpus(nodes)
        self.cut_short = False

    def measure(self) -> None:
        """Run rounds until the attribution plans no more, or the time is up."""
        every_pair = self._state.every_pair
        while (planned := next_round(self._state)) is not None:
            if not self._time.suffices:
                self.cut_short = True
                break
            started = self._dispatcher.clock()
            self._add_round(planned, self._run_round(planned))
            self._time.durations.append(self._dispatcher.clock() - started)
            if not self._measured and _same_error_everywhere(self._state):
                # For example an image without torch: more rounds would fail too.
                break
            self._state = self._time.limit_survey(self._state)
        if self.cut_short:
            text = f"the time limit allowed only {self.rounds} round(s) of pairs, so some verdicts are open."
            self._builder.notes.append(f"{self._entry.name}: {text}")
        elif every_pair and not self._state.every_pair:
            text = "not every pair was measured, because the time limit is too short."
            self._builder.notes.append(f"{self._entry.name}: {text}")

    def verdicts(self) -> list[CheckResult]:
        """Return the verdicts that follow from the rounds."""
        if self._lacking and not self._measured:
            reason = f"Nothing was measured: the image lacks {self._lacking}."
            fix = f"Install {self._lacking} in the image."
            return [self._entry.not_run(node, reason, fix, owner=Owner.IMAGE) for node in self._state.nodes]
        if not self.rounds:
            reason = "The run's time limit was too short for a round of pairs."
            fix = "Give the run more time (--time-limit)."
            return [self._entry.not_run(node, reason, fix) for node in self._state.nodes]
        reference = self._network.reference(self._spec)
        settings = settings_with_floor(self._state.settings, self._entry, reference)
        results = conclude(self._state.model_copy(update={"settings": settings, "cut_short": self.cut_short}))
        judged = [judge_by_network(each, self._entry, settings, self._network, reference) for each in results]
        return [each.model_copy(update={"severity": self._entry.severity}) for each in judged]

    @property
    def rounds(self) -> int:
        """Return the number of finished rounds."""
        return len({each.round for each in self._state.measurements})

    @property
    def _measured(self) -> bool:
        return any(each.samples for each in self._state.measurements)

    def _run_round(self, planned: PairRound) -> list[GroupOutcome]:
        """Run the pairs of a round, without nodes that gave no measurement before."""
        failed = _failed_nodes(self._state)
        pairs = [(pair.first, pair.second) for pair in planned.pairs]
        limit = min(self._spec.time_limit_s, self._time.remaining)
        spec = self._spec.model_copy(update={"time_limit_s": limit})
        groups = [pair for pair in pairs if not failed.keys() & set(pair)]
        measured = iter(run_groups(self._dispatcher, spec, groups))
        outcomes = []
        for pair in pairs:
            excluded = [node for node in pair if node in failed]
            if excluded:
                error, accused = failed[excluded[0]]
                outcomes.append(
                    GroupOutcome(pair, ProbeAnswer(error=error), (excluded[0],) if accused else ())
                )
            else:
                outcomes.append(next(measured))
        return outcomes

    def _add_round(self, planned: PairRound, outcomes: Sequence[GroupOutcome]) -> None:
        answers = [each.answer for each in outcomes]
        self._lacking = self._lacking or next((each.missing for each in answers if each.missing), "")
        found = fastest_network(outcomes, self._gpus if self._spec.per_gpu else 1)
        self._network = max(
            self._network, found, key=lambda each: (each.rate * each.adapters, each.by_sockets)
        )
        measurements = _measurements(planned, outcomes)
        if self._time.remaining <= 0:
            # The time limit has stopped pairs without a fault of theirs.
            measurements = tuple(each for each in measurements if each.samples or each.accused)
        self._state = self._state.with_round(measurements)


def _failed_nodes(state: PairState) -> dict[str, tuple[str, bool]]:
    """Return the nodes that are not measured again, each with the reason, and whether it is accused.

    These did not respond, or gave no measurement with two partners that did with others. A round with such a
    node would take as long as its time limit.
    """
    found: dict[str, tuple[str, bool]] = {}
    working = {node for each in state.measurements if each.samples for node in (each.first, each.second)}
    failed: dict[str, dict[str, str]] = {}
    for each in state.measurements:
        found |= dict.fromkeys(each.accused, (each.error, True))
        for node, other in ((each.first, each.second), (each.second, each.first)):
            if node not in working and other in working:
                failed.setdefault(node, {}).setdefault(other, each.error)
    for node, errors in failed.items():
        if len(errors) >= _MAX_FAILED_PARTNERS:
            found.setdefault(node, (next(iter(errors.values())), False))
    return found


def _state(
    builder: ReportBuilder, dispatcher: Dispatcher, entry: ProtocolCheck, nodes: Sequence[str]
) -> PairState:
    check = check_class(entry.type).model_validate(entry.parameters)
    settings = getattr(check, "pairs", PairSettings())
    floor = entry.threshold.at_least if entry.threshold else None
    if floor is not None and not settings.floor:
        settings = settings.model_copy(update={"floor": floor})
    if entry.threshold and entry.threshold.below_baseline is not None and not settings.baseline:
        settings = settings.model_copy(update={"baseline": builder.earlier_runs.baseline(entry) or 0.0})
    present = dispatcher.pool.present
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
        history={node: builder.earlier_runs.fit(node, entry.name) for node in nodes},
    )


def _measurements(planned: PairRound, outcomes: Sequence[GroupOutcome]) -> tuple[PairMeasurement, ...]:
    return tuple(
        PairMeasurement(
            round=planned.number,
            first=pair.first,
            second=pair.second,
            samples=() if outcome.answer.wrong else outcome.answer.samples,
            error=outcome.answer.error
            or (f"{outcome.answer.wrong} values of the result are wrong." if outcome.answer.wrong else ""),
            accused=outcome.accused,
            role=pair.role,
        )
        for pair, outcome in zip(planned.pairs, outcomes, strict=True)
    )


def _same_error_everywhere(state: PairState) -> bool:
    return (
        len({each.error.partition(": ")[2] for each in state.measurements}) == 1
        and not any(each.accused for each in state.measurements)
        and len({each.round for each in state.measurements}) > 1
    )
