"""What history adds to a verdict that is neither good nor bad: how often the node was bad of late."""

from collections.abc import Collection, Sequence

from ..model import CheckResult, Owner, Verdict
from .entry import BEFORE, HistoryEntry
from .store import HistoryContent

_BORDERLINE = {Verdict.DEGRADED, Verdict.INCONCLUSIVE}
_BAD = {Verdict.FAIL, Verdict.DEGRADED}


def recent_bad(earlier: Sequence[HistoryEntry], *, n: int) -> tuple[int, int]:
    """``(k, m)``: bad in k of the last m verdicts, m at most `n`.

    ``earlier`` is one check on one node, oldest first. Verdicts that say nothing of the node (inconclusive,
    not run) don't count.
    """
    telling = _telling(earlier)[-n:]
    return sum(each.verdict in _BAD for each in telling), len(telling)


def settle_borderline(
    result: CheckResult, earlier: Sequence[HistoryEntry], *, k: int = 2, n: int = 5
) -> CheckResult:
    """A borderline verdict, decided by history: with `k` bad ones of the last `n`, this one is a fail.

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
    """How each node did in its last `n` telling runs of a check, newest last: True for fit.

    This is what the attribution of pairs takes as ``PairState.history``.
    """
    return {
        node: tuple(each.verdict is Verdict.PASS for each in _telling(content.of_node(node, check))[-n:])
        for node in nodes
    }


def _telling(earlier: Sequence[HistoryEntry]) -> list[HistoryEntry]:
    own = {Owner.NODE, Owner.LINK}
    return [each for each in earlier if each.verdict in {*_BAD, Verdict.PASS} and each.owner in own]
