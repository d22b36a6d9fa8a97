"""Recovery rules: their model in YAML, their pure evaluation by `next_step`, and loading of catalogues."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from string import Template
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationError

from gipfel_cluster.model import Frozen, GipfelError, OneLine, one_line

from ..vetting.model import Severity, Verdict
from .settings import first_error, read_yaml

#: Placeholders that a step's text can contain, such as ``$node``.
TEXT_FIELDS = frozenset({"node", "cluster", "rule", "reason", "reports", "users", "since", "key", "models"})


def _known_fields(text: str) -> str:
    names = set(Template(text).get_identifiers())
    if unknown := sorted(names - TEXT_FIELDS):
        raise ValueError(f"${unknown[0]} is unknown; the fields are ${', $'.join(sorted(TEXT_FIELDS))}")
    if not Template(text).is_valid():
        raise ValueError("write a dollar sign as $$")
    return text


class Action(StrEnum):
    """Action of a step.

    ``note`` adds a line to the audit log; ``notify`` runs the site's command; ``recheck``, ``reset``,
    ``reboot`` and ``ticket`` are done by an operator; ``drain`` and ``resume`` run ``scontrol``.
    """

    NOTE = "note"
    RECHECK = "recheck"
    NOTIFY = "notify"
    DRAIN = "drain"
    RESET = "reset"
    REBOOT = "reboot"
    RESUME = "resume"
    TICKET = "ticket"


class Pattern(Frozen):
    """Pattern of the results to which a rule applies; all keys must match.

    ``checks`` are shell patterns for a check's type or name, ``models`` for the GPU's model; ``codes`` are
    XID numbers, one of which must occur.
    """

    checks: tuple[OneLine, ...] = Field(min_length=1)
    verdicts: tuple[Verdict, ...] = (Verdict.FAIL,)
    severities: tuple[Severity, ...] = (Severity.ERROR,)
    models: tuple[OneLine, ...] = ("*",)
    codes: tuple[int, ...] = ()


class EvidenceThreshold(Frozen):
    """Number of users and jobs that must report matching results within some hours before a rule applies.

    One vouched result is enough by itself. The minimum is two users, so that no single user can drain a node.
    """

    users: int = Field(2, ge=2, le=100)
    jobs: int = Field(2, ge=2, le=100)
    within_h: float = Field(72, gt=0, le=8760)


class Step(Frozen):
    """Recovery step; the next one is proposed after this one is done.

    ``needs`` is a further condition: ``nothing``, enough bad results since the previous step (``again``), or
    enough good results of the same checks since then (``passed``). ``automatic`` drains without an operator's
    approval if the settings allow it as well.
    """

    action: Action
    needs: Literal["nothing", "again", "passed"] = "nothing"
    automatic: bool = False
    text: Annotated[str, AfterValidator(_known_fields)] = Field("", max_length=2000)


class Rule(Frozen):
    """Rule: a pattern of bad results, the number of reports that it needs, and the recovery steps.

    ``source`` is the origin of the advice, shown to the operators.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,48}$")]
    title: OneLine = Field(max_length=200)
    source: OneLine = Field(max_length=400)
    when: Pattern
    threshold: EvidenceThreshold = EvidenceThreshold()
    steps: tuple[Step, ...] = Field(min_length=1, max_length=20)


class Catalogue(Frozen):
    """File of rules."""

    version: Literal[1]
    rules: tuple[Rule, ...]


HOUR_NS = 3600 * 10**9
DAY_NS = 24 * HOUR_NS
# The text of a step without one.
_DEFAULT_TEXT = "$reports reports by $users users since $since. Last: $reason"


class Observation(Frozen):
    """Vetting result as input of a rule, with its reporter."""

    check: str
    type: str
    verdict: Verdict
    severity: Severity
    gpu_model: str
    codes: tuple[int, ...]
    reason: str
    reporter: str
    job: str
    vouched: bool
    received_ns: int


class CaseProgress(Frozen):
    """Progress of a rule on a node.

    ``position`` is the index of the last proposed step, None without an open case; ``waiting`` if that step
    is not decided; ``since_ns`` is the time of its decision, or of the last case's end, 0 for neither.
    """

    position: int | None = None
    waiting: bool = False
    since_ns: int = 0


class Proposal(Frozen):
    """Step that is due now, at an index in the rule; both are None at the end of the case."""

    position: int | None
    step: Step | None = None
    evidence: tuple[Observation, ...] = ()


