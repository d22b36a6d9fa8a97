"""The newest events of the user's jobs, which JupyterLab shows as notifications."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gipfel_cluster.notify.event import Event, message_of
from gipfel_cluster.notify.journal import read_events
from gipfel_cluster.runs import runs_root

_SINCE_NS = 24 * 3600 * 10**9
_MAX_EVENTS = 20
#: Kinds that say nothing new about this server's own job: JupyterLab shows the end of its time anyway.
_NOT_OF_OWN_JOB = frozenset(("started", "time"))


def job_events(environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the newest events of the last day, the newest last, as `responses.JobEvent` declares them."""
    own = Path(environment.get("GIPFEL_RUN", "")).name
    found = [
        each
        for each in read_events(environment, since_ns=time.time_ns() - _SINCE_NS)
        if each.run != own or each.kind not in _NOT_OF_OWN_JOB
    ]
    root = runs_root(dict(environment))
    return [_describe(each, root) for each in found[-_MAX_EVENTS:]]


def _describe(event: Event, root: Path) -> dict[str, Any]:
    name = event.run
    # A server in a container may not see other runs; the journal may hold any name.
    is_name = Path(name).name == name and not name.startswith(".")
    has_report = bool(name) and is_name and (root / name).is_dir()
    return {
        "time_ms": event.time_ns // 1_000_000,
        "kind": event.kind,
        "title": message_of(event).title,
        "reason": event.reason,
        "workload": event.workload,
        "report": f"gipfel/runs/{quote(name, safe='')}/report" if has_report else "",
    }
