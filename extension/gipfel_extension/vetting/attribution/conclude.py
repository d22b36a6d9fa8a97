"""Verdicts from pair rounds: node, link or switch, with confidence and reason."""

import math
import statistics
from collections.abc import Sequence

from pydantic import JsonValue

from ..model import CheckResult, Scope, Verdict
from ..quantities import with_unit
from ..statistics import percentile, summary, two_modes
from .evidence import Evidence, SlowGroup, slow_switches, weigh
from .readings import LOW_BY, Reading
from .state import PairState

#: A node is bad from this share of `bad_below` on, so that one that is exactly at it is found.
_BAD_FROM = 0.85
#: As sure as that is the most that is said.
_SUREST = 0.999
#: A median of n normal samples spreads so many times what they do, over the root of n.
_OF_MEDIAN = 1.2533
_MOST_NAMES = 4
#: A node whose samples spread by so many times `bad_below` is not cleared.
_TOO_MUCH = 2.0
#: Partners with which a node must be good where the rounds were cut short.
_LEAST_PARTNERS = 3
_MORE_TIME = "Vet it again, with more time for the run (--time-limit)."


def conclude(state: PairState) -> list[CheckResult]:
    """Return a result for each node, and one for each link that is to blame.

    Every node has one: one that was never measured is not run.
    """
    evidence = weigh(state)
    groups = slow_switches(state, evidence)
    results = [_of_node(node, state, evidence, _group_of(node, groups)) for node in state.nodes]
    links = [_of_link(link, state, evidence) for link in sorted(evidence.links)]
    return [*results, *(each for each in links if each is not None)]


def _group_of(node: str, groups: Sequence[SlowGroup]) -> SlowGroup | None:
    return next((group for group in groups if node in group.nodes or group.either), None)


def _of_node(node: str, state: PairState, evidence: Evidence, group: SlowGroup | None) -> CheckResult:
    own = evidence.readings.get(node, ())
    verdict, reason, fix = _verdict(node, state, evidence, group)
    measured = [each for each in own if each.measurement.samples]
    figures = [statistics.median(each.measurement.samples) for each in measured]
    samples = tuple(sample for each in measured for sample in each.measurement.samples)
    settings = state.settings
    figure = (min if verdict is Verdict.FAIL else max)(figures, default=None)
    return CheckResult(
        check=state.check, type=state.type, scope=Scope.PAIR, subject=node, node=node, verdict=verdict,
        reason=reason, fix=fix, figure=figure, unit=state.unit, samples=samples[:500],
        threshold=f"less than {settings.bad_below:.0%} below the allocation's pairs"
        + (f", at least {with_unit(settings.floor, state.unit)}" if settings.floor else ""),
        evidence=_why(node, state, evidence, verdict, samples),
    )  # fmt: skip


def _verdict(  # noqa: PLR0911 - one for each thing that can be said
    node: str, state: PairState, evidence: Evidence, group: SlowGroup | None
) -> tuple[Verdict, str, str]:
    own = evidence.readings.get(node, ())
    if unmeasured := _unmeasured(node, own, state):
        return unmeasured
    if absolute := _absolute(own, state, evidence):
        return absolute
    if group:
        return _of_group(node, group)
    if node in evidence.convicted:
        return _convicted(node, state, evidence)
    samples = [
        sample
        for each in own
        if each.other(node) not in evidence.convicted
        for sample in each.measurement.samples
    ]
    if samples and (spread := summary(samples).spread) > _TOO_MUCH * state.settings.bad_below:
        text = f"Its samples vary by {spread:.0%}, too much to clear it."
        return Verdict.INCONCLUSIVE, text, "Vet it again when the nodes do nothing else."
    if evidence.unexplained and len(state.nodes) > 2:
        text = f"{evidence.explained.slow_share:.0%} of all pairs are slow, and no node explains it."
        return Verdict.INCONCLUSIVE, text, "Vet the nodes again when the fabric is not busy."
    least = min(_LEAST_PARTNERS, len(state.nodes) - 1 - len(evidence.convicted - {node}))
    if state.cut_short and len(evidence.met[node]) < least:
        text = f"It was good with {len(evidence.met[node])} partner(s) when the time was up: too few."
        return Verdict.INCONCLUSIVE, text, _MORE_TIME
    doubtful = any(node in pair for pair in evidence.recheck)
    if not doubtful and (node in evidence.cleared or any(node in link for link in evidence.links)):
        return _cleared(node, state, evidence)
    return _unclear(node, state, evidence)


