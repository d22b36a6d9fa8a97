"""Conclude pair rounds: a verdict for each node and each faulty link, with reason and confidence."""

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence

from pydantic import JsonValue

from ..model import CheckResult, Scope, Verdict
from ..statistics import percentile, student_t_tail, summary, two_modes
from ..threshold import with_unit
from .evidence import Evidence, collect_evidence, slow_switches
from .measurements import LOW_MODE_DEVIATIONS, PairState, Reading, SlowGroup

#: A node is bad from this share of `bad_below` on, so that one exactly at `bad_below` is found.
_BAD_FROM = 0.85
#: Highest confidence that is reported.
_MAX_CONFIDENCE = 0.999
#: Factor from the standard deviation of a normal sample, divided by the square root of n, to the standard
#: deviation of the median of n samples.
_MEDIAN_DEVIATION = 1.2533
_MAX_NAMES = 4
#: Assumed standard deviation between a fabric's paths, as a share, and its weight in degrees of freedom.
_PATH_DEVIATION, _PATH_WEIGHT = 0.02, 3
#: A node fails only if the probability that its paths are slow instead of the node is at most this.
_MAX_PATH_PROBABILITY = 0.0003
#: A node is not cleared if the spread of its samples is more than this times `bad_below`.
_MAX_SPREAD = 2.0
#: Number of good partners that a node needs if the rounds ended early.
_MIN_PARTNERS = 3
_MORE_TIME = "Vet it again with a longer --time-limit."
_SMALL_LOSS = "It slows a large run down a little. Exclude it if you have spare nodes."


def conclude(state: PairState) -> list[CheckResult]:
    """Return a result for each node, and one for each faulty link.

    A node that was never measured gets the verdict ``not_run``.
    """
    evidence = collect_evidence(state)
    groups = slow_switches(state, evidence)
    results = [_node_result(node, state, evidence, _group_of(node, groups)) for node in state.nodes]
    links = [_link_result(link, state, evidence) for link in sorted(evidence.links)]
    return [*results, *(each for each in links if each is not None)]


def _group_of(node: str, groups: Sequence[SlowGroup]) -> SlowGroup | None:
    return next((group for group in groups if node in group.nodes or group.either), None)


def _node_result(node: str, state: PairState, evidence: Evidence, group: SlowGroup | None) -> CheckResult:
    own = evidence.readings.get(node, ())
    verdict, reason, fix = _verdict(node, state, evidence, group)
    measured = [each for each in own if each.measurement.samples]
    medians = [statistics.median(each.measurement.samples) for each in measured]
    samples = tuple(sample for each in measured for sample in each.measurement.samples)
    settings = state.settings
    measurement = (min if verdict is Verdict.FAIL else max)(medians, default=None)
    return CheckResult(
        check=state.check, type=state.type, scope=Scope.PAIR, subject=node, node=node, verdict=verdict,
        reason=reason, fix=fix, measurement=measurement, unit=state.unit, samples=samples[:500],
        threshold=f"less than {settings.bad_below:.0%} below the allocation's pairs"
        + (f", at least {with_unit(settings.floor, state.unit)}" if settings.floor else ""),
        evidence=_evidence(node, state, evidence, verdict, samples),
    )  # fmt: skip


def _verdict(  # noqa: PLR0911 - one return for each kind of verdict
    node: str, state: PairState, evidence: Evidence, group: SlowGroup | None
) -> tuple[Verdict, str, str]:
    own = evidence.readings.get(node, ())
    if unmeasured := _unmeasured(node, own, state):
        return unmeasured
    if absolute := _absolute_verdict(own, state, evidence):
        return absolute
    if group:
        return _group_verdict(node, group)
    if node in evidence.convicted:
        return _convicted_verdict(node, state, evidence)
    samples = [
        sample
        for each in own
        if each.other(node) not in evidence.convicted
        for sample in each.measurement.samples
    ]
    if samples and (spread := summary(samples).spread) > _MAX_SPREAD * state.settings.bad_below:
        text = f"Its samples vary by {spread:.0%}, too much for a verdict."
        return Verdict.INCONCLUSIVE, text, "Vet it again while nothing else runs on the nodes."
    if evidence.unexplained and len(state.nodes) > 2:
        text = f"{evidence.explained.slow_share:.0%} of all pairs are slow, and no node or link explains it."
        return Verdict.INCONCLUSIVE, text, "Vet the nodes again while the fabric is not busy."
    least = min(_MIN_PARTNERS, len(state.nodes) - 1 - len(evidence.convicted - {node}))
    if state.cut_short and len(evidence.good_partners[node]) < least:
        partners = len(evidence.good_partners[node])
        text = (
            f"When the time was up, it had been measured with {partners} good partner(s), which is too few."
        )
        return Verdict.INCONCLUSIVE, text, _MORE_TIME
    doubtful = any(node in pair for pair in evidence.recheck)
    if not doubtful and (node in evidence.cleared or any(node in link for link in evidence.links)):
        return _cleared_verdict(node, state, evidence)
    return _unclear_verdict(node, state, evidence)


