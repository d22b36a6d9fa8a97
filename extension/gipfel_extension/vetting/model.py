"""Results of checks: verdicts, scopes, findings, and whose fault each verdict is.

A check returns a `Finding`; a report holds `CheckResult`s. A check may know whose fault its finding is;
`with_owners` compares the nodes, because a fault that nearly all nodes share is not the fault of a single
node.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Self

from pydantic import AfterValidator, Field, JsonValue

from gipfel_cluster.model import Frozen, one_line

#: A measured number: neither NaN nor infinite.
Sample = Annotated[float, Field(allow_inf_nan=False)]
#: A fault that at least this share of the nodes has is not attributed to a single node.
SHARED = 0.8
#: With fewer nodes, a shared fault proves nothing; then the type of the check decides.
MIN_NODES = 3


class Verdict(StrEnum):
    """Verdicts, best first. A node is vetted by ``pass``, or by ``degraded`` if the protocol tolerates it."""

    PASS = "pass"  # noqa: S105 - a verdict
    DEGRADED = "degraded"
    INCONCLUSIVE = "inconclusive"
    NOT_RUN = "not_run"
    FAIL = "fail"

    @property
    def rank(self) -> int:
        """Return 0 for the best; higher is worse."""
        return tuple(Verdict).index(self)


def worst(verdicts: "list[Verdict] | tuple[Verdict, ...]") -> Verdict:
    """Return the worst verdict; ``not_run`` for an empty sequence, because no verdict is not a pass."""
    return max(verdicts, key=lambda verdict: verdict.rank, default=Verdict.NOT_RUN)


def _finite(value: float | None) -> float | None:
    # Every comparison with NaN is false, so that "not below the limit" would be a pass.
    return value if value is None or math.isfinite(value) else None


#: A measured number; None if nothing was measured, and instead of NaN and infinity.
Measurement = Annotated[float | None, AfterValidator(_finite)]


class Scope(StrEnum):
    """Kind of subject that one result of a check is about."""

    GPU = "gpu"
    NODE = "node"
    PAIR = "pair"
    ALL = "all"


class Severity(StrEnum):
    """Severity of a check: an error decides whether a node is vetted, a warning is only shown."""

    ERROR = "error"
    WARNING = "warning"


class Owner(StrEnum):
    """Owner of a fault: the component that has to be repaired or changed.

    ``IMAGE`` includes everything that the user's environment brings: the image, its EDF, and variables.
    """

    NODE = "node"
    LINK = "link"
    IMAGE = "image"
    PROTOCOL = "protocol"
    SITE = "site"


class Conclusion(Frozen):
    """Verdict on one subject, with its reason; base class of `Finding` and `CheckResult`.

    Parameters
    ----------
    reason
        One sentence that is understood without context.
    measurement
        The measured value, in `unit`; None if nothing was measured.
    samples
        The samples behind the measurement, without the first one.
    owner
        Owner of the fault, if the check knows it; see `with_owners`.
    """

    verdict: Verdict
    reason: str
    fix: str = ""
    measurement: Measurement = None
    unit: str = ""
    samples: tuple[Sample, ...] = ()
    owner: Owner | None = None
    evidence: dict[str, JsonValue] = Field(default_factory=dict)

    def with_verdict(self, verdict: Verdict, reason: str, **changes: object) -> Self:
        """Return a copy with another verdict and reason, and with other changed fields."""
        return self.model_copy(update={"verdict": verdict, "reason": one_line(reason), **changes})


class Finding(Conclusion):
    """Result of a check for one subject, before thresholds are applied.

    Its verdict is ``PASS`` where nothing is wrong; the threshold is applied to the measurement later.

    Parameters
    ----------
    subject
        A GPU's UUID, "a|b" for a pair or a link, "all"; empty for the node itself.
    model
        The GPU's model by NVML, for thresholds that depend on it.
    """

    subject: str = ""
    model: str = ""


def passed(reason: str, measurement: float | None = None, unit: str = "") -> Finding:
    """Return a finding that passes."""
    return Finding(verdict=Verdict.PASS, reason=reason, measurement=measurement, unit=unit)


def failed(reason: str, fix: str, measurement: float | None = None, unit: str = "") -> Finding:
    """Return a finding that fails."""
    return Finding(verdict=Verdict.FAIL, reason=reason, fix=fix, measurement=measurement, unit=unit)


def degraded(reason: str, fix: str, measurement: float | None = None, unit: str = "") -> Finding:
    """Return a finding that is degraded."""
    return Finding(verdict=Verdict.DEGRADED, reason=reason, fix=fix, measurement=measurement, unit=unit)


def inconclusive(reason: str, fix: str = "") -> Finding:
    """Return a finding without a conclusion."""
    return Finding(verdict=Verdict.INCONCLUSIVE, reason=reason, fix=fix)


class CheckResult(Conclusion):
    """One verdict of a report.

    Parameters
    ----------
    check
        The check's name in the protocol; "protocol" for a problem of the protocol itself.
    type
        The check's type, as in the entry points ``gipfel.checks``.
    subject
        A GPU's UUID, a node, "a|b" for a pair or a link, or "all".
    node
        The node that the verdict counts for; empty if it does not count for a single node.
    threshold
        The threshold as text, with its source; empty if there is none.
    seconds
        How long the check took on this node.
    owner
        Whose fault it is; None for a pass. `with_owners` sets it for a report; before, it is the check's own
        assumption.
    """

    check: str
    type: str
    scope: Scope
    subject: str
    node: str = ""
    threshold: str = ""
    started_ns: int = 0
    seconds: Annotated[float, Field(ge=0)] = 0.0
    severity: Severity = Severity.ERROR

    @property
    def applies(self) -> bool:
        """Return whether the node has what the check tests; without it, nothing was measured."""
        return self.evidence.get("applies") is not False

    @property
    def not_required(self) -> bool:
        """Return whether there was nothing to measure and the protocol allows that."""
        return self.verdict is Verdict.NOT_RUN and self.evidence.get("not_required") is True

    @property
    def is_consequence(self) -> bool:
        """Return whether the check was not run because of another result, which names the fault."""
        return self.verdict is Verdict.NOT_RUN and self.evidence.get("consequence") is True


#: Faults that other nodes would have too come first: other nodes help only where nothing else is wrong.
_OWNER_ORDER = (Owner.IMAGE, Owner.PROTOCOL, Owner.SITE, Owner.NODE, Owner.LINK)
#: Types of checks whose faults belong to the user's environment or to the site, not to the node.
_OWNER_BY_TYPE: Mapping[str, Owner] = {
    "environment": Owner.IMAGE,
    "network_stack": Owner.IMAGE,
    "container": Owner.IMAGE,
    "libraries": Owner.IMAGE,
    "mounts": Owner.IMAGE,
    "quota": Owner.SITE,
    "storage_read": Owner.SITE,
    "storage_write": Owner.SITE,
    "dns": Owner.SITE,
    "internet": Owner.SITE,
}


def with_owners(results: Sequence[CheckResult]) -> tuple[CheckResult, ...]:
    """Return the results in their order, with the owner of each that does not pass."""
    ran: dict[str, set[str]] = defaultdict(set)
    # The key holds the check, and whether it was not run.
    bad: dict[tuple[str, bool], set[str]] = defaultdict(set)
    for each in results:
        if each.node and not (each.is_consequence or each.not_required):
            ran[each.check].add(each.node)
            if each.verdict is not Verdict.PASS:
                bad[each.check, each.verdict is Verdict.NOT_RUN].add(each.node)
    owners = [
        _owner(each, len(bad[each.check, each.verdict is Verdict.NOT_RUN]), len(ran[each.check]))
        for each in results
    ]
    by_node: dict[str, Owner] = {}
    for each, owner in zip(results, owners, strict=True):
        if owner is not None and each.node and by_node.get(each.node) is not Owner.NODE:
            by_node[each.node] = owner
    return tuple(
        each.model_copy(update={"owner": by_node.get(each.node) if each.is_consequence else owner})
        for each, owner in zip(results, owners, strict=True)
    )


def owner_priority(owner: Owner | None) -> int:
    """Return a sort key for owners: faults that other nodes would have too come first."""
    return len(_OWNER_ORDER) if owner is None else _OWNER_ORDER.index(owner)


def _owner(result: CheckResult, affected: int, total: int) -> Owner | None:
    if result.verdict is Verdict.PASS or result.is_consequence or result.not_required:
        return None
    if not result.node:
        return result.owner or (Owner.LINK if "|" in result.subject else Owner.SITE)
    shared = affected >= SHARED * total
    expected = result.owner or _OWNER_BY_TYPE.get(result.type)
    if expected is Owner.PROTOCOL or (shared and expected not in {None, Owner.NODE}):
        return expected
    return _hardware_owner(result, expected, total, shared=shared)


def _hardware_owner(result: CheckResult, expected: Owner | None, total: int, *, shared: bool) -> Owner:
    """Return the owner of a fault of hardware, or of a fault that most nodes do not have."""
    if result.scope is Scope.PAIR and (result.verdict is Verdict.INCONCLUSIVE or (shared and total == 2)):
        # Two nodes that are slow together: either of them, or the link between them.
        return Owner.LINK
    if shared and total >= MIN_NODES:
        return Owner.SITE
    if result.verdict is Verdict.NOT_RUN and expected is None and shared:
        # No node ran it, so there is no evidence against this one.
        return Owner.SITE
    return Owner.NODE