def _unmeasured(node: str, own: Sequence[Reading], state: PairState) -> tuple[Verdict, str, str] | None:
    """Return what is said of a node that measured nothing; None where it did."""
    silent = [each for each in state.measurements if node in each.accused]
    if silent:
        said = silent[0].error or "It did not answer."
        return Verdict.FAIL, f"{said.rstrip('.')} ({len(silent)} round(s)).", "Continue without this node."
    if not any(node in (each.first, each.second) for each in state.measurements):
        if state.cut_short:
            return Verdict.INCONCLUSIVE, "No pair of it ended before the time was up.", _MORE_TIME
        return Verdict.NOT_RUN, "It was in no pair.", "Vet it together with other nodes."
    if not any(each.measurement.samples for each in own):
        fix = "Vet it again."
        if any(each.samples for each in state.measurements if node in (each.first, each.second)):
            return Verdict.INCONCLUSIVE, "It was slow only while the whole fabric was busy.", fix
        return Verdict.INCONCLUSIVE, f"None of its pairs measured anything: {_first_error(own)}", fix
    return None


def _absolute(
    own: Sequence[Reading], state: PairState, evidence: Evidence
) -> tuple[Verdict, str, str] | None:
    """Return faults that need no comparison: below the floor, or an allocation that is slow as a whole."""
    settings, reference = state.settings, evidence.reference or 0.0
    best = max(statistics.median(each.measurement.samples) for each in own if each.measurement.samples)
    if settings.floor and best < settings.floor:
        floor = with_unit(settings.floor, state.unit)
        text = f"Its best pair reaches {with_unit(best, state.unit)}, less than {floor}."
        return Verdict.FAIL, text, "See whether the network plugin of NCCL is loaded, or leave this node out."
    if settings.baseline and reference < settings.baseline * (1 - settings.bad_below):
        text = (
            f"All pairs are slow: {with_unit(reference, state.unit)},"
            f" where {with_unit(settings.baseline, state.unit)}"
            " were measured before."
        )
        return Verdict.INCONCLUSIVE, text, "The fabric is busy, or NCCL's network plugin is not loaded."
    if len(state.nodes) == 2 and not settings.floor and not settings.baseline:
        both = " and ".join(state.nodes)
        text = f"{with_unit(best, state.unit)} between {both}: one pair alone says nothing of its nodes."
        return Verdict.INCONCLUSIVE, text, "Give at_least in the protocol, or vet more nodes together."
    return None


def _of_group(node: str, group: SlowGroup) -> tuple[Verdict, str, str]:
    fix = "Leave these nodes out, and tell the operators."
    if group.either:
        text = (
            f"The nodes fall in two groups, with {_names(group.nodes)} in one: pairs between them are slow."
            " The path between their switches, or either switch, is to blame."
        )
        return Verdict.INCONCLUSIVE, text, "Use the nodes of one group, and tell the operators."
    if group.switch:
        text = f"Most of its neighbours are slow elsewhere: switch {group.switch} is slow, not the node."
        return Verdict.INCONCLUSIVE, text, fix
    text = f"It is slow elsewhere, not with {_names([each for each in group.nodes if each != node])}:"
    return Verdict.INCONCLUSIVE, f"{text} a switch that they share is slow, not the node.", fix


