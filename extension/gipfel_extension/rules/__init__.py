"""Rules that users, sites and packages write as YAML files: their format, JSON Schema and directories.

Gipfel's own rules are in ``catalogue/``. Then read `../diagnosis/rules.py` (what a rule does),
`../diagnosis/rule_run.py` (rules applied to a run that was recorded) and `__main__` (rules as JSON, for the
recorder).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from gipfel_cluster.definition_files import (
    DefinitionFile,
    FileDiagnostic,
    definition_directories,
    definition_paths,
    suggestion,
)
from gipfel_cluster.model import Frozen, OneLine

from ..diagnosis.roles import Roles, parse_selection
from ..diagnosis.rule_run import hits_of
from ..diagnosis.rules import EVENT_KIND, ConditionError, Hit, Rule, parse_condition
from ..job.run_roles import RunRoles, roles_of_run
from ..telemetry.events import Event, events_file, read_events
from ..telemetry.files import replace_file
from ..telemetry.metric_table import TABLE
from ..telemetry.sample import SampleTable, SourceError
from ..telemetry.store.segments import read_samples
from ..telemetry.user_metrics import UserMetrics, read_metrics

#: Environment variable with the directories of a site's rules.
VARIABLE = "GIPFEL_RULES"
SHIPPED = Path(__file__).parent / "catalogue"
_MOST_RULES = 200
_UNITS = {"s": 1, "m": 60, "h": 3600}
_SHORTEST_S, _LONGEST_S = 10, 6 * 3600


class RuleEntry(Frozen):
    """One rule of a file.

    ``metric`` is the name of a recorded metric (`gipfel catalogue`), or of one that the program logs, in
    which ``*`` stands for any characters. ``where`` selects ranks: ``pp=6,7 & dp=0``, ``rank=0-7``,
    ``node=nid001``. ``condition`` is `STATISTIC above|below NUMBER`, see the README. ``window`` is the time
    range that is judged, 10s to 6h; ``sentence`` is the message of a hit.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9](?:-?[a-z0-9]){0,39}$")]
    metric: Annotated[str, Field(min_length=1, max_length=200)]
    condition: Annotated[str, Field(max_length=200)]
    window: Annotated[str, Field(pattern=r"^[0-9]{1,6}(?:\.[0-9]{1,3})?[smh]$")] = "60s"
    sentence: Annotated[OneLine, Field(min_length=1, max_length=300)]
    link: Annotated[str, Field(pattern=r"^(?:https?://[\x21-\x7e]{1,400})?$")] = ""
    where: Annotated[str, Field(max_length=1000)] = ""
    enabled: bool = True

    @field_validator("metric")
    @classmethod
    def _check_metric(cls, value: str) -> str:
        if any(ord(each) < 32 for each in value) or value.count("*") > 3:
            raise ValueError("a metric is one line with at most three '*'")
        known = suggestion(value, TABLE) if value.isupper() and value not in TABLE else ""
        if known:
            raise ValueError(f"{value!r} is not a recorded metric | {known} `gipfel catalogue` lists all.")
        return value

    @field_validator("window")
    @classmethod
    def _check_window(cls, value: str) -> str:
        if not _SHORTEST_S <= window_seconds(value) <= _LONGEST_S:
            raise ValueError("a window is from 10s to 6h | Write such as 30s, 10m or 1h.")
        return value

    @field_validator("where")
    @classmethod
    def _check_where(cls, value: str) -> str:
        try:
            parse_selection(value)
        except SourceError as error:
            raise ValueError(f"{error.problem.rstrip('.')} | {error.fix}") from error
        return value

    @field_validator("condition")
    @classmethod
    def _check_condition(cls, value: str, info: Any) -> str:
        if "metric" in info.data:
            try:
                parse_condition(value, info.data["metric"])
            except ConditionError as error:
                raise ValueError(f"{error.problem} | {error.fix}") from error
        return value

    def compiled(self) -> Rule:
        """Return the rule, ready for use."""
        condition = parse_condition(self.condition, self.metric)
        window = window_seconds(self.window)
        return Rule(self.name, self.metric, condition, window, self.sentence, self.link, self.where)


class RuleList(Frozen):
    """A file of rules."""

    rules: tuple[RuleEntry, ...]

    @model_validator(mode="after")
    def _names_differ(self) -> "RuleList":
        names = [each.name for each in self.rules]
        if not 0 < len(names) <= _MOST_RULES:
            raise ValueError(f"a file has 1 to {_MOST_RULES} rules | Write a list of rules below 'rules:'.")
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice:
            raise ValueError(f"there are two rules {twice!r} | Rename one of them.")
        return self


FILE = DefinitionFile(RuleList, "list of rules", "Write 'rules:', and a list of rules below it.")


class KnownRule(Frozen):
    """A rule with its origin: ``user``, ``site``, the name of a package, or ``gipfel``."""

    origin: str
    file: str
    entry: RuleEntry


def known_rules(
    environment: Mapping[str, str],
) -> tuple[dict[str, KnownRule], tuple[FileDiagnostic, ...]]:
    """Return all rules by name, and the mistakes in files that can't be used.

    Of rules with equal names the first is used: the user's, the site's, a package's, Gipfel's. So a user or a
    site can replace a rule, or disable it with ``enabled: false``.
    """
    found: dict[str, KnownRule] = {}
    problems: list[FileDiagnostic] = []
    for origin, directory in definition_directories("rules", VARIABLE, SHIPPED, environment):
        for path in definition_paths(directory):
            listed, diagnostics = FILE.check(path)
            problems += diagnostics
            for each in listed.rules if listed is not None else ():
                found.setdefault(each.name, KnownRule(origin=origin, file=str(path), entry=each))
    return dict(list(found.items())[:_MOST_RULES]), tuple(problems)


def enabled_rules(known: Mapping[str, KnownRule]) -> list[Rule]:
    """Return the rules that are enabled, ready for use."""
    return [each.entry.compiled() for each in known.values() if each.entry.enabled]


def window_seconds(text: str) -> float:
    """Return the seconds of a window such as ``30s``, ``10m`` or ``1h``."""
    return float(text[:-1]) * _UNITS[text[-1]]


#: Writer of the events that :func:`save_hits` adds.
_WRITER = "rules"


def run_hits(run: Path, rules: Sequence[Rule]) -> tuple[list[Hit], tuple[str, ...]]:
    """Return the hits of rules in a run, and notes on rules that could not be applied.

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
    """Add hits to the events of a run, unless the run has them already; return the number added.

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
        replace_file(target, "".join(json.dumps(asdict(each)) + "\n" for each in added))
    return len(added)


def _is_same(event: Event, hit: Hit) -> bool:
    """Return whether an event, which a recorder has written, is this hit."""
    near_ns = max(10 * hit.rule.bucket_ns, int(hit.rule.window_s * 1e9))
    return (
        event.device == hit.device
        and event.node == hit.node
        and f"; rule {hit.rule.name})." in event.message
        and hit.found_ns - near_ns <= event.time_ns <= hit.until_ns + near_ns
    )
