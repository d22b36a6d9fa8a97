"""Effect of the advice of the previous run: what was tried, and how much faster the work got."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from gipfel_cluster.model import Frozen

from ...saturation.advice.model import faster
from ...saturation.report.document import SCHEMA_VERSION
from ...telemetry.files import read_json
from .indicators import LOSS_OF, changed_options, data_indicator, option_indicator, other_options
from .program import KNOBS
from .result import MOST_BYTES, STEPS, KeptAdvice, KeptResult, Result, earlier_result, result_of

#: Rates in which the same work counts the same, whatever a step is.
_RATES = ("tokens_per_s", "samples_per_s", "images_per_s")
_CERTAIN = 0.5
#: Half the width of a 95 % interval, in standard errors.
_SIGMAS = 1.96
#: What is so many times faster did other work.
_MOST = 1e6
#: Of the logarithm of a ratio.
_WIDEST = 10.0
_ABOVE = 1.02
DURATION = "duration"
_MOST_NAMED = 5

Verdict = Literal["tried", "not tried", "cannot tell"]


class Ratio(Frozen):
    """Speedup of the later run; ``least`` and ``most`` are None without an interval.

    ``by`` is the rate that was logged, ``duration``, or ``score``.
    """

    value: float
    least: float | None = None
    most: float | None = None
    by: str


class CheckedAdvice(Frozen):
    """One advised change, or several that the data can't distinguish.

    ``signs`` show that it was tried; ``speedup`` are the bounds that were advised.
    """

    rules: tuple[str, ...]
    knobs: tuple[str, ...]
    verdict: Verdict
    signs: tuple[str, ...] = ()
    speedup: tuple[float, float] | None = None


class Since(Frozen):
    """Two runs of one program: `ratio` is for all that was tried together, `reason` why there is none."""

    run: str
    ratio: Ratio | None = None
    bound: tuple[float, float] | None = None
    reason: str = ""
    checks: tuple[CheckedAdvice, ...]
    lines: tuple[str, ...] = ()


def since_of(run: Path, document: Mapping[str, Any]) -> Since | None:
    """Compare a run with the newest earlier run of the same program; None if there is none.

    Runs are looked for beside this one's directory.
    """
    now = result_of(run.absolute(), document)
    before = None if now is None else earlier_result(now, run.absolute().parent)
    return None if now is None or before is None else compare_results(before, now)


def kept_since(run: Path) -> Since | None:
    """Return the effect of the earlier advice from a run's ``score.json``; None if it has none."""
    with suppress(OSError, ValueError):
        document = read_json(run / "score.json", MOST_BYTES)
        if isinstance(document, dict) and document.get("schema_version") == SCHEMA_VERSION:
            return Since.model_validate(document.get("since"))
    return None


def compare_results(before: Result, now: Result) -> Since | None:
    """Return what became of the advice of a run; None where it had no advice that can be followed."""
    given = [each for each in before.kept.advice if not each.rule.startswith("untreated-")]
    if not given:
        return None
    reason = "; ".join(_differences(before, now, {each.rule for each in given}))
    if reason:
        checks = tuple(_checked(each, "cannot tell") for each in given)
        return _with_lines(
            Since(run=before.run, reason=f"the runs are not comparable because {reason}", checks=checks)
        )
    checks = tuple(_checks(given, before, now))
    tried = {rule for each in checks if each.verdict == "tried" for rule in each.rules}
    if not tried:
        return _with_lines(Since(run=before.run, checks=checks))
    followed = [each for each in given if each.rule in tried]
    ratio, reason = _ratio(before, now, followed)
    # Whole durations hold the start-up; a rate in steady work, and a score without its start-up, don't.
    steady = 1.0 if ratio is not None and ratio.by == DURATION else before.kept.steady
    bound = _bound(followed, steady)
    return _with_lines(Since(run=before.run, ratio=ratio, bound=bound, reason=reason, checks=checks))