def _convicted(node: str, state: PairState, evidence: Evidence) -> tuple[Verdict, str, str]:
    own = [each for each in evidence.readings.get(node, ()) if each.other(node) not in evidence.convicted]
    against = [each for each in own if each.slow]
    if not against:
        return Verdict.INCONCLUSIVE, "It is slow only with nodes that are slow themselves.", "Vet it again."
    partners = sorted({each.other(node) for each in own})
    slow_with = sorted({each.other(node) for each in against})
    met = (
        f"{len(against)} of {len(own)} measurements with {len(slow_with)} of {len(partners)} good partner(s)"
    )
    fix = "Leave this node out, and tell the operators."
    below, again = _below(against), "Vet it again when the nodes do nothing else."
    if modes := _two_modes(against, evidence):
        return Verdict.FAIL, f"It has two modes in {met}: part of its samples is {modes:.0%} below.", fix
    if below < _BAD_FROM * state.settings.bad_below:
        return (
            Verdict.DEGRADED,
            f"{below:.1%} below the other pairs in {met}.",
            "It slows a large run down a little.",
        )
    if node not in evidence.unmistakable and below < _doubtful(against, state, evidence):
        text = f"{below:.0%} below the other pairs, with {_names(slow_with)}; these vary too much to be sure."
        return Verdict.INCONCLUSIVE, text, again
    return Verdict.FAIL, f"{below:.0%} below the other pairs in {met}.", fix


def _doubtful(readings: Sequence[Reading], state: PairState, evidence: Evidence) -> float:
    """Return the share below the reference up to which it may be chance.

    By how pairs differ, for as many partners, and by how samples do, for as many measurements.
    """
    counts = [len(each.measurement.samples) for each in readings if each.measurement.samples]
    partners = len({each.pair for each in readings})
    of_median = _OF_MEDIAN * evidence.spread / math.sqrt(sum(counts)) if counts else 0.0
    return state.settings.mads * max(evidence.noise / math.sqrt(partners), of_median)


def _names(nodes: Sequence[str]) -> str:
    return ", ".join(nodes[:_MOST_NAMES]) + (" and others" if len(nodes) > _MOST_NAMES else "")


def _two_modes(readings: Sequence[Reading], evidence: Evidence) -> float:
    """Return by how much a lower mode is below, where it is seen within rounds; 0 where it is not.

    A steady loss shows none of the good samples that this needs.
    """
    samples = sorted(sample for each in readings for sample in each.measurement.samples)
    if not samples or not evidence.reference or not any(each.mixed for each in readings):
        return 0.0
    lower, upper = two_modes(samples)
    low = lower if lower != upper else percentile(samples, 0.1)
    below = 1.0 - low / evidence.reference
    return below if below >= LOW_BY * evidence.spread else 0.0


def _cleared(node: str, state: PairState, evidence: Evidence) -> tuple[Verdict, str, str]:
    good = [each for each in evidence.readings.get(node, ()) if not each.slow]
    below, settings = _below(good), state.settings
    best = max(statistics.median(each.measurement.samples) for each in good)
    if below >= settings.degraded_below and below >= settings.mads * evidence.noise / len(good) ** 0.5:
        text = f"{below:.1%} below the other pairs in {len(good)} round(s)."
        return Verdict.DEGRADED, text, "It slows a large run down a little."
    return (
        Verdict.PASS,
        f"{with_unit(best, state.unit)} with {len({each.other(node) for each in good})} partner(s).",
        "",
    )


