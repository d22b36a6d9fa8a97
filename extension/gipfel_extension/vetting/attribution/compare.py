"""Compare a check's measurements with those of the other nodes and with a stored baseline."""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

from ..model import CheckResult, Verdict, worst
from ..protocol import ProtocolCheck, VettingProtocol
from ..statistics import NORMAL, mad
from ..threshold import Threshold, with_unit

#: Least number of measurements from which their median is used.
_MIN_MEASUREMENTS = 3
#: Smallest spread that is assumed, as a share of the median: a few measurements may be equal by chance, which
#: would make their spread zero.
_MIN_SPREAD = 0.005


def compare_with_allocation(
    protocol: VettingProtocol,
    results: Sequence[CheckResult],
    baselines: Mapping[tuple[str, str], float] | None = None,
) -> tuple[CheckResult, ...]:
    """Return the results in their order, judged by thresholds relative to the allocation or a baseline.

    Parameters
    ----------
    baselines
        Stored baselines in base units by check and GPU model; the model is empty for checks without a GPU.
    """
    entries = {entry.name: entry for entry in protocol.checks if entry.threshold is not None}
    groups: dict[tuple[str, str], list[CheckResult]] = defaultdict(list)
    for result in results:
        if result.check in entries and result.measurement is not None:
            groups[result.check, str(result.evidence.get("model") or "")].append(result)
    stored = baselines or {}
    changed = {
        id(member): _compared(member, entries[name], members, stored.get((name, model)))
        for (name, model), members in groups.items()
        for member in members
    }
    return tuple(changed.get(id(result), result) for result in results)


def _compared(
    result: CheckResult, entry: ProtocolCheck, members: Sequence[CheckResult], baseline: float | None
) -> CheckResult:
    threshold, value = entry.threshold, result.measurement
    # Only passes and results that await the comparison are judged; other verdicts have another reason.
    awaits = result.verdict is Verdict.INCONCLUSIVE and result.evidence.get("awaits_comparison") is True
    if threshold is None or value is None or not (awaits or result.verdict is Verdict.PASS):
        return result
    verdicts = []
    values = [member.measurement for member in members if member.measurement is not None]
    if threshold.relative and len(values) >= _MIN_MEASUREMENTS:
        verdicts.append(_against_allocation(value, values, threshold, result.unit))
    if threshold.below_baseline is not None and baseline:
        below = 1.0 - value / baseline
        verdicts.append(_below(below, threshold.below_baseline, threshold, "the stored baseline"))
    if not verdicts:
        return _not_comparable(result, relative=threshold.relative, awaits=awaits)
    verdict = worst([each for each, _ in verdicts])
    if verdict is Verdict.PASS and not awaits:
        return result
    reason = next(text for each, text in verdicts if each is verdict)
    fix = result.fix or ("" if verdict is Verdict.PASS else "Exclude this node, and tell the operators.")
    return result.with_verdict(verdict, f"{with_unit(value, result.unit)}: {reason}", fix=fix)


def _not_comparable(result: CheckResult, *, relative: bool, awaits: bool) -> CheckResult:
    # Without a relative threshold, the result already says which reference or baseline is missing.
    if not awaits or not relative:
        return result
    measured = with_unit(result.measurement or 0.0, result.unit)
    text = f"{measured}: there are too few measurements of other nodes to compare it with."
    return result.with_verdict(
        Verdict.INCONCLUSIVE,
        text,
        fix="Set an absolute threshold in the protocol, or vet more nodes together.",
    )


def _against_allocation(
    value: float, values: Sequence[float], threshold: Threshold, unit: str
) -> tuple[Verdict, str]:
    middle = statistics.median(values)
    spread = max(NORMAL * mad(values), _MIN_SPREAD * abs(middle))
    distance = abs(value - middle) / spread if spread else 0.0
    verdicts = [(Verdict.PASS, "close to the allocation's median.")]
    if threshold.below_median is not None and middle:
        below = 1.0 - value / middle
        if distance >= threshold.mads:
            verdicts.append(_below(below, threshold.below_median, threshold, "the allocation's median"))
        elif below >= threshold.below_median:
            text = (
                f"{below:.0%} below the allocation's median, but the measurements vary too much to name a"
                " slow node."
            )
            verdicts.append((Verdict.INCONCLUSIVE, text))
    if threshold.above_median is not None:
        above = value - middle
        if above > threshold.above_median and distance >= threshold.mads:
            text = f"{with_unit(above, unit)} above the allocation's median, {distance:.0f} spreads"
            verdicts.append((Verdict.FAIL, text))
    verdict = worst([each for each, _ in verdicts])
    return next(each for each in verdicts if each[0] is verdict)


def _below(below: float, limit: float, threshold: Threshold, reference: str) -> tuple[Verdict, str]:
    if below >= limit:
        return Verdict.FAIL, f"{below:.0%} below {reference}."
    if below >= threshold.degraded_below:
        return Verdict.DEGRADED, f"{below:.1%} below {reference}."
    return Verdict.PASS, f"close to {reference}."
