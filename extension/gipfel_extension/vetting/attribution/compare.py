"""Compare the measurements of a check with those of the other nodes, and with a stored baseline."""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

from ..model import CheckResult, Verdict, worst
from ..protocol import ProtocolCheck, VettingProtocol
from ..quantities import with_unit
from ..statistics import NORMAL, mad
from ..threshold import Threshold

#: With fewer figures a median says nothing.
_LEAST_FIGURES = 3
#: Spread that any figure has, as a share: a handful of equal figures shows none.
_LEAST_SPREAD = 0.005


def compare_with_allocation(
    protocol: VettingProtocol,
    results: Sequence[CheckResult],
    baselines: Mapping[tuple[str, str], float] | None = None,
) -> tuple[CheckResult, ...]:
    """Return the results in their order, judged by thresholds relative to the allocation or a baseline.

    Parameters
    ----------
    baselines
        Check type and GPU model (empty where there is none) to a stored figure in base units.
    """
    entries = {entry.name: entry for entry in protocol.checks if entry.threshold is not None}
    groups: dict[tuple[str, str], list[CheckResult]] = defaultdict(list)
    for result in results:
        if result.check in entries and result.figure is not None:
            groups[result.check, _model(result)].append(result)
    changed: dict[int, CheckResult] = {}
    for (name, model), members in groups.items():
        baseline = (baselines or {}).get((entries[name].type, model))
        for member in members:
            changed[id(member)] = _compared(member, entries[name], members, baseline)
    return tuple(changed.get(id(result), result) for result in results)


def _model(result: CheckResult) -> str:
    return str(result.evidence.get("model") or "")


def _compared(
    result: CheckResult, entry: ProtocolCheck, members: Sequence[CheckResult], baseline: float | None
) -> CheckResult:
    threshold, figure = entry.threshold, result.figure
    # A verdict for another reason than its figure stays; one that only waited is decided here.
    waits = result.verdict is Verdict.INCONCLUSIVE and result.evidence.get("waits") is True
    if threshold is None or figure is None or not (waits or result.verdict is Verdict.PASS):
        return result
    found = []
    figures = [member.figure for member in members if member.figure is not None]
    if threshold.relative and len(figures) >= _LEAST_FIGURES:
        found.append(_beside(figure, figures, threshold, result.unit))
    if threshold.below_baseline is not None and baseline:
        below = 1.0 - figure / baseline
        found.append(_below(below, threshold.below_baseline, threshold, "the stored baseline"))
    if not found:
        return _alone(result, waits=waits)
    verdict = worst([each for each, _ in found])
    if verdict is Verdict.PASS and not waits:
        return result
    reason = next(text for each, text in found if each is verdict)
    fix = "" if verdict is Verdict.PASS else result.fix or "Leave this node out, and tell the operators."
    return result.with_verdict(verdict, f"{with_unit(figure, result.unit)}: {reason}", fix=fix)


def _alone(result: CheckResult, *, waits: bool) -> CheckResult:
    if not waits:
        return result
    text = f"{with_unit(result.figure or 0.0, result.unit)}: there are too few others to compare it with."
    return result.with_verdict(
        Verdict.INCONCLUSIVE,
        text,
        fix="Give an absolute threshold in the protocol, or vet more nodes together.",
    )


def _beside(figure: float, figures: Sequence[float], threshold: Threshold, unit: str) -> tuple[Verdict, str]:
    middle = statistics.median(figures)
    spread = max(NORMAL * mad(figures), _LEAST_SPREAD * abs(middle))
    distance = abs(figure - middle) / spread if spread else 0.0
    found = []
    if threshold.below_median is not None and middle:
        below = 1.0 - figure / middle
        if distance >= threshold.mads:
            found.append(_below(below, threshold.below_median, threshold, "the allocation's median"))
        elif below >= threshold.below_median:
            text = f"{below:.0%} below the allocation's median, as others are: who is slow can't be told."
            found.append((Verdict.INCONCLUSIVE, text))
        else:
            found.append((Verdict.PASS, "as the allocation's median."))
    if threshold.above_median is not None:
        above = figure - middle
        if above > threshold.above_median and distance >= threshold.mads:
            found.append(
                (
                    Verdict.FAIL,
                    f"{with_unit(above, unit)} above the allocation's median, {distance:.0f} MADs.",
                )
            )
        else:
            found.append((Verdict.PASS, "as the others of the allocation."))
    verdict = worst([each for each, _ in found])
    return next(each for each in found if each[0] is verdict)


def _below(below: float, most: float, threshold: Threshold, what: str) -> tuple[Verdict, str]:
    if below >= most:
        return Verdict.FAIL, f"{below:.0%} below {what}."
    if below >= threshold.degraded_below:
        return Verdict.DEGRADED, f"{below:.1%} below {what}."
    return Verdict.PASS, f"as {what}."
