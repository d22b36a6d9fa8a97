"""Advice that doesn't flicker: it appears, and disappears, only when that has lasted."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ...telemetry.sample import SampleTable
from .model import Advice

#: Seconds that evidence must hold before an advice appears, and be gone before it disappears.
HOLD_S = 60.0


@dataclass(frozen=True)
class Held:
    """A rule's newest advice: whether it was found and is shown, and since when it is (not) found."""

    advice: Advice
    found: bool
    shown: bool
    since_s: float


#: Held advice by the name of its rule.
History = Mapping[str, Held]


def steady(
    history: History, advice: Sequence[Advice], now_s: float, hold_s: float = HOLD_S
) -> tuple[History, tuple[Advice, ...]]:
    """Return the next history, and what to show now, the greatest gain first.

    What is shown and found again has its newest words; what is gone keeps its last ones until it disappears.

    Parameters
    ----------
    history
        What the last call returned; empty at first.
    advice
        What the rules find now.
    now_s
        A clock in seconds that only goes forward.
    """
    found = {each.rule: each for each in advice}
    following = {}
    for rule in dict.fromkeys((*history, *found)):
        held = _next(history.get(rule), found.get(rule), now_s, hold_s)
        if held is not None:
            following[rule] = held
    shown = [each.advice for each in following.values() if each.shown]
    return following, tuple(sorted(shown, key=lambda each: -each.gain))


def _next(held: Held | None, advice: Advice | None, now_s: float, hold_s: float) -> Held | None:
    if held is None:
        return None if advice is None else Held(advice, found=True, shown=hold_s <= 0, since_s=now_s)
    changed = held.found != (advice is not None)
    since_s = now_s if changed else held.since_s
    lasted = now_s - since_s >= hold_s
    if advice is not None:
        return replace(held, advice=advice, found=True, shown=held.shown or lasted, since_s=since_s)
    if not held.shown or lasted:
        return None
    return replace(held, found=False, since_s=since_s)


class SteadyAdvice:
    """The histories of several views of one run, such as the windows that pages look at.

    Parameters
    ----------
    hold_s
        Seconds that evidence must hold, and be gone.
    """

    def __init__(self, hold_s: float = HOLD_S) -> None:
        self._hold_s = hold_s
        self._histories: dict[float, History] = {}

    def shown(
        self,
        view: float,
        table: SampleTable,
        find: Callable[[SampleTable], Sequence[Advice]],
        advice: Sequence[Advice],
        now_s: float,
    ) -> tuple[Advice, ...]:
        """Return what a view shows now of the advice that was found.

        What a new view would have shown `hold_s` ago has held for that long: the samples until then say it.

        Parameters
        ----------
        view
            What tells the views apart.
        find
            The rules, for a table that ends earlier.
        """
        history = self._histories.get(view)
        if history is None:
            at_s, before_ns = now_s - self._hold_s, int(self._hold_s * 1e9)
            earlier = find(table.until(table.last_ns - before_ns)) if before_ns and table.last_ns else ()
            history = {each.rule: Held(each, found=True, shown=False, since_s=at_s) for each in earlier}
        self._histories[view], found = steady(history, advice, now_s, self._hold_s)
        return found

    def keep(self, views: Collection[float]) -> None:
        """Forget what nobody looks at any more."""
        self._histories = {view: each for view, each in self._histories.items() if view in views}
