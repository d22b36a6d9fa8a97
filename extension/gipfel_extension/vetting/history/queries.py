"""Questions to the history: usual measurements, borderline verdicts, recently vetted nodes.

All are pure functions of what `store.History` has read.
"""

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from statistics import median

from gipfel_cluster.model import Frozen

from ..model import CheckResult, Owner, Verdict
from .exclusions import Exclusion
from .store import BEFORE, HistoryContent, HistoryEntry

_BORDERLINE = {Verdict.DEGRADED, Verdict.INCONCLUSIVE}
_BAD = {Verdict.FAIL, Verdict.DEGRADED}


class Baseline(Frozen):
    """Usual measurement of a check on a GPU model.

    ``spread`` is the median distance to the median (MAD), not scaled; ``nodes`` are how many different ones
    it was measured on.
    """

    type: str
    check: str
    gpu_model: str
    unit: str
    median: float
    spread: float
    nodes: int
    samples: int


def baselines_of(entries: Iterable[HistoryEntry], *, least_nodes: int = 1) -> tuple[Baseline, ...]:
    """Return one baseline per check, GPU model and unit, from the measurements of verdicts that passed.

    Each node counts once, with its own median: a node that is vetted hourly must not be the baseline.
    """
    groups: dict[tuple[str, str, str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for each in entries:
        if each.verdict is Verdict.PASS and each.figure is not None:
            groups[each.type, each.check, each.gpu_model, each.unit][each.node].append(each.figure)
    found = []
    for (kind, check, model, unit), nodes in sorted(groups.items()):
        if len(nodes) < least_nodes:
            continue
        figures = [median(values) for values in nodes.values()]
        middle = median(figures)
        found.append(
            Baseline(
                type=kind,
                check=check,
                gpu_model=model,
                unit=unit,
                median=middle,
                spread=median(abs(each - middle) for each in figures),
                nodes=len(nodes),
                samples=sum(map(len, nodes.values())),
            )
        )
    return tuple(found)


def usual_figure(baselines: Iterable[Baseline], check: str, gpu_model: str, unit: str) -> float | None:
    """Return the median of one check on one model, in its unit; None where nothing is stored."""
    found = (
        each for each in baselines if (each.check, each.gpu_model, each.unit) == (check, gpu_model, unit)
    )
    return next((each.median for each in found), None)


def recent_bad(earlier: Sequence[HistoryEntry], *, n: int) -> tuple[int, int]:
    """Return ``(k, m)``: bad in k of the last m verdicts, m at most `n`.

    ``earlier`` is one check on one node, oldest first. Verdicts that say nothing of the node (inconclusive,
    not run) don't count.
    """
    telling = _telling(earlier)[-n:]
    return sum(each.verdict in _BAD for each in telling), len(telling)


def settle_borderline(
    result: CheckResult, earlier: Sequence[HistoryEntry], *, k: int = 2, n: int = 5
) -> CheckResult:
    """Return a borderline verdict decided by history: a fail with `k` bad ones of the last `n`.

    History only accuses. A borderline node with a clean history stays what it is, because one clean check
    does not clear a node whose trouble comes in episodes; pass and fail stay in any case.

    Parameters
    ----------
    earlier
        The same check on the same node, oldest first.
    """
    if result.verdict not in _BORDERLINE or k < 1:
        return result
    bad, of = recent_bad(earlier, n=n)
    if bad < k:
        return result
    words = f"{result.reason.rstrip('.')}; and it was bad in {bad} of its last {of} runs."
    settled = result.with_verdict(Verdict.FAIL, words)
    return settled.model_copy(update={"evidence": {**result.evidence, BEFORE: result.verdict.value}})


def recent_fitness(
    content: HistoryContent, check: str, nodes: Collection[str], *, n: int = 5
) -> dict[str, tuple[bool, ...]]:
    """Return each node's last `n` conclusive runs of a check, newest last: True for fit.

    This is what the attribution of pairs takes as ``PairState.history``.
    """
    return {
        node: tuple(each.verdict is Verdict.PASS for each in _telling(content.of_node(node, check))[-n:])
        for node in nodes
    }


def _telling(earlier: Sequence[HistoryEntry]) -> list[HistoryEntry]:
    own = {Owner.NODE, Owner.LINK}
    return [each for each in earlier if each.verdict in {*_BAD, Verdict.PASS} and each.owner in own]


def recently_vetted(
    content: HistoryContent,
    nodes: Collection[str],
    *,
    protocol: str,
    digest: str = "",
    within_s: float,
    excluded: Collection[Exclusion] = (),
    now_ns: int | None = None,
) -> dict[str, int]:
    """Return the nodes that may be skipped, with when they were vetted (UTC, ns).

    A node may be skipped when the last run of the same protocol that tested it ended within `within_s`
    seconds, was complete, and called it good, no later run of any protocol called it anything else, and no
    exclusion names it. With a `digest`, the protocol must also have demanded the same.
    """
    now = time.time_ns() if now_ns is None else now_ns
    latest: dict[str, int] = {}
    for record in sorted(content.records, key=lambda each: each.ended_ns):
        good = set(record.vetted) if record.complete else set()
        for node in {entry.node for entry in record.entries} | good:
            if node not in good:
                latest.pop(node, None)
            elif record.protocol == protocol and digest in {"", record.digest}:
                latest[node] = record.ended_ns
    barred = {each.node for each in excluded if each.until_ns > now}
    oldest = now - int(within_s * 1e9)
    return {
        node: latest[node]
        for node in sorted(nodes)
        if node not in barred and oldest <= latest.get(node, -1) <= now
    }
