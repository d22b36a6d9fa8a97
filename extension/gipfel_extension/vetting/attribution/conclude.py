"""Verdicts out of pair rounds: node, link or switch, how sure, and why."""

import statistics
from collections.abc import Sequence

from pydantic import JsonValue

from ..model import CheckResult, Scope, Verdict
from ..quantities import shown
from .evidence import Evidence, Reading, weigh
from .state import PairState
from .statistics import percentile, two_modes
from .switches import slow_switches

#: A node is bad from this share of `bad_below` on, so that one that is exactly at it is found.
_BAD_FROM = 0.85
#: Chance that a good pair is slow for a moment, at least; as sure as that is, nobody is.
_LEAST_CHANCE, _SUREST = 0.02, 0.999
#: A median of n normal samples spreads so many times what they do, over the root of n.
_OF_MEDIAN = 1.2533
#: So many standard deviations below, a tenth of the samples is no noise, which every pair has.
_BEYOND = 4.0
_MOST_NAMES = 4
#: Among fewer nodes there are hardly others to tell a busy moment from a bad node.
_MANY = 12


def conclude(state: PairState) -> list[CheckResult]:
    """A result for each node, and one for each link that is to blame.

    Every node has one: one that was never measured is not run.
    """
    evidence = weigh(state)
    blamed = {node: switch for switch, nodes in slow_switches(state, evidence).items() for node in nodes}
    results = [_of_node(node, state, evidence, blamed.get(node, "")) for node in state.nodes]
    return [*results, *(_of_link(link, state, evidence) for link in sorted(evidence.links))]


def _of_node(node: str, state: PairState, evidence: Evidence, switch: str) -> CheckResult:
    own = evidence.readings.get(node, ())
    verdict, reason, fix = _verdict(node, state, evidence, switch)
    measured = [each for each in own if each.measurement.samples]
    figures = [statistics.median(each.measurement.samples) for each in measured]
    samples = tuple(sample for each in measured for sample in each.measurement.samples)
    settings = state.settings
    figure = (min if verdict is Verdict.FAIL else max)(figures, default=None)
    return CheckResult(
        check=state.check, type=state.type, scope=Scope.PAIR, subject=node, node=node, verdict=verdict,
        reason=reason, fix=fix, figure=figure, unit=state.unit, samples=samples[:500],
        threshold=f"less than {settings.bad_below:.0%} below the allocation's pairs"
        + (f", at least {shown(settings.floor, state.unit)}" if settings.floor else ""),
        evidence=_why(node, state, evidence, verdict, samples),
    )  # fmt: skip


def _verdict(  # noqa: PLR0911 - one for each thing that can be said
    node: str, state: PairState, evidence: Evidence, switch: str
) -> tuple[Verdict, str, str]:
    own = evidence.readings.get(node, ())
    silent = [each for each in state.measurements if node in each.accused]
    if silent:
        said = silent[0].error or "It did not answer."
        return Verdict.FAIL, f"{said.rstrip('.')} ({len(silent)} round(s)).", "Go on without this node."
    if not any(node in (each.first, each.second) for each in state.measurements):
        return Verdict.NOT_RUN, "It was in no pair.", "Vet it together with other nodes."
    if not any(each.measurement.samples for each in own):
        fix = "Vet it again."
        if any(each.samples for each in state.measurements if node in (each.first, each.second)):
            return Verdict.INCONCLUSIVE, "It was slow only while the whole fabric was busy.", fix
        return Verdict.INCONCLUSIVE, f"None of its pairs measured anything: {_first_error(own)}", fix
    if absolute := _absolute(own, state, evidence):
        return absolute
    if node in evidence.convicted:
        return _convicted(node, state, evidence, switch)
    if node in evidence.cleared or any(node in link for link in evidence.links):
        return _cleared(node, state, evidence)
    return _unclear(node, state, evidence)


