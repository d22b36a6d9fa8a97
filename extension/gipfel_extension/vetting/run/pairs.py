"""Pair rounds: the attribution plans them and concludes; here they are run, as long as there is time.

`RoundTime` says how many rounds the run's time limit leaves room for, by how long rounds have taken.
"""

import math
import statistics
from collections.abc import Callable, Sequence

from ..attribution.conclude import conclude
from ..attribution.rounds import next_round
from ..attribution.state import PairMeasurement, PairRound, PairSettings, PairState
from ..check import check_class
from ..model import CheckResult, Owner
from ..probing import ProbeAnswer, ProbeSpec
from ..protocol import ProtocolCheck
from .dispatch import Dispatcher, RunEnded
from .fabric import Network, held_against, network_of, settings_for
from .groups import GroupOutcome, run_groups
from .report_builder import ReportBuilder

#: Seconds that stay for verdicts and the report after the last round.
_MARGIN_S = 3.0
#: Less than this is not worth the first round, of which it is not known how long it takes.
_LEAST_S = 5.0
#: Rounds that usually suffice to settle what the survey has left open.
_CONFIRM = 6
#: The most rounds of a survey that settings may ask for.
_MOST_SURVEY = 16
#: A node that gave nothing with so many partners, who measured with others, is not measured again.
_FRUITLESS = 2