def next_step(
    rule: Rule, progress: CaseProgress, observations: Sequence[Observation], *, now_ns: int
) -> Proposal | None:
    """Return the step that is due for one node now, or None.

    ``observations`` are all results of this node, in any order.
    """
    if progress.waiting:
        return None
    window = now_ns - int(rule.threshold.within_h * HOUR_NS)
    bad = _bad_observations(rule.when, observations, window)
    position = 0 if progress.position is None else progress.position + 1
    if position >= len(rule.steps):
        return Proposal(position=None)
    step = rule.steps[position]
    if step.needs == "nothing" and position:
        return Proposal(position=position, step=step, evidence=bad)
    # The first step always needs bad results.
    passed = step.needs == "passed" and position
    matching = _good_observations(rule.when, observations, window) if passed else bad
    since = tuple(each for each in matching if each.received_ns > progress.since_ns)
    return (
        Proposal(position=position, step=step, evidence=since)
        if has_enough_evidence(rule.threshold, since)
        else None
    )


def has_enough_evidence(threshold: EvidenceThreshold, observations: Iterable[Observation]) -> bool:
    """Return whether the reports suffice: of different users and jobs, or of one trusted source."""
    observations = tuple(observations)
    users = {each.reporter for each in observations}
    # Senders can forge job IDs, so a job ID distinguishes jobs of one user only.
    jobs = {(each.reporter, each.job) for each in observations}
    return any(each.vouched for each in observations) or (
        len(users) >= threshold.users and len(jobs) >= threshold.jobs
    )


def render_text(
    step: Step, rule: Rule, observations: Sequence[Observation], *, cluster: str, node: str, key: str
) -> str:
    """Return the step's text with this case's values; line breaks in values are removed."""
    newest = max(observations, key=lambda each: each.received_ns, default=None)
    fields = {
        "node": node,
        "cluster": cluster,
        "rule": rule.title,
        "reason": newest.reason if newest else "",
        "reports": str(len({(each.reporter, each.job) for each in observations})),
        "users": str(len({each.reporter for each in observations})),
        "since": _utc(min((each.received_ns for each in observations), default=0)),
        "key": key,
        "models": ", ".join(sorted({each.gpu_model for each in observations if each.gpu_model})),
    }
    return Template(step.text or _DEFAULT_TEXT).safe_substitute(
        {name: one_line(text) for name, text in fields.items()}
    )


def _bad_observations(
    when: Pattern, observations: Sequence[Observation], window: int
) -> tuple[Observation, ...]:
    """Return the bad results that match, without those before a vouched pass of the same check type."""
    cleared: dict[str, int] = {}
    for each in _good_observations(when, observations, window):
        if each.vouched:
            cleared[each.type] = max(cleared.get(each.type, 0), each.received_ns)
    return tuple(
        each
        for each in observations
        if each.received_ns > max(window, cleared.get(each.type, 0))
        and each.verdict in when.verdicts
        and each.severity in when.severities
        and _matches(when, each)
        and (not when.codes or set(when.codes) & set(each.codes))
    )


def _good_observations(
    when: Pattern, observations: Sequence[Observation], window: int
) -> tuple[Observation, ...]:
    return tuple(
        each
        for each in observations
        if each.verdict is Verdict.PASS and each.received_ns > window and _matches(when, each)
    )


def _matches(when: Pattern, each: Observation) -> bool:
    checks = any(fnmatchcase(each.type, name) or fnmatchcase(each.check, name) for name in when.checks)
    return checks and any(fnmatchcase(each.gpu_model, name) for name in when.models)


def _utc(moment_ns: int) -> str:
    return datetime.fromtimestamp(moment_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M UTC")


#: The built-in catalogue.
BUILT_IN = Path(__file__).with_name("catalogue.yaml")


def load_rules(site_catalogues: Iterable[Path] = ()) -> tuple[Rule, ...]:
    """Return all rules; a rule of a later catalogue replaces an earlier one of the same name.

    Raises
    ------
    GipfelError
        A file can't be read, is not a valid catalogue, or has two rules of the same name.
    """
    rules: dict[str, Rule] = {}
    for path in (BUILT_IN, *site_catalogues):
        try:
            catalogue = Catalogue.model_validate(read_yaml(path))
        except ValidationError as error:
            raise GipfelError(f"{path} is not a valid catalogue of rules: {first_error(error)}") from None
        names = [rule.name for rule in catalogue.rules]
        if duplicates := sorted({name for name in names if names.count(name) > 1}):
            raise GipfelError(f"{path} has two rules named {duplicates[0]}.")
        rules |= {rule.name: rule for rule in catalogue.rules}
    return tuple(rules.values())