def _absolute(
    own: Sequence[Reading], state: PairState, evidence: Evidence
) -> tuple[Verdict, str, str] | None:
    """What is wrong whoever is compared: the floor, and an allocation that is slow as a whole."""
    settings, reference = state.settings, evidence.reference or 0.0
    best = max(statistics.median(each.measurement.samples) for each in own if each.measurement.samples)
    if settings.floor and best < settings.floor:
        text = (
            f"Its best pair reaches {shown(best, state.unit)}, less than {shown(settings.floor, state.unit)}."
        )
        return Verdict.FAIL, text, "See whether the network plugin of NCCL is loaded, or leave this node out."
    if settings.baseline and reference < settings.baseline * (1 - settings.bad_below):
        text = (
            f"All pairs are slow: {shown(reference, state.unit)},"
            f" where {shown(settings.baseline, state.unit)}"
            " were measured before."
        )
        return Verdict.INCONCLUSIVE, text, "The fabric is busy, or NCCL's network plugin is not loaded."
    if len(state.nodes) == 2 and not settings.floor and not settings.baseline:
        text = f"{shown(best, state.unit)}; one pair alone says nothing of its nodes."
        return Verdict.INCONCLUSIVE, text, "Give at_least in the protocol, or vet more nodes together."
    return None


def _convicted(  # noqa: PLR0911 - one for each thing that can be said
    node: str, state: PairState, evidence: Evidence, switch: str
) -> tuple[Verdict, str, str]:
    own = evidence.readings.get(node, ())
    against = [each for each in own if each.slow and each.other(node) not in evidence.convicted]
    partners = sorted({each.other(node) for each in against})
    met = f"{len(partners)} good partner(s) in {len({each.measurement.round for each in against})} round(s)"
    if switch:
        text = f"It is slow elsewhere, not with its neighbours: switch {switch} is slow, not the node."
        return Verdict.INCONCLUSIVE, text, "Leave the nodes of this switch out, and tell the operators."
    fix = "Leave this node out, and tell the operators."
    below = _below(against)
    bad, far = below >= _BAD_FROM * state.settings.bad_below, below >= _doubtful(against, state, evidence)
    if len(state.nodes) < _MANY and _by_moments(node, own, against):
        text = (
            f"It was {below:.0%} below with {_names(partners)}, and good with each of them before or after."
        )
        return Verdict.INCONCLUSIVE, text, "Vet it again: moments of these pairs, or the node."
    if bad and (far or node in evidence.unmistakable):
        return Verdict.FAIL, f"{below:.0%} below the other pairs, with {met}.", fix
    if modes := _two_modes(against, state, evidence):
        if modes >= _BEYOND * evidence.spread:
            return Verdict.FAIL, f"It has two modes, seen with {met}: part of its samples is far below.", fix
        text = f"Part of its samples with {_names(partners)} is far below; those of all pairs vary as much."
        return Verdict.INCONCLUSIVE, text, "Vet it again when the nodes do nothing else."
    if bad:
        text = f"{below:.0%} below the other pairs, with {_names(partners)}; these vary too much to be sure."
        return Verdict.INCONCLUSIVE, text, "Vet it again when the nodes do nothing else."
    text = f"{below:.1%} below the other pairs, with {met}."
    return Verdict.DEGRADED, text, "It slows a large run down a little."


def _doubtful(readings: Sequence[Reading], state: PairState, evidence: Evidence) -> float:
    """Share below the reference up to which it may be chance: by how pairs differ, and by how samples do."""
    counts = [len(each.measurement.samples) for each in readings if each.measurement.samples]
    of_median = _OF_MEDIAN * evidence.spread / statistics.median(counts) ** 0.5 if counts else 0.0
    return state.settings.mads * max(evidence.noise, of_median)


def _by_moments(node: str, own: Sequence[Reading], against: Sequence[Reading]) -> bool:
    """Whether what is against a node comes and goes, pair by pair, as busy moments do.

    A node in an episode is slow in rounds that follow each other; one in two modes shows them within a round.
    """
    if any(each.mixed or _has_modes(each.measurement.samples) for each in against):
        return False
    good = [each for each in own if not each.slow]
    if {each.other(node) for each in against} - {each.other(node) for each in good}:
        return False
    rounds = [each.measurement.round for each in against]
    return any(min(rounds) < each.measurement.round < max(rounds) for each in good)


def _has_modes(samples: Sequence[float]) -> bool:
    lower, upper = two_modes(sorted(samples)) if samples else (0.0, 0.0)
    return lower != upper


