"""Thresholds on a measurement: absolute, by GPU model, by reference value, or relative to the allocation."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, model_validator

from gipfel_cluster.model import Frozen, Line

from .model import Finding, Owner, Verdict, worst
from .quantities import Quantity, with_unit
from .reference_values import ReferenceValue, best_known
from .statistics import percentile

#: A share between 0 and 1; percent are understood.
Share = Annotated[Quantity, Field(gt=0, lt=1)]
#: What a finding is until the other nodes have answered.
WAITS = "It is still to be compared with the other nodes."


class Limits(Frozen):
    """Absolute limits, in base units: bytes per second, FLOP per second, seconds, degrees Celsius, shares."""

    at_least: Quantity | None = None
    at_most: Quantity | None = None


class Threshold(Limits):
    """Conditions on a measurement; all that are given must hold.

    Parameters
    ----------
    by_model
        Words of a GPU's name to limits; the first entry whose words all occur replaces the limits above.
    of_best_known
        Least share of the reference value for this GPU model or, between nodes, for this network;
        inconclusive where none is known and nothing else can be judged.
    below_median
        Share below the median of the allocation from which a measurement fails.
    above_median
        In the measurement's unit: how far above the median of the allocation it may be.
    mads
        How many MADs away from the median it must be as well to fail.
    below_baseline
        Share below the stored baseline from which a measurement fails; ignored without a baseline.
    degraded_below
        Share below median or baseline from which a measurement is degraded.
    source
        Where the numbers come from.
    """

    by_model: Mapping[Line, Limits] = Field(default_factory=dict)
    of_best_known: Annotated[Quantity, Field(gt=0, le=1)] | None = None
    below_median: Share | None = None
    above_median: Annotated[Quantity, Field(gt=0)] | None = None
    mads: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 4.0
    below_baseline: Share | None = None
    degraded_below: Share = 0.04
    source: Line = ""

    @model_validator(mode="after")
    def _says_something(self) -> "Threshold":
        given = (self.at_least, self.at_most, self.of_best_known, self.below_median, self.above_median)
        if all(each is None for each in (*given, self.below_baseline)) and not self.by_model:
            raise ValueError("has no condition: give at_least, at_most, of_best_known, below_median, …")
        for limits in (self, *self.by_model.values()):
            if None not in (limits.at_least, limits.at_most) and limits.at_least > limits.at_most:  # type: ignore[operator]
                raise ValueError("at_least is more than at_most")
        return self

    @property
    def relative(self) -> bool:
        """Return whether the threshold depends on the other nodes of the allocation."""
        return self.below_median is not None or self.above_median is not None

    def limits(self, model: str) -> Limits:
        """Return the absolute limits for a GPU of this model."""
        words = model.upper() + " "
        for names, limits in self.by_model.items():
            if all(name in words for name in names.upper().split()):
                return limits
        return Limits(at_least=self.at_least, at_most=self.at_most)

    def words(self, unit: str, model: str = "") -> str:
        """Return the threshold as one phrase."""
        limits, parts = self.limits(model), []
        if limits.at_least is not None:
            parts.append(f"at least {with_unit(limits.at_least, unit)}")
        if limits.at_most is not None:
            parts.append(f"at most {with_unit(limits.at_most, unit)}")
        if self.of_best_known is not None:
            parts.append(f"at least {self.of_best_known:.0%} of the reference value for the model or network")
        if self.below_median is not None:
            parts.append(f"less than {self.below_median:.0%} below the allocation's median")
        if self.above_median is not None:
            parts.append(f"at most {with_unit(self.above_median, unit)} above the allocation's median")
        if self.below_baseline is not None:
            parts.append(f"less than {self.below_baseline:.0%} below the stored baseline")
        return ", ".join(parts) + (f" ({self.source})" if self.source else "")


def judge(finding: Finding, threshold: Threshold | None, *, type_: str) -> Finding:
    """Return the finding judged by what its threshold says of its own measurement.

    A finding that does not pass stays as it is; one that is beyond what the device can do is a fault of the
    measurement. One whose threshold needs the other nodes is inconclusive where nothing else could be judged:
    `attribution.compare` decides then.
    """
    if finding.verdict is not Verdict.PASS:
        return finding
    best = best_known(type_, finding.model)
    if best is not None and finding.figure is not None and finding.figure > best.too_much:
        return _beyond(finding, best.too_much)
    if threshold is None:
        return finding
    if finding.figure is None:
        reason = f"{finding.reason} There is no measurement to compare with the threshold."
        return _changed(finding, Verdict.INCONCLUSIVE, reason)
    return _held_against(finding, threshold, best)


def _held_against(finding: Finding, threshold: Threshold, best: ReferenceValue | None) -> Finding:
    """Return the finding by its threshold; a tenth of its samples must hold what their median does."""
    verdicts = [*_by_limits(finding, threshold), *_by_best_known(finding, threshold, best)]
    judged = [each for each in verdicts if each[0] is not Verdict.INCONCLUSIVE]
    if judged:
        verdict = worst([each[0] for each in judged])
        if verdict is Verdict.PASS and (low := _low_samples(finding, threshold, best)):
            return low
        return _changed(finding, verdict, next(text for each, text in judged if each is verdict))
    if threshold.relative:
        return _waiting(finding, f"{finding.reason} {WAITS}")
    reason = next((text for _, text in verdicts), f"{finding.reason} No stored baseline to compare with.")
    return _waiting(finding, reason)


def _beyond(finding: Finding, most: float) -> Finding:
    assert finding.figure is not None  # noqa: S101 - the caller has looked
    reason = f"{with_unit(finding.figure, finding.unit)} is more than {finding.model} can do: at most"
    changed = _changed(finding, Verdict.INCONCLUSIVE, f"{reason} {with_unit(most, finding.unit)}.")
    fix = "Something was measured wrongly: report it with the evidence."
    return changed.model_copy(update={"fix": fix, "owner": Owner.PROTOCOL})


def _low_samples(finding: Finding, threshold: Threshold, best: ReferenceValue | None) -> Finding | None:
    """Return the finding with its verdict where its median is above the floor and a tenth of it is not."""
    floors = [threshold.limits(finding.model).at_least or 0.0]
    if threshold.of_best_known is not None and best is not None:
        floors.append(threshold.of_best_known * best.value)
    floor = max(floors)
    low = [each for each in finding.samples if each < floor]
    if not low or percentile(sorted(finding.samples), 0.1) >= floor:
        return None
    median = with_unit(finding.figure or 0.0, finding.unit)
    text = (
        f"{len(low)} of {len(finding.samples)} samples are below {with_unit(floor, finding.unit)}, down to"
        f" {with_unit(min(low), finding.unit)}, where the median is {median}."
    )
    # One alone may be a moment.
    verdict = Verdict.FAIL if len(low) > 1 else Verdict.INCONCLUSIVE
    fix = "Vet it again; if it comes back, leave this node out and tell the operators."
    return _changed(finding, verdict, text).model_copy(update={"fix": fix})


def _waiting(finding: Finding, reason: str) -> Finding:
    evidence = {**finding.evidence, "waits": True}
    return _changed(finding.model_copy(update={"evidence": evidence}), Verdict.INCONCLUSIVE, reason)


def _by_limits(finding: Finding, threshold: Threshold) -> list[tuple[Verdict, str]]:
    limits, figure, unit = threshold.limits(finding.model), finding.figure, finding.unit
    assert figure is not None  # noqa: S101 - the caller has looked
    verdicts = []
    if limits.at_least is not None:
        good = figure >= limits.at_least
        word = "at least" if good else "less than"
        text = f"{with_unit(figure, unit)} is {word} {with_unit(limits.at_least, unit)}."
        verdicts.append((Verdict.PASS if good else Verdict.FAIL, text))
    if limits.at_most is not None:
        good = figure <= limits.at_most
        word = "at most" if good else "more than"
        text = f"{with_unit(figure, unit)} is {word} {with_unit(limits.at_most, unit)}."
        verdicts.append((Verdict.PASS if good else Verdict.FAIL, text))
    return verdicts


def _by_best_known(
    finding: Finding, threshold: Threshold, best: ReferenceValue | None
) -> list[tuple[Verdict, str]]:
    if threshold.of_best_known is None or finding.figure is None:
        return []
    if best is None:
        text = f"No reference value is known for {finding.model or 'this device'}: nothing to compare with."
        return [(Verdict.INCONCLUSIVE, text)]
    share = finding.figure / best.value
    measured = with_unit(finding.figure, finding.unit)
    text = f"{measured} is {share:.0%} of the reference value for {finding.model}."
    return [(Verdict.PASS if share >= threshold.of_best_known else Verdict.FAIL, text)]


def _changed(finding: Finding, verdict: Verdict, reason: str) -> Finding:
    return finding.model_copy(update={"verdict": verdict, "reason": reason})
