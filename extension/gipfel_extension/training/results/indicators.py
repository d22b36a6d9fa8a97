"""Indicators that advice was followed: changed options, and changes in the samples of both runs."""

import math
import re
from collections.abc import Callable, Iterator, Mapping

from .program import IRRELEVANT_OPTIONS, RULE_OPTIONS, workload_of
from .result import Result

#: A loss has fallen if it is lower by this many points and by this share; smaller changes are noise.
_POINTS, _SHARE = 3.0, 1 / 3
#: Activity below which tensor pipes count as unused; changes of memory use and of an interval that count.
_UNUSED, _MEMORY, _APART = 0.05, 0.05, 0.25
Observed = Mapping[str, float | None]
#: Rule to the loss that its change reduces.
LOSS_OF = {
    "loader-workers": "input",
    "pinned-memory": "input",
    "video-decoder": "input",
    "compile": "launch",
    "cuda-graphs": "launch",
    "batch-size": "occupancy",
    "activation-checkpointing": "occupancy",
    "bucket-size": "communication",
    "placement": "communication",
    "slow-rank": "imbalance",
    "asynchronous-checkpoint": "checkpoint",
    "capping": "capped",
}
#: Rules whose change can be detected by a lower loss. For others there are more causes: a warm page cache
#: speeds up input, and other nodes change communication and clocks.
_SEEN_BY_LOSS = frozenset(
    ("compile", "cuda-graphs", "asynchronous-checkpoint", "slow-rank", "loader-workers")
)
#: Factor by which the use of host cores rises with more loader workers.
_MORE_CORES = 1.2
#: Rules that advise to increase a value; a lower value does not follow the advice.
_UPWARDS = frozenset(("loader-workers", "batch-size", "bucket-size"))
_NUMBER = re.compile(r"[0-9]{1,12}")


def option_indicator(rule: str, before: Result, now: Result) -> str:
    """Return the changed option that follows the advice of a rule; empty if there is none."""
    pattern = RULE_OPTIONS.get(rule)
    if pattern is None:
        return ""
    if rule in {"half-precision", "quarter-precision"}:
        return _precision(rule, before, now)
    for name in changed_options(before, now):
        first, second = before.program.options.get(name, ""), now.program.options.get(name, "")
        if pattern.search(name) and now.program.is_enabled(name):
            numbers = _NUMBER.fullmatch(first), _NUMBER.fullmatch(second)
            if rule in _UPWARDS and all(numbers) and int(second) <= int(first):
                continue
            return f"option {name}"
    return ""


def _precision(rule: str, before: Result, now: Result) -> str:
    first, second = (workload_of(each.program).precision for each in (before, now))
    wanted = {"fp8"} if rule == "quarter-precision" else {"bf16", "fp16", "tf32"}
    return f"{second} by its options" if second in wanted and first != second else ""


def changed_options(before: Result, now: Result) -> Iterator[str]:
    """Yield the names of options whose values differ, or that only one of the runs has."""
    first, second = before.program.options, now.program.options
    for name in dict.fromkeys((*first, *second)):
        if first.get(name) != second.get(name):
            yield name


def other_options(before: Result, now: Result, rules: set[str]) -> tuple[str, ...]:
    """Return the options that differ, except those of the rules and those that do not affect speed."""
    known = [IRRELEVANT_OPTIONS, *(RULE_OPTIONS[rule] for rule in rules if rule in RULE_OPTIONS)]
    return tuple(
        name for name in changed_options(before, now) if not any(each.search(name) for each in known)
    )


def data_indicator(rule: str, before: Result, now: Result) -> str:
    """Return the change in the samples that follows the advice of a rule; empty without one."""
    own = _OWN.get(rule)
    if own is None:
        return _loss_indicator(rule, before, now)
    return own(before.saved.observed, now.saved.observed)


def _loss_indicator(rule: str, before: Result, now: Result) -> str:
    # Losses at different sampling intervals are not comparable.
    if rule not in _SEEN_BY_LOSS or before.saved.interval_s != now.saved.interval_s:
        return ""
    loss, cores = LOSS_OF[rule], _pair("host_cores", before.saved.observed, now.saved.observed)
    if rule == "loader-workers" and not cores[1] >= _MORE_CORES * cores[0]:
        return ""
    # As a share of the time after startup, because startup is a smaller share of a longer run.
    first, second = ((each.saved.losses.get(loss) or 0.0) / each.saved.steady for each in (before, now))
    if first - second < max(_POINTS, _SHARE * first):
        return ""
    return f"{loss} from {first:.0f} to {second:.0f} points"


def _pair(name: str, first: Observed, second: Observed) -> tuple[float, float]:
    """Return the values of both runs; NaN for both if one is unknown, so that no comparison is true."""
    a, b = first.get(name), second.get(name)
    return (math.nan, math.nan) if a is None or b is None else (a, b)


def _tensor(first: Observed, second: Observed) -> str:
    before, now = _pair("tensor", first, second)
    single = _pair("fp32", first, second)
    if before < _UNUSED <= now - _UNUSED and single[1] < 0.5 * single[0]:
        return f"tensor pipes from {100 * before:.0f} to {100 * now:.0f} %"
    return ""


def _memory(upwards: bool) -> Callable[[Observed, Observed], str]:  # noqa: FBT001
    def indicator(first: Observed, second: Observed) -> str:
        before, now = _pair("memory_used", first, second)
        more = now - before if upwards else before - now
        return f"memory in use from {100 * before:.0f} to {100 * now:.0f} %" if more >= _MEMORY else ""

    return indicator


def _interval(first: Observed, second: Observed) -> str:
    before, now = _pair("checkpoint_every_s", first, second)
    if abs(now - before) >= _APART * before:
        return f"checkpoints every {now:.0f} s in place of {before:.0f} s"
    return ""


_OWN: Mapping[str, Callable[[Observed, Observed], str]] = {
    "half-precision": _tensor,
    "batch-size": _memory(upwards=True),
    "activation-checkpointing": _memory(upwards=False),
    "checkpoint-interval": _interval,
}