def _differences(before: Result, now: Result, rules: set[str]) -> Iterator[str]:
    """Yield why the two runs can't be held against each other."""
    first, second = before.kept, now.kept
    if first.simulated != second.simulated:
        yield "one is simulated"
    if len(first.gpus) != len(second.gpus):
        yield f"they had {len(first.gpus)} and {len(second.gpus)} GPUs"
    elif {each.name for each in first.gpus} != {each.name for each in second.gpus}:
        yield "their GPUs are different models"
    if before.program.ranks != now.program.ranks:
        yield "they had different numbers of ranks"
    if before.image and now.image and before.image != now.image:
        yield "their images differ"
    others = other_options(before, now, rules)
    if others:
        more = " and more" if len(others) > _MOST_NAMED else ""
        yield f"options differ that no advice was about: {', '.join(others[:_MOST_NAMED])}{more}"
    if second.score is None:
        yield "the later one has no score"


def _checks(given: Sequence[KeptAdvice], before: Result, now: Result) -> Iterator[CheckedAdvice]:
    by_option = {each.rule: option_indicator(each.rule, before, now) for each in given}
    # A loss that fell is explained by the change that an option shows, not by its neighbours.
    explained = {LOSS_OF.get(rule) for rule, sign in by_option.items() if sign} - {None}
    groups: dict[tuple[str, ...], list[KeptAdvice]] = {}
    left = []
    for each in given:
        data = data_indicator(each.rule, before, now)
        option = by_option[each.rule]
        if not option and LOSS_OF.get(each.rule) in explained:
            data = ""
        signs = tuple(sign for sign in (option, data) if sign)
        if not signs:
            left.append(_checked(each, "not tried"))
        else:
            groups.setdefault(signs, []).append(each)
    for signs, alike in groups.items():
        yield CheckedAdvice(
            rules=tuple(each.rule for each in alike),
            knobs=tuple(each.knob.name for each in alike),
            verdict="tried",
            signs=signs,
            speedup=_widest(alike),
        )
    yield from left


def _checked(advice: KeptAdvice, verdict: Verdict) -> CheckedAdvice:
    return CheckedAdvice(
        rules=(advice.rule,), knobs=(advice.knob.name,), verdict=verdict, speedup=advice.speedup
    )


def _widest(alike: Sequence[KeptAdvice]) -> tuple[float, float] | None:
    known = [each.speedup for each in alike if each.speedup is not None]
    return (min(least for least, _ in known), max(most for _, most in known)) if known else None


def _bound(followed: Sequence[KeptAdvice], steady: float) -> tuple[float, float] | None:
    """Return the bounds of all changes together: each loss can be given back once.

    Parameters
    ----------
    steady
        The share of the earlier run's time that is looked at.
    """
    saved: dict[str, tuple[float, float]] = {}
    for each in followed:
        if each.speedup is None:
            return None
        least, most = ((1 - 1 / max(1.0, speed)) / steady for speed in each.speedup)
        loss = LOSS_OF.get(each.rule, each.rule)
        known = saved.get(loss, (0.0, 0.0))
        saved[loss] = max(known[0], least), max(known[1], most)
    sums = [sum(each[place] for each in saved.values()) for place in (0, 1)]
    return round(faster(sums[0]), 3), round(faster(sums[1]), 3)


def _ratio(before: Result, now: Result, followed: Sequence[KeptAdvice]) -> tuple[Ratio | None, str]:
    """Return how many times faster the later run was; else why that is unknown."""
    rules = {each.rule for each in followed}
    same_step = "batch-size" not in rules
    found = _by_rate(before.kept, now.kept, same_step=same_step)
    if found is None and same_step and _same_length(before, now, rules):
        found = _by_duration(before.kept, now.kept)
    if found is not None:
        return found, ""
    problem = _no_score(before.kept, now.kept, followed)
    if problem:
        return None, problem
    first, second = ((each.kept.score or 0.0) / each.kept.steady for each in (before, now))
    return Ratio(value=round(second / first, 4), by="score"), ""