def _unmeasured(node: str, readings: Sequence[Reading], state: PairState) -> tuple[Verdict, str, str] | None:
    """Return the verdict on a node without measurements; None if it has measurements."""
    silent = [each for each in state.measurements if node in each.accused]
    if silent:
        error = silent[0].error or "It did not respond."
        return Verdict.FAIL, f"{error.rstrip('.')} ({len(silent)} round(s)).", "Exclude this node."
    if not any(node in (each.first, each.second) for each in state.measurements):
        if state.cut_short:
            return Verdict.INCONCLUSIVE, "None of its pairs finished before the time was up.", _MORE_TIME
        return Verdict.NOT_RUN, "It was not measured with another node.", "Vet it together with other nodes."
    if not any(each.measurement.samples for each in readings):
        fix = "Vet it again."
        if any(each.samples for each in state.measurements if node in (each.first, each.second)):
            return Verdict.INCONCLUSIVE, "It was slow, but only while the whole fabric was busy.", fix
        return Verdict.INCONCLUSIVE, f"None of its pairs gave a measurement: {_first_error(readings)}", fix
    return None


def _absolute_verdict(
    readings: Sequence[Reading], state: PairState, evidence: Evidence
) -> tuple[Verdict, str, str] | None:
    """Return a verdict that needs no comparison of pairs: below the floor, or all pairs slow; else None."""
    settings, reference = state.settings, evidence.healthy.reference or 0.0
    best = max(statistics.median(each.measurement.samples) for each in readings if each.measurement.samples)
    if settings.floor and best < settings.floor:
        floor = with_unit(settings.floor, state.unit)
        text = f"Its best pair reaches {with_unit(best, state.unit)}, less than {floor}."
        return Verdict.FAIL, text, "Check whether NCCL's network plugin is loaded, or exclude this node."
    if settings.baseline and reference < settings.baseline * (1 - settings.bad_below):
        text = (
            f"All pairs are slow: {with_unit(reference, state.unit)},"
            f" and {with_unit(settings.baseline, state.unit)}"
            " were measured before."
        )
        return (
            Verdict.INCONCLUSIVE,
            text,
            "Check whether NCCL's network plugin is loaded, or wait for the fabric.",
        )
    if len(state.nodes) == 2 and not settings.floor and not settings.baseline:
        both = " and ".join(state.nodes)
        text = f"{with_unit(best, state.unit)} between {both}. One pair can't be compared with others."
        return Verdict.INCONCLUSIVE, text, "Set at_least in the protocol, or vet more nodes together."
    return None


def _group_verdict(node: str, group: SlowGroup) -> tuple[Verdict, str, str]:
    fix = "Exclude these nodes, and tell the operators."
    if group.either:
        text = (
            f"There are two groups of nodes, one with {_names(group.nodes)}, and pairs between them are slow."
            " The path between their switches, or one of the switches, is at fault."
        )
        return Verdict.INCONCLUSIVE, text, "Use the nodes of one group, and tell the operators."
    if group.switch:
        text = f"Most nodes of its switch are slow with others: switch {group.switch} is slow, not the node."
        return Verdict.INCONCLUSIVE, text, fix
    text = (
        f"It is slow with most nodes, but not with {_names([each for each in group.nodes if each != node])}:"
    )
    return Verdict.INCONCLUSIVE, f"{text} a switch that they share is slow, not the node.", fix


def _convicted_verdict(node: str, state: PairState, evidence: Evidence) -> tuple[Verdict, str, str]:
    own = [each for each in evidence.readings.get(node, ()) if each.other(node) not in evidence.convicted]
    against = [each for each in own if each.slow]
    if not against:
        return Verdict.INCONCLUSIVE, "It is slow only with nodes that are slow themselves.", "Vet it again."
    partners = sorted({each.other(node) for each in own})
    slow_with = sorted({each.other(node) for each in against})
    counts = (
        f"{len(against)} of {len(own)} measurements with {len(slow_with)} of {len(partners)} good partner(s)"
    )
    fix = "Exclude this node, and tell the operators."
    below = _below(against)
    if modes := _two_modes(against, evidence):
        return Verdict.FAIL, f"It has two modes in {counts}: part of its samples is {modes:.0%} below.", fix
    if below < _BAD_FROM * state.settings.bad_below:
        return (
            Verdict.DEGRADED,
            f"{below:.1%} below the other pairs in {counts}.",
            _SMALL_LOSS,
        )
    if node not in evidence.unmistakable and below < _noise_limit(against, state, evidence):
        partners_text = _names(slow_with)
        text = f"{below:.0%} below the other pairs, with {partners_text}, but pairs vary too much to be sure."
        return Verdict.INCONCLUSIVE, text, "Vet it again while nothing else runs on the nodes."
    if node not in evidence.unmistakable and (deviation := _deviation_of_slow_paths(node, evidence)):
        text = (
            f"{below:.0%} below the other pairs, with {_names(slow_with)}, but the speeds of paths differ by"
            f" {deviation:.0%}: the node or its paths are slow."
        )
        return Verdict.INCONCLUSIVE, text, "Vet more nodes together, or set at_least in the protocol."
    return Verdict.FAIL, f"{below:.0%} below the other pairs in {counts}.", fix


