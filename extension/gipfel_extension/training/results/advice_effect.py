"""Effect of the advice of the previous run: the changes that were tried, and the speedup."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from gipfel_cluster.model import Frozen

from ...saturation.advice.model import speedup_of
from ...saturation.report.document import SCHEMA_VERSION
from ...telemetry.files import read_object
from .program import RULE_OPTIONS
from .result import (
    LOSS_OF,
    MAX_BYTES,
    STEPS,
    Result,
    SavedAdvice,
    SavedResult,
    changed_options,
    data_indicator,
    earlier_result,
    option_indicator,
    other_options,
    result_of,
)

#: Rates that are comparable even if the steps of two runs differ.
_RATES = ("tokens_per_s", "samples_per_s", "images_per_s")
#: Minimum confidence of both scores for a comparison of scores.
_CERTAIN = 0.5
#: Half width of a 95 % confidence interval, in standard errors.
_SIGMAS = 1.96
#: Speedup (or slowdown) above which the runs must have done different work.
_MAX_RATIO = 1e6
#: Largest half width of the interval of a speedup's logarithm.
_WIDEST = 10.0
#: Factor above the advised bound from which something else must have changed, too.
_ABOVE = 1.02
DURATION = "duration"
_MAX_NAMED = 5

Verdict = Literal["tried", "not tried", "cannot tell"]


class Speedup(Frozen):
    """Speedup of the later run; the bounds ``lower`` and ``upper`` are None without a confidence interval.

    ``measured_by`` is the name of a logged rate, ``duration``, or ``score``.
    """

    value: float
    lower: float | None = None
    upper: float | None = None
    measured_by: str


class CheckedAdvice(Frozen):
    """One advised change, or several that the data can't distinguish.

    ``evidence`` lists signs that it was tried; ``speedup`` has the lower and upper bound that the advice
    promised.
    """

    rules: tuple[str, ...]
    knobs: tuple[str, ...]
    verdict: Verdict
    evidence: tuple[str, ...] = ()
    speedup: tuple[float, float] | None = None


class AdviceEffect(Frozen):
    """Effect of a run's advice on a later run of the same program.

    ``run`` is the earlier run. ``speedup`` is for all tried changes together, ``bound`` has the bounds that
    were advised for them, and ``reason`` is the reason why there is no speedup.
    """

    run: str
    speedup: Speedup | None = None
    bound: tuple[float, float] | None = None
    reason: str = ""
    checks: tuple[CheckedAdvice, ...]
    lines: tuple[str, ...] = ()


def advice_effect(run: Path, document: Mapping[str, Any]) -> AdviceEffect | None:
    """Compare a run with the newest earlier run of the same program; None if there is none.

    Earlier runs are searched in the parent directory of the run.
    """
    now = result_of(run.absolute(), document)
    before = None if now is None else earlier_result(now, run.absolute().parent)
    return None if now is None or before is None else compare_results(before, now)


def saved_advice_effect(run: Path) -> AdviceEffect | None:
    """Return the effect of the earlier advice from a run's ``score.json``; None if it has none."""
    document = read_object(run / "score.json", MAX_BYTES)
    with suppress(ValueError):
        if document.get("schema_version") == SCHEMA_VERSION:
            return AdviceEffect.model_validate(document.get("advice_effect"))
    return None


def compare_results(before: Result, now: Result) -> AdviceEffect | None:
    """Return the effect of a run's advice on a later run; None if it had no advice that can be followed."""
    given = [each for each in before.saved.advice if not each.rule.startswith("unaddressed-")]
    if not given:
        return None
    reason = "; ".join(_differences(before, now, {each.rule for each in given}))
    if reason:
        checks = tuple(_checked(each, "cannot tell") for each in given)
        return _with_lines(
            AdviceEffect(
                run=before.run, reason=f"the runs are not comparable because {reason}", checks=checks
            )
        )
    checks = tuple(_checks(given, before, now))
    tried = {rule for each in checks if each.verdict == "tried" for rule in each.rules}
    if not tried:
        return _with_lines(AdviceEffect(run=before.run, checks=checks))
    followed = [each for each in given if each.rule in tried]
    speedup, reason = _speedup(before, now, followed)
    # A duration includes startup, while rates and scores are of the time after startup.
    steady = 1.0 if speedup is not None and speedup.measured_by == DURATION else before.saved.steady
    bound = _bound(followed, steady)
    return _with_lines(
        AdviceEffect(run=before.run, speedup=speedup, bound=bound, reason=reason, checks=checks)
    )