def _by_rate(first: KeptResult, second: KeptResult, *, same_step: bool) -> Ratio | None:
    common = [name for name in first.pace if name in second.pace and name != STEPS]
    rates = sorted(common, key=lambda name: _RATES.index(name) if name in _RATES else len(_RATES))
    if same_step and STEPS in first.pace and STEPS in second.pace:
        rates.append(STEPS)
    for name in rates:
        (a, error_a), (b, error_b) = first.pace[name], second.pace[name]
        if a > 0 and b > 0 and 1 / _MOST < b / a < _MOST:
            spread = math.exp(min(_WIDEST, _SIGMAS * math.hypot(error_a / a, error_b / b)))
            least, value, most = (round(each, 4) for each in (b / a / spread, b / a, b / a * spread))
            return Ratio(value=value, least=least, most=most, by=name)
    return None


def _by_duration(first: KeptResult, second: KeptResult) -> Ratio | None:
    if not first.seconds or not second.seconds:
        return None
    return Ratio(value=round(first.seconds / second.seconds, 4), by=DURATION)


def _no_score(first: KeptResult, second: KeptResult, followed: Sequence[KeptAdvice]) -> str:
    """Return why the scores of both runs don't show how much faster the work got; empty where they do."""
    if any(each.gain <= 0 for each in followed):
        return "the score doesn't show it, and both runs didn't log a rate such as tokens_per_s"
    if first.interval_s != second.interval_s:
        return "the scores are of samples at different intervals"
    if first.weights != second.weights:
        return "the scores have different weights"
    if min(first.confidence or 0.0, second.confidence or 0.0) < _CERTAIN:
        return "too few samples were scored"
    return "" if first.score and second.score else "one of the scores is 0"


def _same_length(before: Result, now: Result, rules: set[str]) -> bool:
    """Return whether the options ask both runs for the same work, down to the number of steps."""
    known = [KNOBS[rule] for rule in rules if rule in KNOBS]
    return all(any(each.search(name) for each in known) for name in changed_options(before, now))


def _with_lines(since: Since) -> Since:
    return since.model_copy(update={"lines": tuple(_lines(since))})


def _lines(since: Since) -> Iterator[str]:
    run = f"Since run {since.run}"
    if since.reason and not any(each.verdict == "tried" for each in since.checks):
        yield f"{run}: cannot tell what its advice gained: {since.reason}."
        return
    tried = [each for each in since.checks if each.verdict == "tried"]
    left = [knob for each in since.checks if each.verdict == "not tried" for knob in each.knobs]
    if tried:
        changes = _joined([f"{' or '.join(each.knobs)} ({', '.join(each.signs)})" for each in tried])
        yield f"{run}: you tried {changes}: {_outcome(since)}."
    if left:
        were = "were" if len(left) > 1 else "was"
        they = "they were" if len(left) > 1 else "it was"
        yield f"{_joined(left)} {were} advised in run {since.run}; nothing shows that {they} tried."


def _outcome(since: Since) -> str:
    ratio = since.ratio
    if ratio is None:
        return f"cannot tell what it gained: {since.reason}"
    spread = "" if ratio.least is None or ratio.most is None else f" ({ratio.least:.2f} to {ratio.most:.2f})"
    same = " if both did the same work" if ratio.by == DURATION else ""
    said = f"{ratio.value:.2f} times{spread} by {ratio.by}{same}"
    if since.bound is not None:
        least, most = since.bound
        bound = f"{most:.2f}" if round(least, 2) <= 1 else f"{least:.2f} to {most:.2f}"
        said += f", {bound} was the bound"
        if (ratio.least or ratio.value) > _ABOVE * most:
            said += ", so something else changed too"
    if ratio.least is not None and ratio.most is not None and ratio.least <= 1 <= ratio.most:
        said += "; that is within the noise"
    return said


def _joined(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)
