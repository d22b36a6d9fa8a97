"""Conclude pair rounds: a verdict for each node and each faulty link, with reason and confidence.

See `measurements` for rounds, measurements and readings, and `suspicion` for convicted nodes.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence

from pydantic import JsonValue

from ..model import CheckResult, Finding, Scope, Verdict, degraded, failed, inconclusive, passed
from ..statistics import percentile, relative_spread, student_t_tail, two_modes
from ..threshold import with_unit
from .evidence import Evidence, collect_evidence, slow_switches
from .measurements import LOW_MODE_DEVIATIONS, PairState, Reading, SlowGroup

#: A slow node or link fails if it is slower by at least this share of `bad_below`, else it is degraded. Less
#: than 1, so that noise does not hide a node that is slower by exactly `bad_below`.
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
    links = [_link_result(link, state, evidence) for link in sorted(evidence.explained.links)]
    return [*results, *(each for each in links if each is not None)]


def _group_of(node: str, groups: Sequence[SlowGroup]) -> SlowGroup | None:
    return next((group for group in groups if node in group.nodes or group.ambiguous), None)


def _node_result(node: str, state: PairState, evidence: Evidence, group: SlowGroup | None) -> CheckResult:
    own = evidence.readings.get(node, ())
    found = _judge(node, state, evidence, group)
    measured = [each for each in own if each.measurement.samples]
    medians = [statistics.median(each.measurement.samples) for each in measured]
    samples = tuple(sample for each in measured for sample in each.measurement.samples)
    settings = state.settings
    measurement = (min if found.verdict is Verdict.FAIL else max)(medians, default=None)
    return CheckResult(
        check=state.check, type=state.type, scope=Scope.PAIR, subject=node, node=node,
        verdict=found.verdict, reason=found.reason, fix=found.fix, measurement=measurement, unit=state.unit,
        samples=samples[:500],
        threshold=f"less than {settings.bad_below:.0%} below the allocation's pairs"
        + (f", at least {with_unit(settings.floor, state.unit)}" if settings.floor else ""),
        evidence=_evidence(node, state, evidence, found.verdict, samples),
    )  # fmt: skip


def _judge(  # noqa: PLR0911 - one return for each kind of verdict
    node: str, state: PairState, evidence: Evidence, group: SlowGroup | None
) -> Finding:
    own = evidence.readings.get(node, ())
    if unmeasured := _judge_unmeasured(node, own, state):
        return unmeasured
    if absolute := _judge_absolutely(own, state, evidence):
        return absolute
    if group:
        return _judge_in_group(node, group)
    if node in evidence.convicted:
        return _judge_convicted(node, state, evidence)
    samples = [
        sample
        for each in own
        if each.other(node) not in evidence.convicted
        for sample in each.measurement.samples
    ]
    if samples and (spread := relative_spread(samples)) > _MAX_SPREAD * state.settings.bad_below:
        return inconclusive(
            f"Its samples vary by {spread:.0%}, too much for a verdict.",
            "Vet it again while nothing else runs on the nodes.",
        )
    if evidence.unexplained and len(state.nodes) > 2:
        share = evidence.explained.slow_share
        return inconclusive(
            f"{share:.0%} of all pairs are slow, and no node or link explains it.",
            "Vet the nodes again while the fabric is not busy.",
        )
    least = min(_MIN_PARTNERS, len(state.nodes) - 1 - len(evidence.convicted - {node}))
    partners = len(evidence.good_partners[node])
    if state.cut_short and partners < least:
        return inconclusive(
            f"When the time was up, it had been measured with {partners} good partner(s), which is too few.",
            _MORE_TIME,
        )
    doubtful = any(node in pair for pair in evidence.recheck)
    if not doubtful and (node in evidence.cleared or any(node in link for link in evidence.explained.links)):
        return _judge_cleared(node, state, evidence)
    return _judge_unclear(node, state, evidence)


def _judge_unmeasured(node: str, readings: Sequence[Reading], state: PairState) -> Finding | None:
    """Return the finding on a node without measurements; None if it has measurements."""
    silent = [each for each in state.measurements if node in each.accused]
    if silent:
        error = silent[0].error or "It did not respond."
        return failed(f"{error.rstrip('.')} ({len(silent)} round(s)).", "Exclude this node.")
    of_node = [each for each in state.measurements if node in (each.first, each.second)]
    if not of_node and state.cut_short:
        return inconclusive("None of its pairs finished before the time was up.", _MORE_TIME)
    if not of_node:
        reason, fix = "It was not measured with another node.", "Vet it together with other nodes."
        return Finding(verdict=Verdict.NOT_RUN, reason=reason, fix=fix)
    if any(each.measurement.samples for each in readings):
        return None
    if any(each.samples for each in of_node):
        return inconclusive("It was slow, but only while the whole fabric was busy.", "Vet it again.")
    return inconclusive(f"None of its pairs gave a measurement: {_first_error(readings)}", "Vet it again.")


def _judge_absolutely(readings: Sequence[Reading], state: PairState, evidence: Evidence) -> Finding | None:
    """Return a finding that needs no comparison of pairs: below the floor, or all pairs slow; else None."""
    settings, reference = state.settings, evidence.healthy.reference or 0.0
    best = max(statistics.median(each.measurement.samples) for each in readings if each.measurement.samples)
    if settings.floor and best < settings.floor:
        floor = with_unit(settings.floor, state.unit)
        return failed(
            f"Its best pair reaches {with_unit(best, state.unit)}, less than {floor}.",
            "Check whether NCCL's network plugin is loaded, or exclude this node.",
        )
    if settings.baseline and reference < settings.baseline * (1 - settings.bad_below):
        before = with_unit(settings.baseline, state.unit)
        return inconclusive(
            f"All pairs are slow: {with_unit(reference, state.unit)}, and {before} were measured before.",
            "Check whether NCCL's network plugin is loaded, or wait for the fabric.",
        )
    if len(state.nodes) == 2 and not settings.floor and not settings.baseline:
        both = " and ".join(state.nodes)
        return inconclusive(
            f"{with_unit(best, state.unit)} between {both}. One pair can't be compared with others.",
            "Set at_least in the protocol, or vet more nodes together.",
        )
    return None


def _judge_in_group(node: str, group: SlowGroup) -> Finding:
    fix = "Exclude these nodes, and tell the operators."
    if group.ambiguous:
        return inconclusive(
            f"There are two groups of nodes, one with {_names(group.nodes)}, and pairs between them are slow."
            " The path between their switches, or one of the switches, is at fault.",
            "Use the nodes of one group, and tell the operators.",
        )
    if group.switch:
        return inconclusive(
            f"Most nodes of its switch are slow with others: switch {group.switch} is slow, not the node.",
            fix,
        )
    others = _names([each for each in group.nodes if each != node])
    return inconclusive(
        f"It is slow with most nodes, but not with {others}: a switch that they share is slow, not the node.",
        fix,
    )


def _judge_convicted(node: str, state: PairState, evidence: Evidence) -> Finding:
    own = [each for each in evidence.readings.get(node, ()) if each.other(node) not in evidence.convicted]
    against = [each for each in own if each.slow]
    if not against:
        return inconclusive("It is slow only with nodes that are slow themselves.", "Vet it again.")
    partners = sorted({each.other(node) for each in own})
    slow_with = sorted({each.other(node) for each in against})
    counts = (
        f"{len(against)} of {len(own)} measurements with {len(slow_with)} of {len(partners)} good partner(s)"
    )
    fix = "Exclude this node, and tell the operators."
    below = _below(against)
    if modes := _two_modes(against, evidence):
        return failed(
            f"Its samples have two modes, the lower {modes:.0%} below the other pairs, in {counts}.", fix
        )
    if below < _BAD_FROM * state.settings.bad_below:
        return degraded(f"{below:.1%} below the other pairs in {counts}.", _SMALL_LOSS)
    if node not in evidence.unmistakable:
        seen = f"{below:.0%} below the other pairs, with {_names(slow_with)}, but"
        if below < _noise_limit(against, state, evidence):
            return inconclusive(
                f"{seen} pairs vary too much to be sure.",
                "Vet it again while nothing else runs on the nodes.",
            )
        if deviation := _deviation_of_slow_paths(node, evidence):
            return inconclusive(
                f"{seen} the speeds of paths differ by {deviation:.0%}: the node or its paths are slow.",
                "Vet more nodes together, or set at_least in the protocol.",
            )
    return failed(f"{below:.0%} below the other pairs in {counts}.", fix)


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
    that are not convicted are compared with the pairs among those partners, by Student's t-test. Few pairs
    estimate a variance poorly: it is pooled within these two groups and within the pairs of each other
    convicted node, together with an assumed variance (`_PATH_DEVIATION`, weighted by `_PATH_WEIGHT`).
    """
    # Pairs by the convicted node in them; the key is None for pairs without one.
    by_node: dict[str | None, dict[tuple[str, str], list[float]]] = defaultdict(lambda: defaultdict(list))
    for each in {id(each): each for own in evidence.readings.values() for each in own}.values():
        convicted = evidence.convicted & set(each.pair)
        if each.measurement.samples and len(convicted) < 2:
            if each.partly_slow and node in convicted:
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
    if not samples or not evidence.healthy.reference or not any(each.partly_slow for each in readings):
        return 0.0
    lower, upper = two_modes(samples)
    low = lower if lower != upper else percentile(samples, 0.1)
    below = 1.0 - low / evidence.healthy.reference
    return below if below >= LOW_MODE_DEVIATIONS * evidence.healthy.spread else 0.0


