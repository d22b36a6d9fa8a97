"""How many rounds of pairs the run's time limit leaves room for, by how long rounds have taken."""

import math
import statistics
from collections.abc import Callable

from ..attribution.state import PairState

#: Seconds that stay for verdicts and the report after the last round.
_MARGIN_S = 3.0
#: Less than this is not worth the first round, of which it is not known how long it takes.
_LEAST_S = 5.0
#: Rounds that usually suffice to settle what the survey has left open.
_CONFIRM = 6
#: The most rounds of a survey that settings may ask for.
_MOST_SURVEY = 16


class RoundTime:
    """The time for rounds of pairs.

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
        """Note that a round starts."""
        self._started = self._clock()

    def end(self) -> None:
        """Note that it has ended."""
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