def _names(nodes: Sequence[str]) -> str:
    return ", ".join(nodes[:_MOST_NAMES]) + (" and others" if len(nodes) > _MOST_NAMES else "")


def _two_modes(readings: Sequence[Reading], state: PairState, evidence: Evidence) -> float:
    """Share that a tenth of the samples is below, where another part is good: no steady loss is like that.

    0 where it is not like that.
    """
    samples = sorted(sample for each in readings for sample in each.measurement.samples)
    if not samples or not evidence.reference:
        return 0.0
    good = percentile(samples, 0.75) >= evidence.reference * (1 - state.settings.degraded_below)
    below = 1.0 - percentile(samples, 0.1) / evidence.reference
    return below if good and below > state.settings.bad_below else 0.0


def _cleared(node: str, state: PairState, evidence: Evidence) -> tuple[Verdict, str, str]:
    good = [each for each in evidence.readings[node] if not each.slow]
    below, settings = _below(good), state.settings
    best = max(statistics.median(each.measurement.samples) for each in good)
    if below >= settings.degraded_below and below >= settings.mads * evidence.noise / len(good) ** 0.5:
        text = f"{below:.1%} below the other pairs in {len(good)} round(s)."
        return Verdict.DEGRADED, text, "It slows a large run down a little."
    return (
        Verdict.PASS,
        f"{shown(best, state.unit)} with {len({each.other(node) for each in good})} partner(s).",
        "",
    )


def _unclear(node: str, state: PairState, evidence: Evidence) -> tuple[Verdict, str, str]:
    own = evidence.readings[node]
    slow = [each for each in own if each.slow]
    good = {each.other(node) for each in own if not each.slow}
    below = _below(slow)
    if (
        len(slow) >= 2
        and not any(each.mixed for each in slow)
        and below < _BAD_FROM * state.settings.bad_below
    ):
        text = f"{below:.1%} below the other pairs in {len(slow)} of {len(own)} round(s)."
        return Verdict.DEGRADED, text, "It slows a large run down a little."
    names = ", ".join(sorted({each.other(node) for each in slow}))
    if not evidence.cleared:
        text = f"It was slow with {names}, and no node is known to be good to compare with."
        return Verdict.INCONCLUSIVE, text, "Vet more nodes together, or give at_least in the protocol."
    text = (
        f"It was slow with {names or 'nobody'}, good with {len(good)} other(s): the moment, or either node."
    )
    return Verdict.INCONCLUSIVE, text, "Vet it again; what it was before decides, where results are kept."


def _of_link(link: tuple[str, str], state: PairState, evidence: Evidence) -> CheckResult:
    readings = [each for each in evidence.readings[link[0]] if each.other(link[0]) == link[1]]
    slow = [each for each in readings if each.slow]
    text = f"{_below(slow):.0%} below the other pairs in {len(slow)} rounds; both nodes are good with others."
    return CheckResult(
        check=state.check, type=state.type, scope=Scope.PAIR, subject="|".join(link), verdict=Verdict.FAIL,
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
        "confidence": _confidence(node, evidence, verdict),
        "p10": percentile(sorted(samples), 0.1) if samples else None, "bimodal": lower != upper,
    }  # fmt: skip
    if state.history.get(node):
        past = state.history[node]
        why["history"] = f"fit in {sum(past)} of the last {len(past)}"
    return why


def _confidence(node: str, evidence: Evidence, verdict: Verdict) -> float:
    """How sure the verdict is: what chance would have had to do, over and over, for it to be wrong."""
    own = evidence.readings.get(node, ())
    among = [each.slow for other in evidence.cleared for each in evidence.readings[other] if other != node]
    chance = max(_LEAST_CHANCE, sum(among) / len(among) if among else 0.5)
    partners = {each.other(node) for each in own if each.slow is (verdict is Verdict.FAIL)}
    if verdict is Verdict.FAIL:
        return round(min(_SUREST, 1.0 - min(chance, 0.5) ** max(1, len(partners))), 3)
    if verdict in {Verdict.PASS, Verdict.DEGRADED}:
        # A node whose trouble comes in episodes has every second round good, at worst.
        return round(min(_SUREST, 1.0 - 0.5 ** max(1, len(partners))), 3)
    return 0.0