def _unclear(node: str, state: PairState, evidence: Evidence) -> tuple[Verdict, str, str]:
    own = evidence.readings[node]
    slow = [each for each in own if each.slow]
    good = {each.other(node) for each in own if not each.slow}
    below = _below(slow)
    steady = not any(each.mixed for each in slow) and 2 * len(slow) > len(own)
    if len(slow) >= 2 and steady and below < _BAD_FROM * state.settings.bad_below:
        text = f"{below:.1%} below the other pairs in {len(slow)} of {len(own)} round(s)."
        return Verdict.DEGRADED, text, "It slows a large run down a little."
    names = _names(sorted({each.other(node) for each in slow}))
    if not evidence.cleared:
        text = f"It was slow with {names}, and no node is known to be good to compare with."
        return Verdict.INCONCLUSIVE, text, "Vet more nodes together, or give at_least in the protocol."
    if not slow:
        return Verdict.INCONCLUSIVE, "No partner of it is known to be good.", "Vet it again with other nodes."
    text = (
        f"It was slow with {names} in {len(slow)} of {len(own)} measurements, good with {len(good)} other(s):"
        " the moment, the path, or either node."
    )
    return Verdict.INCONCLUSIVE, text, "Vet it again; what it was before decides, where results are kept."


def _of_link(link: tuple[str, str], state: PairState, evidence: Evidence) -> CheckResult | None:
    """Return what is said of a link; None where pairs differ so much that it may be one of them."""
    readings = [each for each in evidence.readings[link[0]] if each.other(link[0]) == link[1]]
    slow = [each for each in readings if each.slow]
    below = _below(slow)
    if below < _doubtful(slow, state, evidence):
        return None
    verdict = Verdict.FAIL if below >= _BAD_FROM * state.settings.bad_below else Verdict.DEGRADED
    text = f"{below:.0%} below the other pairs in {len(slow)} rounds; both nodes are good with others."
    return CheckResult(
        check=state.check, type=state.type, scope=Scope.PAIR, subject="|".join(link), verdict=verdict,
        reason=text, fix="Leave one of the two out, and tell the operators: a cable, port or switch.",
        figure=min(statistics.median(each.measurement.samples) for each in slow), unit=state.unit,
        evidence={"part": "link", "rounds": len(slow), "nodes": list(link)},
    )  # fmt: skip


def _below(readings: Sequence[Reading]) -> float:
    return statistics.median([each.below for each in readings]) if readings else 0.0


def _first_error(own: Sequence[Reading]) -> str:
    return next((each.measurement.error for each in own if each.measurement.error), "no samples came.")


def _why(
    node: str, state: PairState, evidence: Evidence, verdict: Verdict, samples: Sequence[float]
) -> dict[str, JsonValue]:
    own = evidence.readings.get(node, ())
    slow = [each for each in own if each.slow]
    good = sorted({each.other(node) for each in own if not each.slow})
    below = _below(slow if verdict is Verdict.FAIL else list(own))
    lower, upper = two_modes(sorted(samples)) if samples else (0.0, 0.0)
    why: dict[str, JsonValue] = {
        "part": "node", "below": round(below, 4), "mads": round(below / evidence.noise, 1),
        "rounds": len({each.measurement.round for each in own}),
        "slow_with": [*sorted({each.other(node) for each in slow})], "good_with": list[JsonValue](good[:20]),
        "busy_rounds": list[JsonValue](sorted(evidence.busy)),
        "slow_readings": [len(slow), len(own)],
        "confidence": _confidence(node, evidence, verdict),
        "p10": percentile(sorted(samples), 0.1) if samples else None, "bimodal": lower != upper,
    }  # fmt: skip
    if state.history.get(node):
        past = state.history[node]
        why["history"] = f"fit in {sum(past)} of the last {len(past)}"
    return why


def _confidence(node: str, evidence: Evidence, verdict: Verdict) -> float:
    """Return how sure the verdict is: by the permutation test of all readings where a node is accused."""
    if verdict is Verdict.FAIL:
        return round(max(0.0, min(_SUREST, 1.0 - evidence.explained.chance[node])), 3)
    if verdict in {Verdict.PASS, Verdict.DEGRADED}:
        # A node whose trouble comes in episodes has every second round good, at worst.
        good = {each.other(node) for each in evidence.readings.get(node, ()) if not each.slow}
        return round(min(_SUREST, 1.0 - 0.5 ** max(1, len(good))), 3)
    return 0.0