class RoundTime:
    """Time left for rounds of pairs.

    Parameters
    ----------
    until
        When the last round must have ended, by `clock`; infinite where there is no limit.
    """

    def __init__(self, until: float, clock: Callable[[], float]) -> None:
        self._until, self._clock = until - _MARGIN_S, clock
        self._took: list[float] = []
        self._started = clock()

    def start(self) -> None:
        """Record that a round starts."""
        self._started = self._clock()

    def end(self) -> None:
        """Record that it has ended."""
        self._took.append(self._clock() - self._started)

    @property
    def left(self) -> float:
        """Return the seconds that are left."""
        return self._until - self._clock()

    @property
    def suffices(self) -> bool:
        """Return whether another round as long as the others fits; one that hung is not as the others."""
        return self.left >= (statistics.median(self._took) if self._took else _LEAST_S)

    def fitted(self, state: PairState) -> PairState:
        """Return the state; where not every pair can be measured in time, with as many rounds as can.

        The survey's rounds are spread over all pairs, so that its first ones already join all nodes. What
        they find needs rounds of its own.
        """
        settings = state.settings
        done = len({each.round for each in state.measurements if each.role == "survey"})
        # Until then it makes no difference, and how long a round takes is known better.
        if not state.every_pair or done < settings.survey_rounds or math.isinf(self.left):
            return state
        room = int(self.left / max(statistics.median(self._took), 1e-3))
        confirm = min(settings.confirm_rounds, _CONFIRM)
        if done + room - confirm >= len(state.nodes) - 1 + len(state.nodes) % 2:
            return state
        rounds = min(_MOST_SURVEY, max(settings.survey_rounds, done + room - confirm))
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
    """Measure in rounds while the attribution wants to know more and there is time; then add its verdicts.

    Parameters
    ----------
    later_s
        Seconds that the run's later checks may take.

    Raises
    ------
    RunEnded
        The run ends first; what was measured until then is judged all the same.
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
    """Rounds of one check."""

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
        present = dispatcher.pool.present
        self._gpus = max((present[node].hello.gpus for node in nodes if node in present), default=0)
        self.cut_short = False

    def measure(self) -> None:
        """Run rounds until nothing more is to learn, or the time is up."""
        every_pair = self._state.every_pair
        while (planned := next_round(self._state)) is not None:
            if not self._time.suffices:
                self.cut_short = True
                break
            self._time.start()
            self._take(planned, self._run_round(planned))
            self._time.end()
            if not self._measured and _all_say_the_same(self._state):
                # Such as an image without torch: more rounds would say it again.
                break
            self._state = self._time.fitted(self._state)
        if self.cut_short:
            text = f"the run's time limit left room for {self.rounds} round(s) of pairs: not all is decided."
            self._builder.notes.append(f"{self._entry.name}: {text}")
        elif every_pair and not self._state.every_pair:
            text = "not each pair was measured, as the run's time limit leaves no room for it."
            self._builder.notes.append(f"{self._entry.name}: {text}")

    def verdicts(self) -> list[CheckResult]:
        """Return what the rounds say of each node."""
        if self._lacking and not self._measured:
            return [_lacking(self._entry, node, self._lacking) for node in self._state.nodes]
        if not self.rounds:
            reason = "The run's time limit left no room for a round of pairs."
            fix = "Give the run more time (--time-limit)."
            return [self._entry.not_run(node, node, reason, fix) for node in self._state.nodes]
        reference = self._network.reference(self._spec)
        settings = settings_for(self._state.settings, self._entry, reference)
        results = conclude(self._state.model_copy(update={"settings": settings, "cut_short": self.cut_short}))
        judged = [held_against(each, self._entry, settings, self._network, reference) for each in results]
        return [each.model_copy(update={"severity": self._entry.severity}) for each in judged]

    @property
    def rounds(self) -> int:
        """Return how many rounds have ended."""
        return len({each.round for each in self._state.measurements})

    @property
    def _measured(self) -> bool:
        return any(each.samples for each in self._state.measurements)

    def _run_round(self, planned: PairRound) -> list[GroupOutcome]:
        """Run the pairs of a round; a node that did not answer before does not hold up the others again."""
        silent = _silent(self._state)
        pairs = [(pair.first, pair.second) for pair in planned.pairs]
        limit = min(self._spec.time_limit_s, self._time.left)
        spec = self._spec.model_copy(update={"time_limit_s": limit})
        groups = [pair for pair in pairs if not silent.keys() & set(pair)]
        measured = iter(run_groups(self._dispatcher, spec, groups))
        outcomes = []
        for pair in pairs:
            gone = [node for node in pair if node in silent]
            if gone:
                error, accused = silent[gone[0]]
                outcomes.append(GroupOutcome(pair, ProbeAnswer(error=error), (gone[0],) if accused else ()))
            else:
                outcomes.append(next(measured))
        return outcomes

    def _take(self, planned: PairRound, outcomes: Sequence[GroupOutcome]) -> None:
        answers = [each.answer for each in outcomes]
        self._lacking = self._lacking or next((each.missing for each in answers if each.missing), "")
        found = network_of(outcomes, self._gpus if self._spec.per_gpu else 1)
        self._network = max(
            self._network, found, key=lambda each: (each.rate * each.adapters, each.by_sockets)
        )
        measurements = _measurements(planned, outcomes)
        if self._time.left <= 0:
            # The end of the time stopped these, not a fault of theirs.
            measurements = tuple(each for each in measurements if each.samples or each.accused)
        self._state = self._state.with_round(measurements)


def _silent(state: PairState) -> dict[str, tuple[str, bool]]:
    """Return the nodes that are not measured once more, each with why, and whether it is accused.

    Those that did not answer at all, and those that gave nothing with two partners who have measured with
    others: each round with such a node lasts as long as its time limit.
    """
    found: dict[str, tuple[str, bool]] = {}
    fruitful = {node for each in state.measurements if each.samples for node in (each.first, each.second)}
    failed: dict[str, dict[str, str]] = {}
    for each in state.measurements:
        found |= dict.fromkeys(each.accused, (each.error, True))
        for node, other in ((each.first, each.second), (each.second, each.first)):
            if node not in fruitful and other in fruitful:
                failed.setdefault(node, {}).setdefault(other, each.error)
    for node, errors in failed.items():
        if len(errors) >= _FRUITLESS:
            found.setdefault(node, (next(iter(errors.values())), False))
    return found


def _lacking(entry: ProtocolCheck, node: str, module: str) -> CheckResult:
    """Return the verdict where the image lacks what the probe needs: no node has shown anything."""
    reason = f"Nothing was measured: the image lacks {module}."
    result = entry.not_run(node, node, reason, f"Put {module} into the image.")
    return result.model_copy(update={"owner": Owner.IMAGE})


def _state(
    builder: ReportBuilder, dispatcher: Dispatcher, entry: ProtocolCheck, nodes: Sequence[str]
) -> PairState:
    check = check_class(entry.type).model_validate(entry.parameters)
    settings = getattr(check, "pairs", PairSettings())
    floor = entry.threshold.at_least if entry.threshold else None
    if floor is not None and not settings.floor:
        settings = settings.model_copy(update={"floor": floor})
    if entry.threshold and entry.threshold.below_baseline is not None and not settings.baseline:
        settings = settings.model_copy(update={"baseline": builder.earlier_runs.usual(entry) or 0.0})
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
