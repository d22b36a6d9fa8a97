"""Thresholds on a measurement: absolute, by GPU model, by reference value, or relative to the allocation.

They are written as quantities with units: ``50 GB/s``, ``256 MiB``, ``30 s``, ``12 ms``, ``20 %``.
"""

import math
import operator
import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from gipfel_cluster.model import Frozen, OneLine

from .model import Finding, Owner, Verdict, worst
from .reference_values import ReferenceValue, gpu_reference
from .statistics import percentile

_NUMBER_WITH_UNIT = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-z°%µ/]*)\s*")
_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"": 1.0, "K": 2.0**10, "M": 2.0**20, "G": 2.0**30, "T": 2.0**40, "P": 2.0**50}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_PLAIN_UNITS = {"": 1.0, "%": 0.01, "C": 1.0, "°C": 1.0, "MHz": 1.0, "W": 1.0, "x": 1.0}
_PREFIXED_UNIT = re.compile(r"([kKMGTP]?)(i?)(B|FLOP|FLOPS|Flop)(/s)?")
_PREFIXES = (("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12), ("P", 1e15))


def quantity(value: Any, *, binary: bool = False) -> float:
    """Return a number in base units: bytes, bytes/s, FLOP/s, seconds; percentages become shares.

    Parameters
    ----------
    value
        A number, or a string of a number and a unit.
    binary
        Read ``GB`` as 2^30 bytes, as vetnode does; FLOPs keep decimal prefixes.

    Raises
    ------
    ValueError
        The value is not a finite number, or its unit is unknown.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("is not a number with a unit")  # noqa: TRY004 - pydantic expects it
    try:
        number = float(value) if not isinstance(value, str) else _parse(value, binary=binary)
    except OverflowError as error:
        raise ValueError("is too large a number") from error
    if not math.isfinite(number):
        raise ValueError("is not a finite number")
    return number


def _parse(text: str, *, binary: bool) -> float:
    match = _NUMBER_WITH_UNIT.fullmatch(text)
    if not match:
        raise ValueError(f"{text[:40]!r} is not a number with a unit, like '50 GB/s'")
    number, unit = float(match[1]), match[2]
    if unit in _PLAIN_UNITS:
        return number * _PLAIN_UNITS[unit]
    if unit in _SECONDS:
        return number * _SECONDS[unit]
    scaled = _PREFIXED_UNIT.fullmatch(unit)
    if not scaled or (scaled[2] and scaled[1] not in _BINARY):
        raise ValueError(f"{unit!r} is not a known unit: B, GB, GiB, GB/s, TFLOP/s, s, ms, %")
    table = _BINARY if scaled[2] or (binary and scaled[3] == "B") else _DECIMAL
    return number * table[scaled[1].upper() if table is _BINARY else scaled[1]]


def with_unit(value: float, unit: str) -> str:
    """Format a measurement: bytes and FLOPs with three digits and a prefix, other units with four digits."""
    if unit not in {"B", "B/s", "FLOP/s"}:
        return f"{value:.4g} {unit}".strip()
    # Rounded before it is compared: 999.6 GB/s are 1 TB/s.
    scaled = [(float(f"{value / size:.3g}"), prefix) for prefix, size in _PREFIXES]
    number, prefix = next((each for each in scaled if abs(each[0]) < 1000), scaled[-1])
    return f"{number:g} {prefix}{unit}"


#: A field that accepts numbers with units.
Quantity = Annotated[float, BeforeValidator(quantity)]


#: A share between 0 and 1; percentages are accepted.
Share = Annotated[Quantity, Field(gt=0, lt=1)]
#: Ends the reason of a finding that is compared with the other nodes later.
AWAITS_COMPARISON = "It has not been compared with the other nodes yet."


class Limits(Frozen):
    """Absolute limits, in base units: bytes per second, FLOP per second, seconds, degrees Celsius, shares."""

    at_least: Quantity | None = None
    at_most: Quantity | None = None


class Threshold(Limits):
    """Conditions on a measurement; all that are given must hold.

    Parameters
    ----------
    by_model
        Words of a GPU's name to limits; the first entry whose words all occur in the name replaces
        `at_least` and `at_most`.
    of_reference
        Required share of the reference value for this GPU model or, between nodes, for this network;
        inconclusive where no reference value is known and there is no other condition.
    below_median
        Share below the median of the allocation from which a measurement fails.
    above_median
        Allowed distance above the median of the allocation, in the measurement's unit.
    mads
        A measurement fails only if its distance from the median is also this many times the spread: 1.4826
        times the median absolute deviation (MAD), which estimates a standard deviation, but at least 0.5 % of
        the median.
    below_baseline
        Share below the stored baseline from which a measurement fails; ignored without a baseline.
    degraded_below
        Share below median or baseline from which a measurement is degraded.
    source
        Source of the numbers.
    """

    by_model: Mapping[OneLine, Limits] = Field(default_factory=dict)
    of_reference: Annotated[Quantity, Field(gt=0, le=1)] | None = None
    below_median: Share | None = None
    above_median: Annotated[Quantity, Field(gt=0)] | None = None
    mads: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 4.0
    below_baseline: Share | None = None
    degraded_below: Share = 0.04
    source: OneLine = ""

    @model_validator(mode="after")
    def _has_condition(self) -> "Threshold":
        given = (self.at_least, self.at_most, self.of_reference, self.below_median, self.above_median)
        if all(each is None for each in (*given, self.below_baseline)) and not self.by_model:
            raise ValueError("has no condition: set at_least, at_most, of_reference, below_median, …")
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

    def text(self, unit: str, model: str = "") -> str:
        """Return all conditions as one phrase."""
        limits = self.limits(model)
        amounts = (
            (limits.at_least, "at least {}"),
            (limits.at_most, "at most {}"),
            (self.above_median, "at most {} above the allocation's median"),
        )
        shares = (
            (self.of_reference, "at least {} of the reference value for the model or network"),
            (self.below_median, "less than {} below the allocation's median"),
            (self.below_baseline, "less than {} below the stored baseline"),
        )
        parts = [text.format(with_unit(value, unit)) for value, text in amounts if value is not None]
        parts += [text.format(f"{value:.0%}") for value, text in shares if value is not None]
        return ", ".join(parts) + (f" ({self.source})" if self.source else "")


def judge(finding: Finding, threshold: Threshold | None, *, type_: str) -> Finding:
    """Return the finding after applying its threshold to its own measurement.

    A finding that does not pass is not changed. A measurement above what the device can do is inconclusive,
    because it must be wrong. A threshold that depends on other nodes makes the finding inconclusive, unless
    another condition decides; `attribution.compare` decides later.
    """
    if finding.verdict is not Verdict.PASS:
        return finding
    reference = gpu_reference(type_, finding.model)
    measured = finding.measurement
    if reference is not None and measured is not None and measured > reference.implausible_above:
        most = with_unit(reference.implausible_above, finding.unit)
        return finding.with_verdict(
            Verdict.INCONCLUSIVE,
            f"{with_unit(measured, finding.unit)} is more than {finding.model} can do: at most {most}.",
            fix="The measurement must be wrong. Report it with the evidence.",
            owner=Owner.PROTOCOL,
        )
    if threshold is None:
        return finding
    if measured is None:
        reason = f"{finding.reason} There is no measurement to compare with the threshold."
        return finding.with_verdict(Verdict.INCONCLUSIVE, reason)
    return _apply(finding, threshold, reference, measured)


def _apply(
    finding: Finding, threshold: Threshold, reference: ReferenceValue | None, measured: float
) -> Finding:
    """Return the finding after applying the threshold; the tenth percentile of its samples must pass too."""
    verdicts = _by_limits(finding, threshold, measured)
    verdicts += _by_reference(finding, threshold, reference, measured)
    judged = [each for each in verdicts if each[0] is not Verdict.INCONCLUSIVE]
    if judged:
        verdict = worst([each[0] for each in judged])
        if verdict is Verdict.PASS and (low := _low_samples(finding, threshold, reference)):
            return low
        return finding.with_verdict(verdict, next(text for each, text in judged if each is verdict))
    missing = f"{finding.reason} There is no stored baseline to compare it with."
    reason = next((text for _, text in verdicts), missing)
    return finding.with_verdict(
        Verdict.INCONCLUSIVE,
        f"{finding.reason} {AWAITS_COMPARISON}" if threshold.relative else reason,
        evidence={**finding.evidence, "awaits_comparison": True},
    )


def _low_samples(finding: Finding, threshold: Threshold, reference: ReferenceValue | None) -> Finding | None:
    """Return the changed finding where the median is above the floor but the tenth percentile is not."""
    floors = [threshold.limits(finding.model).at_least or 0.0]
    if threshold.of_reference is not None and reference is not None:
        floors.append(threshold.of_reference * reference.value)
    floor = max(floors)
    low = [each for each in finding.samples if each < floor]
    if not low or percentile(sorted(finding.samples), 0.1) >= floor:
        return None
    median = with_unit(finding.measurement or 0.0, finding.unit)
    text = (
        f"{len(low)} of {len(finding.samples)} samples are below {with_unit(floor, finding.unit)}, down to"
        f" {with_unit(min(low), finding.unit)}; the median is {median}."
    )
    # A single low sample may be a coincidence.
    verdict = Verdict.FAIL if len(low) > 1 else Verdict.INCONCLUSIVE
    fix = "Vet the node again. If it happens again, exclude the node and tell the operators."
    return finding.with_verdict(verdict, text, fix=fix)


def _by_limits(finding: Finding, threshold: Threshold, measured: float) -> list[tuple[Verdict, str]]:
    limits, unit = threshold.limits(finding.model), finding.unit
    verdicts = []
    for limit, holds, good_text, bad_text in (
        (limits.at_least, operator.ge, "at least", "less than"),
        (limits.at_most, operator.le, "at most", "more than"),
    ):
        if limit is not None:
            good = holds(measured, limit)
            comparison = good_text if good else bad_text
            text = f"{with_unit(measured, unit)} is {comparison} {with_unit(limit, unit)}."
            verdicts.append((Verdict.PASS if good else Verdict.FAIL, text))
    return verdicts


def _by_reference(
    finding: Finding, threshold: Threshold, reference: ReferenceValue | None, measured: float
) -> list[tuple[Verdict, str]]:
    if threshold.of_reference is None:
        return []
    if reference is None:
        text = f"No reference value is known for {finding.model or 'this device'}."
        return [(Verdict.INCONCLUSIVE, text)]
    share = measured / reference.value
    text = f"{with_unit(measured, finding.unit)} is {share:.0%} of the reference value for {finding.model}."
    return [(Verdict.PASS if share >= threshold.of_reference else Verdict.FAIL, text)]
