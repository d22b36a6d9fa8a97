"""Whose a verdict is: a node's, a link's, the image's, the protocol's or the site's.

A check knows what kind of fault it looks for; whose it is shows only beside the other nodes: what nearly all
nodes share is not wrong with any single one of them.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from .model import CheckResult, Owner, Scope, Verdict

#: What remains on any nodes comes first: other nodes help only where nothing else is wrong.
FIRST_TO_MEND = (Owner.IMAGE, Owner.PROTOCOL, Owner.SITE, Owner.NODE, Owner.LINK)
#: What so large a share of the nodes has is never a node's own.
SHARED = 0.8
#: With fewer nodes, sharing proves nothing; then only the kind of the fault tells.
LEAST_NODES = 3
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
