"""Indicators that advice was followed: options of the launch, and the samples of both runs."""

import math
import re
from collections.abc import Callable, Iterator, Mapping

from .program import HARMLESS, KNOBS, workload_of
from .result import Result

#: A loss has fallen where it is less by so many points and by this share of it: runs differ a little anyway.
_POINTS, _SHARE = 3.0, 1 / 3
#: Levels below which tensor pipes are unused; shares of memory and of an interval that are a change.
_UNUSED, _MEMORY, _APART = 0.05, 0.05, 0.25
Observed = Mapping[str, float | None]
#: Rule to the loss that its change takes back.
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
#: Rules whose change nothing else is likely to look like: a full page cache makes input faster too, and
#: other nodes make communication and clocks differ.
_SEEN_BY_LOSS = frozenset(
    ("compile", "cuda-graphs", "asynchronous-checkpoint", "slow-rank", "loader-workers")
)
#: By how much more of the host's cores workers show.
_MORE_CORES = 1.2
#: Rules whose knob is also turned the other way: only upwards is what was advised.
_UPWARDS = frozenset(("loader-workers", "batch-size", "bucket-size"))
_NUMBER = re.compile(r"[0-9]{1,12}")


def option_indicator(rule: str, before: Result, now: Result) -> str:
    """Return the option that shows it; empty where none does."""
    pattern = KNOBS.get(rule)
    if pattern is None:
        return ""
    if rule in {"half-precision", "quarter-precision"}:
        return _precision(rule, before, now)
    for name in changed_options(before, now):
        first, second = before.program.options.get(name, ""), now.program.options.get(name, "")
        if pattern.search(name) and now.program.on(name):
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
    """Yield the names of options whose values differ, or that one of both runs lacks."""
    first, second = before.program.options, now.program.options
    for name in dict.fromkeys((*first, *second)):
        if first.get(name) != second.get(name):
            yield name


def other_options(before: Result, now: Result, rules: set[str]) -> tuple[str, ...]:
    """Return the options that differ and that neither advice nor harmlessness explains."""
    known = [HARMLESS, *(KNOBS[rule] for rule in rules if rule in KNOBS)]
    return tuple(
        name for name in changed_options(before, now) if not any(each.search(name) for each in known)
    )


def data_indicator(rule: str, before: Result, now: Result) -> str:
    """Return what the samples of both runs show of it; empty where nothing does."""
    own = _OWN.get(rule)
    if own is None:
        return _loss_sign(rule, before, now)
    return own(before.kept.observed, now.kept.observed)


def _loss_sign(rule: str, before: Result, now: Result) -> str:
    # Coarse samples explain less: a loss can be less by that alone.
    if rule not in _SEEN_BY_LOSS or before.kept.interval_s != now.kept.interval_s:
        return ""
    loss, cores = LOSS_OF[rule], _pair("host_cores", before.kept.observed, now.kept.observed)
    if rule == "loader-workers" and not cores[1] >= _MORE_CORES * cores[0]:
        return ""
    # Of the time after the start-up: a longer run has less of that, and more of everything else.
    first, second = ((each.kept.losses.get(loss) or 0.0) / each.kept.steady for each in (before, now))
    if first - second < max(_POINTS, _SHARE * first):
        return ""
    return f"{loss} from {first:.0f} to {second:.0f} points"


def _pair(name: str, first: Observed, second: Observed) -> tuple[float, float]:
    """Return what both runs had; NaN, which is neither more nor less, where either is unknown."""
    a, b = first.get(name), second.get(name)
    return (math.nan, math.nan) if a is None or b is None else (a, b)


def _tensor(first: Observed, second: Observed) -> str:
    before, now = _pair("tensor", first, second)
    single = _pair("fp32", first, second)
    if before < _UNUSED <= now - _UNUSED and single[1] < 0.5 * single[0]:
        return f"tensor pipes from {100 * before:.0f} to {100 * now:.0f} %"
    return ""


def _memory(upwards: bool) -> Callable[[Observed, Observed], str]:  # noqa: FBT001
    def sign(first: Observed, second: Observed) -> str:
        before, now = _pair("memory_used", first, second)
        more = now - before if upwards else before - now
        return f"memory in use from {100 * before:.0f} to {100 * now:.0f} %" if more >= _MEMORY else ""

    return sign


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
