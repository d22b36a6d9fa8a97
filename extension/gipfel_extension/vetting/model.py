"""Results of checks: verdicts, scopes, findings, and whose fault each verdict is.

A check returns a `Finding`; a report holds `CheckResult`s. A check knows what kind of fault it looks for;
`with_owners` compares nodes, because a fault that nearly all nodes share is not any single node's.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, Field, JsonValue

from gipfel_cluster.model import Frozen, one_line

#: A measured number that must be one.
Sample = Annotated[float, Field(allow_inf_nan=False)]
#: What so large a share of the nodes has is never a node's own.
SHARED = 0.8
#: With fewer nodes, sharing proves nothing; then only the kind of the fault tells.
LEAST_NODES = 3


class Verdict(StrEnum):
    """Verdicts from best to worst; only pass vets, and degraded where the protocol tolerates it."""

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
    """Return the worst verdict; not run where there is none, because no verdict is not a pass."""
    return max(verdicts, key=lambda verdict: verdict.rank, default=Verdict.NOT_RUN)


def _finite(value: float | None) -> float | None:
    # Beside NaN every comparison says no, and "not below the limit" would be a pass.
    return value if value is None or math.isfinite(value) else None


#: A measured number; None where nothing was measured, and instead of NaN and infinity.
Measurement = Annotated[float | None, AfterValidator(_finite)]


class Scope(StrEnum):
    """Subject of one result of a check."""

    GPU = "gpu"
    NODE = "node"
    PAIR = "pair"
    ALL = "all"


class Severity(StrEnum):
    """Weight of a check: it decides on a node, or is only shown."""

    ERROR = "error"
    WARNING = "warning"


class Owner(StrEnum):
    """Owner of a fault.

    The image stands for all that the user's environment brings: the image itself, its EDF, and variables.
    """

    NODE = "node"
    LINK = "link"
    IMAGE = "image"
    PROTOCOL = "protocol"
    SITE = "site"


class Finding(Frozen):
    """Result of a check for one subject, before thresholds are applied.

    Parameters
    ----------
    verdict
        Pass means: nothing wrong apart from what the threshold will say of the figure.
    subject
        A GPU's UUID, "a|b" for a pair or a link, "all"; empty for the node itself.
    model
        The GPU's model by NVML, for thresholds that depend on it.
    samples
        What the figure was taken from, without the first one.
    owner
        Whose fault it is by its kind, where the check knows; see `owner.with_owners`.
    """

    verdict: Verdict
    reason: str
    fix: str = ""
    subject: str = ""
    figure: Measurement = None
    unit: str = ""
    samples: tuple[Sample, ...] = ()
    model: str = ""
    owner: Owner | None = None
    evidence: dict[str, JsonValue] = Field(default_factory=dict)


class CheckResult(Frozen):
    """One verdict of a report.

    Parameters
    ----------
    check
        The check's name in the protocol; "protocol" for what is wrong with the protocol itself.
    type
        The check's type, as in the entry points ``gipfel.checks``.
    subject
        A GPU's UUID, a node, "a|b" for a pair or a link, or "all".
    node
        The node that the verdict counts for; empty where it is no single one.
    reason
        One sentence that can be shown alone.
    figure
        What was measured, in `unit`; None where nothing was.
    threshold
        In words, with its source; empty where there is none.
    seconds
        How long it took on this node.
    owner
        Whose fault it is, in a report; None for what passes. Before, what the check says of its kind.
    """

    check: str
    type: str
    scope: Scope
    subject: str
    node: str = ""
    verdict: Verdict
    reason: str
    fix: str = ""
    figure: Measurement = None
    unit: str = ""
    samples: tuple[Sample, ...] = ()
    threshold: str = ""
    started_ns: int = 0
    seconds: Annotated[float, Field(ge=0)] = 0.0
    severity: Severity = Severity.ERROR
    owner: Owner | None = None
    evidence: dict[str, JsonValue] = Field(default_factory=dict)

    @property
    def applies(self) -> bool:
        """Return whether the node has what the check is about; without it, nothing was measured."""
        return self.evidence.get("applies") is not False

    @property
    def left_out(self) -> bool:
        """Return whether it was not measured because there is nothing to measure, and need not be."""
        return self.verdict is Verdict.NOT_RUN and self.evidence.get("left_out") is True

    @property
    def follows(self) -> bool:
        """Return whether it was not run because of what is said elsewhere: it accuses nothing by itself."""
        return self.verdict is Verdict.NOT_RUN and self.evidence.get("follows") is True

    def with_verdict(self, verdict: Verdict, reason: str, *, fix: str = "") -> "CheckResult":
        """Return the same result with another verdict and its reason."""
        changes = {"verdict": verdict, "reason": one_line(reason), "fix": fix or self.fix}
        return self.model_copy(update=changes)


#: What remains on any nodes comes first: other nodes help only where nothing else is wrong.
FIRST_TO_MEND = (Owner.IMAGE, Owner.PROTOCOL, Owner.SITE, Owner.NODE, Owner.LINK)
#: Types of checks whose faults are by their kind not the node's: of the user's environment, or of the site.
_KINDS: Mapping[str, Owner] = {
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
    """Return the results, each that does not pass with its owner; in their order."""
    ran: dict[str, set[str]] = defaultdict(set)
    bad: dict[tuple[str, bool], set[str]] = defaultdict(set)
    for each in results:
        if each.node and not (each.follows or each.left_out):
            ran[each.check].add(each.node)
            if each.verdict is not Verdict.PASS:
                bad[each.check, each.verdict is Verdict.NOT_RUN].add(each.node)
    owners: list[Owner | None] = []
    own: dict[str, Owner] = {}
    for each in results:
        unmeasured, judged = bad[each.check, True], bad[each.check, False]
        alike = unmeasured if each.verdict is Verdict.NOT_RUN else judged
        owner = _owner(each, len(alike), len(ran[each.check]))
        owners.append(owner)
        if owner is not None and each.node and own.get(each.node) is not Owner.NODE:
            own[each.node] = owner
    return tuple(
        each.model_copy(update={"owner": own.get(each.node) if each.follows else owner})
        for each, owner in zip(results, owners, strict=True)
    )


def first_to_mend(owner: Owner | None) -> int:
    """Return the place of an owner among all, as a sort key: what other nodes would not mend comes first."""
    return len(FIRST_TO_MEND) if owner is None else FIRST_TO_MEND.index(owner)


def _owner(result: CheckResult, alike: int, of: int) -> Owner | None:
    if result.verdict is Verdict.PASS or result.follows or result.left_out:
        return None
    if not result.node:
        return result.owner or (Owner.LINK if "|" in result.subject else Owner.SITE)
    shared = alike >= SHARED * of
    kind = result.owner or _KINDS.get(result.type)
    if kind is Owner.PROTOCOL or (shared and kind not in {None, Owner.NODE}):
        return kind
    return _of_hardware(result, kind, alike, of)


def _of_hardware(result: CheckResult, kind: Owner | None, alike: int, of: int) -> Owner:
    """Return the owner of a fault that is by its kind a node's, or that this node does not share."""
    shared = alike >= SHARED * of
    if result.scope is Scope.PAIR and (result.verdict is Verdict.INCONCLUSIVE or (shared and of == 2)):
        # Two nodes that are slow together: it may be either, or what is between them.
        return Owner.LINK
    if shared and of >= LEAST_NODES:
        return Owner.SITE
    if result.verdict is Verdict.NOT_RUN and kind is None and shared:
        # No node ran it, so that nothing speaks against this one.
        return Owner.SITE
    return Owner.NODE