def _differences(before: Result, now: Result, rules: set[str]) -> list[str]:
    """Return the reasons why two runs are not comparable."""
    first, second = before.saved, now.saved
    counts = len(first.gpus), len(second.gpus)
    models = [{each.name for each in saved.gpus} for saved in (first, second)]
    others = other_options(before, now, rules)
    names = ", ".join(others[:_MAX_NAMED]) + (" and more" if len(others) > _MAX_NAMED else "")
    reasons = (
        (first.simulated != second.simulated, "one is simulated"),
        (counts[0] != counts[1], f"they had {counts[0]} and {counts[1]} GPUs"),
        (counts[0] == counts[1] and models[0] != models[1], "their GPUs are different models"),
        (before.program.ranks != now.program.ranks, "they had different numbers of ranks"),
        (before.image and now.image and before.image != now.image, "their images differ"),
        (others, f"they differ in options that the advice does not mention: {names}"),
        (second.score is None, "the later one has no score"),
    )
    return [reason for applies, reason in reasons if applies]


def _checks(advice: Sequence[SavedAdvice], before: Result, now: Result) -> Iterator[CheckedAdvice]:
    by_option = {each.rule: option_indicator(each.rule, before, now) for each in advice}
    # If an option explains a lower loss, the loss doesn't count as evidence for other changes.
    explained = {LOSS_OF.get(rule) for rule, indicator in by_option.items() if indicator} - {None}
    groups: dict[tuple[str, ...], list[SavedAdvice]] = {}
    untried = []
    for each in advice:
        data = data_indicator(each.rule, before, now)
        option = by_option[each.rule]
        if not option and LOSS_OF.get(each.rule) in explained:
            data = ""
        evidence = tuple(indicator for indicator in (option, data) if indicator)
        if not evidence:
            untried.append(_checked(each, "not tried"))
        else:
            groups.setdefault(evidence, []).append(each)
    for evidence, same_evidence in groups.items():
        yield CheckedAdvice(
            rules=tuple(each.rule for each in same_evidence),
            knobs=tuple(each.knob.name for each in same_evidence),
            verdict="tried",
            evidence=evidence,
            speedup=_widest(same_evidence),
        )
    yield from untried


def _checked(advice: SavedAdvice, verdict: Verdict) -> CheckedAdvice:
    return CheckedAdvice(
        rules=(advice.rule,), knobs=(advice.knob.name,), verdict=verdict, speedup=advice.speedup
    )


def _widest(same_evidence: Sequence[SavedAdvice]) -> tuple[float, float] | None:
    known = [each.speedup for each in same_evidence if each.speedup is not None]
    return (min(lower for lower, _ in known), max(upper for _, upper in known)) if known else None


def _bound(followed: Sequence[SavedAdvice], steady: float) -> tuple[float, float] | None:
    """Return the bounds of all changes together; each loss counts once.

    Parameters
    ----------
    steady
        Share of the earlier run's time to which the speedup applies.
    """
    saved: dict[str, tuple[float, float]] = {}
    for each in followed:
        if each.speedup is None:
            return None
        lower, upper = ((1 - 1 / max(1.0, speed)) / steady for speed in each.speedup)
        loss = LOSS_OF.get(each.rule, each.rule)
        known = saved.get(loss, (0.0, 0.0))
        saved[loss] = max(known[0], lower), max(known[1], upper)
    sums = [sum(each[index] for each in saved.values()) for index in (0, 1)]
    return round(speedup_of(sums[0]), 3), round(speedup_of(sums[1]), 3)


def _speedup(before: Result, now: Result, followed: Sequence[SavedAdvice]) -> tuple[Speedup | None, str]:
    """Return the speedup of the later run, or None and the reason why it is unknown."""
    rules = {each.rule for each in followed}
    same_step = "batch-size" not in rules
    found = _by_rate(before.saved, now.saved, same_step=same_step)
    if found is None and same_step and _same_length(before, now, rules):
        found = _by_duration(before.saved, now.saved)
    if found is not None:
        return found, ""
    problem = _no_score(before.saved, now.saved, followed)
    if problem:
        return None, problem
    first, second = ((each.saved.score or 0.0) / each.saved.steady for each in (before, now))
    return Speedup(value=round(second / first, 4), measured_by="score"), ""