def _judge_cleared(node: str, state: PairState, evidence: Evidence) -> Finding:
    good = [each for each in evidence.readings.get(node, ()) if not each.slow]
    below, settings = _below(good), state.settings
    best = max(statistics.median(each.measurement.samples) for each in good)
    if below >= max(settings.degraded_below, settings.mads * evidence.healthy.noise / len(good) ** 0.5):
        return degraded(f"{below:.1%} below the other pairs in {len(good)} round(s).", _SMALL_LOSS)
    partners = {each.other(node) for each in good}
    return passed(f"{with_unit(best, state.unit)} with {len(partners)} partner(s).")


def _judge_unclear(node: str, state: PairState, evidence: Evidence) -> Finding:
    own = evidence.readings[node]
    slow = [each for each in own if each.slow]
    good = {each.other(node) for each in own if not each.slow}
    below = _below(slow)
    steady = not any(each.partly_slow for each in slow) and 2 * len(slow) > len(own)
    if len(slow) >= 2 and steady and below < _BAD_FROM * state.settings.bad_below:
        return degraded(
            f"{below:.1%} below the other pairs in {len(slow)} of {len(own)} round(s).", _SMALL_LOSS
        )
    names = _names(sorted({each.other(node) for each in slow}))
    if not evidence.cleared:
        return inconclusive(
            f"It was slow with {names}, and there is no good node to compare it with.",
            "Vet more nodes together, or give at_least in the protocol.",
        )
    if not slow:
        return inconclusive("None of its partners is known to be good.", "Vet it with other nodes.")
    return inconclusive(
        f"It was slow with {names} in {len(slow)} of {len(own)} measurements and good with {len(good)}"
        " other(s): congestion, the path, or either node is the cause.",
        "Vet it again. A node that was often bad in its last stored runs fails with such a result.",
    )


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
        values["history"] = f"passed {sum(earlier)} of its last {len(earlier)} conclusive runs"
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
