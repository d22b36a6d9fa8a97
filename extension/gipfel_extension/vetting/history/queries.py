"""Queries of the history: baselines, decisions on borderline verdicts, recently vetted nodes.

All are pure functions of records that `store.History` has read.
"""

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from statistics import median

from gipfel_cluster.model import Frozen

from ..model import CheckResult, Owner, Verdict
from .exclusions import Exclusion
from .store import BEFORE_HISTORY, HistoryContent, HistoryEntry

_BORDERLINE = {Verdict.DEGRADED, Verdict.INCONCLUSIVE}
_BAD = {Verdict.FAIL, Verdict.DEGRADED}


class Baseline(Frozen):
    """Typical measurement of a check on a GPU model.

    ``spread`` is the median distance to the median (MAD), not scaled; ``nodes`` is the number of different
    nodes that it was measured on.
    """

    type: str
    check: str
    gpu_model: str
    unit: str
    median: float
    spread: float
    nodes: int
    samples: int


def compute_baselines(entries: Iterable[HistoryEntry], *, min_nodes: int = 1) -> tuple[Baseline, ...]:
    """Return one baseline per check, GPU model and unit, from passing results.

    Each node counts once, with its own median, so that a frequently vetted node does not dominate.
    """
    groups: dict[tuple[str, str, str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for each in entries:
        if each.verdict is Verdict.PASS and each.measurement is not None:
            groups[each.type, each.check, each.gpu_model, each.unit][each.node].append(each.measurement)
    baselines = []
    for (type_, check, model, unit), nodes in sorted(groups.items()):
        if len(nodes) < min_nodes:
            continue
        by_node = [median(values) for values in nodes.values()]
        middle = median(by_node)
        baselines.append(
            Baseline(
                type=type_,
                check=check,
                gpu_model=model,
                unit=unit,
                median=middle,
                spread=median(abs(each - middle) for each in by_node),
                nodes=len(nodes),
                samples=sum(map(len, nodes.values())),
            )
        )
    return tuple(baselines)


def baseline_median(baselines: Iterable[Baseline], check: str, gpu_model: str, unit: str) -> float | None:
    """Return the median of the baseline of a check, GPU model and unit; None where there is none."""
    found = (
        each for each in baselines if (each.check, each.gpu_model, each.unit) == (check, gpu_model, unit)
    )
    return next((each.median for each in found), None)


def count_recent_bad(earlier: Sequence[HistoryEntry], *, n: int) -> tuple[int, int]:
    """Return ``(k, m)``: k of the last m verdicts were bad, m at most `n`.

    ``earlier`` holds the entries of one check on one node, oldest first. Inconclusive verdicts and those that
    were not run don't count.
    """
    counted = _conclusive(earlier)[-n:]
    return sum(each.verdict in _BAD for each in counted), len(counted)


def decide_borderline(
    result: CheckResult, earlier: Sequence[HistoryEntry], *, k: int = 2, n: int = 5
) -> CheckResult:
    """Return the result; a borderline verdict becomes ``fail`` if `k` of the last `n` verdicts were bad.

    The history never improves a verdict, because one good run does not clear a node with intermittent faults.
    Verdicts ``pass`` and ``fail`` are not changed.

    Parameters
    ----------
    earlier
        Entries of the same check on the same node, oldest first.
    """
    if result.verdict not in _BORDERLINE or k < 1:
        return result
    bad, total = count_recent_bad(earlier, n=n)
    if bad < k:
        return result
    reason = f"{result.reason.rstrip('.')}; and it was bad in {bad} of its last {total} runs."
    decided = result.with_verdict(Verdict.FAIL, reason)
    return decided.model_copy(update={"evidence": {**result.evidence, BEFORE_HISTORY: result.verdict.value}})


def recent_fitness(
    content: HistoryContent, check: str, nodes: Collection[str], *, n: int = 5
) -> dict[str, tuple[bool, ...]]:
    """Return for each node whether it passed its last `n` conclusive runs of a check, newest last.

    The attribution of pairs uses it as ``PairState.history``.
    """
    return {
        node: tuple(
            each.verdict is Verdict.PASS for each in _conclusive(content.entries_of(node, check))[-n:]
        )
        for node in nodes
    }


def _conclusive(earlier: Sequence[HistoryEntry]) -> list[HistoryEntry]:
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
    """Return the nodes that may be skipped, and when they were vetted (UTC, ns).

    A node may be skipped when the last run of the same protocol that tested it ended within `within_s`
    seconds, was complete, and vetted it, no later run of any protocol did not vet it, and no
    exclusion names it. With a `digest`, the protocol must also have had this digest.
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
    excluded_nodes = {each.node for each in excluded if each.until_ns > now}
    oldest = now - int(within_s * 1e9)
    return {
        node: latest[node]
        for node in sorted(nodes)
        if node not in excluded_nodes and oldest <= latest.get(node, -1) <= now
    }