def _noise_limit(readings: Sequence[Reading], state: PairState, evidence: Evidence) -> float:
    """Return the share below the reference that noise alone may cause.

    It follows from the noise between pairs and the number of partners, and from the spread and the number of
    the samples; the larger one counts.
    """
    counts = [len(each.measurement.samples) for each in readings if each.measurement.samples]
    partners = len({each.pair for each in readings})
    of_median = _MEDIAN_DEVIATION * evidence.healthy.spread / math.sqrt(sum(counts)) if counts else 0.0
    return state.settings.mads * max(evidence.healthy.noise / math.sqrt(partners), of_median)


def _deviation_of_slow_paths(node: str, evidence: Evidence) -> float:
    """Return the standard deviation between paths if slow paths alone may explain a slow node, else 0.

    A path that is slower than others gives the same readings in each round, so repeated readings are no
    further evidence against a node: here each pair counts once, by its median. The node's pairs with partners
    that are not convicted are compared with the pairs among those partners, by Student's t-test. The variance
    is pooled within these two groups and within the same group of each other convicted node, together with an
    assumed one (`_PATH_DEVIATION`), because few pairs estimate it poorly.
    """
    # Pairs by the convicted node in them; the key is None for pairs without one.
    by_node: dict[str | None, dict[tuple[str, str], list[float]]] = defaultdict(lambda: defaultdict(list))
    for each in {id(each): each for own in evidence.readings.values() for each in own}.values():
        convicted = evidence.convicted & set(each.pair)
        if each.measurement.samples and len(convicted) < 2:
            if each.mixed and node in convicted:
                return 0.0
            by_node[next(iter(convicted), None)][each.pair].append(each.below)
    medians = {name: [statistics.median(each) for each in pairs.values()] for name, pairs in by_node.items()}
    own, others = medians.get(node, []), medians.get(None, [])
    if not own or not others or node in evidence.explained.one_way:
        return 0.0
    freedom = _PATH_WEIGHT + sum(len(group) - 1 for group in medians.values())
    squares = sum((each - statistics.fmean(group)) ** 2 for group in medians.values() for each in group)
    deviation = math.sqrt((_PATH_WEIGHT * _PATH_DEVIATION**2 + squares) / freedom)
    error = deviation * math.sqrt(1 / len(own) + 1 / len(others))
    difference = statistics.fmean(own) - statistics.fmean(others)
    return deviation if student_t_tail(difference / error, freedom) > _MAX_PATH_PROBABILITY else 0.0


def _names(nodes: Sequence[str]) -> str:
    return ", ".join(nodes[:_MAX_NAMES]) + (" and others" if len(nodes) > _MAX_NAMES else "")


def _two_modes(readings: Sequence[Reading], evidence: Evidence) -> float:
    """Return the share by which a lower mode within rounds is below the reference; 0 without one.

    A steady loss has no lower mode, because it leaves no good samples.
    """
    samples = sorted(sample for each in readings for sample in each.measurement.samples)
    if not samples or not evidence.healthy.reference or not any(each.mixed for each in readings):
        return 0.0
    lower, upper = two_modes(samples)
    low = lower if lower != upper else percentile(samples, 0.1)
    below = 1.0 - low / evidence.healthy.reference
    return below if below >= LOW_MODE_DEVIATIONS * evidence.healthy.spread else 0.0


def _cleared_verdict(node: str, state: PairState, evidence: Evidence) -> tuple[Verdict, str, str]:
    good = [each for each in evidence.readings.get(node, ()) if not each.slow]
    below, settings = _below(good), state.settings
    best = max(statistics.median(each.measurement.samples) for each in good)
    if below >= max(settings.degraded_below, settings.mads * evidence.healthy.noise / len(good) ** 0.5):
        text = f"{below:.1%} below the other pairs in {len(good)} round(s)."
        return Verdict.DEGRADED, text, _SMALL_LOSS
    return (
        Verdict.PASS,
        f"{with_unit(best, state.unit)} with {len({each.other(node) for each in good})} partner(s).",
        "",
    )


