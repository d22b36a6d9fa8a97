"""Rules applied to a run that was recorded, and their hits as events of the run."""

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ..diagnosis.role_selection import parse_selection
from ..diagnosis.roles import Roles
from ..diagnosis.rule_run import hits_of
from ..diagnosis.rules import EVENT_KIND, Hit, Rule
from ..job.run_roles import RunRoles, roles_of_run
from ..telemetry.events import Event, events_file, read_events
from ..telemetry.sample import SampleTable, SourceError
from ..telemetry.store.segments import read_samples
from ..telemetry.user_metrics import UserMetrics, read_metrics

#: Writer of the events that :func:`save_hits` adds.
_WRITER = "rules"


def run_hits(run: Path, rules: Sequence[Rule]) -> tuple[list[Hit], tuple[str, ...]]:
    """Return the hits of rules in a run, and notes on what could not be judged.

    Raises
    ------
    SourceError
        The run has neither samples nor logged metrics, or can't be read.
    """
    notes: list[str] = []
    wanted = {metric for rule in rules for metric in rule.metrics}
    try:
        table = read_samples(run / "telemetry", metrics=wanted) if wanted else SampleTable()
        logged = read_metrics(run) if any(not rule.device_kind for rule in rules) else UserMetrics()
    except OSError as error:
        raise SourceError(f"{run} can't be read: {error.strerror}.", "Check its permissions.") from error
    if not table.rows and not logged.series and wanted:
        raise SourceError(f"{run} has no samples.", "`gipfel runs` lists yours.")
    found = roles_of_run(run) if any(rule.where for rule in rules) or table.rows else RunRoles(Roles())
    kept = []
    for rule in rules:
        try:
            parse_selection(rule.where).ranks((), found.roles)
            kept.append(rule)
        except SourceError as error:
            notes.append(f"Rule {rule.name} was left out: {error}")
    places: dict[str, list[int]] = {}
    for each in found.locations:
        places.setdefault(each.node, []).append(each.rank)
        if each.gpu_uuid:
            places.setdefault(each.gpu_uuid, []).append(each.rank)

    def selected(rule: Rule, ranks: Sequence[int]) -> bool:
        return bool(parse_selection(rule.where).ranks(ranks, found.roles))

    def ranks_of(place: str) -> tuple[int, ...]:
        return tuple(sorted(set(places.get(place, ()))))

    return hits_of(kept, table, logged, ranks_of=ranks_of, selected=selected), tuple(notes)


def save_hits(run: Path, hits: Sequence[Hit]) -> int:
    """Add hits to the events of a run, without those that it has; return the number that were added.

    Events that an earlier call added are replaced.

    Raises
    ------
    OSError
        The events can't be written.
    """
    telemetry = run / "telemetry"
    target = events_file(telemetry, "job", _WRITER)
    target.unlink(missing_ok=True)
    known = [each for each in read_events(telemetry) if each.kind == EVENT_KIND]
    added = [
        Event(hit.found_ns, hit.node, EVENT_KIND, hit.device, hit.message())
        for hit in hits
        if not any(_is_same(each, hit) for each in known)
    ]
    if added:
        telemetry.mkdir(mode=0o700, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=telemetry, prefix=f".{target.name}.")
        with os.fdopen(handle, "w") as file:
            file.writelines(json.dumps(each.to_json()) + "\n" for each in added)
        Path(temporary).replace(target)
    return len(added)


def _is_same(event: Event, hit: Hit) -> bool:
    """Return whether a recorder saw the hit."""
    near_ns = max(10 * hit.rule.bucket_ns, int(hit.rule.window_s * 1e9))
    return (
        event.device == hit.device
        and event.node == hit.node
        and f"; rule {hit.rule.name})." in event.message
        and hit.found_ns - near_ns <= event.time_ns <= hit.until_ns + near_ns
    )
