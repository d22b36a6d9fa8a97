"""Which nodes need not be vetted again, for ``gipfel vet --skip-vetted 1h``."""

import time
from collections.abc import Collection

from .exclusions import Exclusion
from .store import HistoryContent


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
    """The nodes that may be skipped, with when they were vetted (UTC, ns).

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