def _unclear_verdict(node: str, state: PairState, evidence: Evidence) -> tuple[Verdict, str, str]:
    own = evidence.readings[node]
    slow = [each for each in own if each.slow]
    good = {each.other(node) for each in own if not each.slow}
    below = _below(slow)
    steady = not any(each.mixed for each in slow) and 2 * len(slow) > len(own)
    if len(slow) >= 2 and steady and below < _BAD_FROM * state.settings.bad_below:
        text = f"{below:.1%} below the other pairs in {len(slow)} of {len(own)} round(s)."
        return Verdict.DEGRADED, text, _SMALL_LOSS
    names = _names(sorted({each.other(node) for each in slow}))
    if not evidence.cleared:
        text = f"It was slow with {names}, and there is no good node to compare it with."
        return Verdict.INCONCLUSIVE, text, "Vet more nodes together, or give at_least in the protocol."
    if not slow:
        return Verdict.INCONCLUSIVE, "None of its partners is known to be good.", "Vet it with other nodes."
    text = (
        f"It was slow with {names} in {len(slow)} of {len(own)} measurements and good with {len(good)}"
        " other(s): congestion, the path, or either node is the cause."
    )
    return Verdict.INCONCLUSIVE, text, "Vet it again. Earlier results of the node decide, if they are stored."


def _link_result(link: tuple[str, str], state: PairState, evidence: Evidence) -> CheckResult | None:
    """Return the result of a faulty link; None if noise may be the cause."""
    readings = [each for each in evidence.readings[link[0]] if each.other(link[0]) == link[1]]
    slow = [each for each in readings if each.slow]
    below = _below(slow)
    if below < _noise_limit(slow, state, evidence):
        return None
    verdict = Verdict.FAIL if below >= _BAD_FROM * state.settings.bad_below else Verdict.DEGRADED
    text = f"{below:.0%} below the other pairs in {len(slow)} rounds; both nodes are good with others."
    return CheckResult(
        check=state.check, type=state.type, scope=Scope.PAIR, subject="|".join(link), verdict=verdict,
        reason=text, fix="Exclude one of the two, and tell the operators: a cable, port or switch is faulty.",
        measurement=min(statistics.median(each.measurement.samples) for each in slow), unit=state.unit,
        evidence={"part": "link", "rounds": len(slow), "nodes": list(link)},
    )  # fmt: skip


def _below(readings: Sequence[Reading]) -> float:
    return statistics.median([each.below for each in readings]) if readings else 0.0


def _first_error(readings: Sequence[Reading]) -> str:
    return next(
        (each.measurement.error for each in readings if each.measurement.error), "there were no samples."
    )


def _evidence(
    node: str, state: PairState, evidence: Evidence, verdict: Verdict, samples: Sequence[float]
) -> dict[str, JsonValue]:
    own = evidence.readings.get(node, ())
    slow = [each for each in own if each.slow]
    good = sorted({each.other(node) for each in own if not each.slow})
    below = _below(slow if verdict is Verdict.FAIL else list(own))
    lower, upper = two_modes(sorted(samples)) if samples else (0.0, 0.0)
    values: dict[str, JsonValue] = {
        "part": "node", "below": round(below, 4), "mads": round(below / evidence.healthy.noise, 1),
        "rounds": len({each.measurement.round for each in own}),
        "slow_with": [*sorted({each.other(node) for each in slow})], "good_with": list[JsonValue](good[:20]),
        "busy_rounds": list[JsonValue](sorted(evidence.busy)),
        "slow_readings": [len(slow), len(own)],
        "confidence": _confidence(node, evidence, verdict),
        "p10": percentile(sorted(samples), 0.1) if samples else None, "bimodal": lower != upper,
    }  # fmt: skip
    if state.history.get(node):
        earlier = state.history[node]
        values["history"] = f"fit in {sum(earlier)} of the last {len(earlier)}"
    return values


def _confidence(node: str, evidence: Evidence, verdict: Verdict) -> float:
    """Return the confidence of a verdict; for a failure, that of the permutation test."""
    if verdict is Verdict.FAIL:
        return round(max(0.0, min(_MAX_CONFIDENCE, 1.0 - evidence.explained.chance[node])), 3)
    if verdict in {Verdict.PASS, Verdict.DEGRADED}:
        # A node with intermittent faults is assumed to be good in every second round.
        good = {each.other(node) for each in evidence.readings.get(node, ()) if not each.slow}
        return round(min(_MAX_CONFIDENCE, 1.0 - 0.5 ** max(1, len(good))), 3)
    return 0.0