def _by_rate(first: SavedResult, second: SavedResult, *, same_step: bool) -> Speedup | None:
    common = [name for name in first.rates if name in second.rates and name != STEPS]
    rates = sorted(common, key=lambda name: _RATES.index(name) if name in _RATES else len(_RATES))
    if same_step and STEPS in first.rates and STEPS in second.rates:
        rates.append(STEPS)
    for name in rates:
        (a, error_a), (b, error_b) = first.rates[name], second.rates[name]
        if a > 0 and b > 0 and 1 / _MAX_RATIO < b / a < _MAX_RATIO:
            spread = math.exp(min(_WIDEST, _SIGMAS * math.hypot(error_a / a, error_b / b)))
            lower, value, upper = (round(each, 4) for each in (b / a / spread, b / a, b / a * spread))
            return Speedup(value=value, lower=lower, upper=upper, measured_by=name)
    return None


def _by_duration(first: SavedResult, second: SavedResult) -> Speedup | None:
    if not first.seconds or not second.seconds:
        return None
    return Speedup(value=round(first.seconds / second.seconds, 4), measured_by=DURATION)


def _no_score(first: SavedResult, second: SavedResult, followed: Sequence[SavedAdvice]) -> str:
    """Return why the scores of both runs do not show the speedup; empty if they do."""
    confidence = min(first.confidence or 0.0, second.confidence or 0.0)
    problems = (
        (
            any(each.gain <= 0 for each in followed),
            "the score does not show it, and the runs did not both log a rate such as tokens_per_s",
        ),
        (first.interval_s != second.interval_s, "the scores are of samples at different intervals"),
        (first.weights != second.weights, "the scores have different weights"),
        (confidence < _CERTAIN, "too few samples were scored"),
        (not (first.score and second.score), "one of the scores is 0"),
    )
    return next((problem for applies, problem in problems if applies), "")


def _same_length(before: Result, now: Result, rules: set[str]) -> bool:
    """Return whether both runs have the same options, except those of the rules."""
    known = [RULE_OPTIONS[rule] for rule in rules if rule in RULE_OPTIONS]
    return all(any(each.search(name) for each in known) for name in changed_options(before, now))


def _with_lines(effect: AdviceEffect) -> AdviceEffect:
    return effect.model_copy(update={"lines": tuple(_lines(effect))})


def _lines(effect: AdviceEffect) -> Iterator[str]:
    run = f"Since run {effect.run}"
    if effect.reason and not any(each.verdict == "tried" for each in effect.checks):
        yield f"{run}: cannot tell what its advice gained: {effect.reason}."
        return
    tried = [each for each in effect.checks if each.verdict == "tried"]
    untried = [knob for each in effect.checks if each.verdict == "not tried" for knob in each.knobs]
    if tried:
        changes = _joined([f"{' or '.join(each.knobs)} ({', '.join(each.evidence)})" for each in tried])
        yield f"{run}: you tried {changes}: {_outcome(effect)}."
    if untried:
        were = "were" if len(untried) > 1 else "was"
        they = "they were" if len(untried) > 1 else "it was"
        yield f"{_joined(untried)} {were} advised in run {effect.run}; nothing shows that {they} tried."


def _outcome(effect: AdviceEffect) -> str:
    speedup = effect.speedup
    if speedup is None:
        return f"cannot tell what it gained: {effect.reason}"
    spread = (
        ""
        if speedup.lower is None or speedup.upper is None
        else f" ({speedup.lower:.2f} to {speedup.upper:.2f})"
    )
    same = " if both did the same work" if speedup.measured_by == DURATION else ""
    sentence = f"{speedup.value:.2f} times{spread} by {speedup.measured_by}{same}"
    if effect.bound is not None:
        lower, upper = effect.bound
        bound = f"{upper:.2f}" if round(lower, 2) <= 1 else f"{lower:.2f} to {upper:.2f}"
        sentence += f", {bound} was the bound"
        if (speedup.lower or speedup.value) > _ABOVE * upper:
            sentence += ", so something else changed too"
    if speedup.lower is not None and speedup.upper is not None and speedup.lower <= 1 <= speedup.upper:
        sentence += "; that is within the noise"
    return sentence


def _joined(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)
