"""What a rule is, as its YAML says it.

What a rule makes of the results of one node: pure, and the same for anybody who asks.

Reads catalogues: the shipped one, and a site's own after it.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from string import Template
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationError

from gipfel_cluster.model import Frozen, GipfelError, Line, one_line

from ..vetting.model import Severity, Verdict
from .settings import first_problem, read_yaml

#: What a step's text may name, as ``$node``.
TEXT_FIELDS = frozenset({"node", "cluster", "rule", "reason", "reports", "users", "since", "key", "models"})


def _known_fields(text: str) -> str:
    names = set(Template(text).get_identifiers())
    if unknown := sorted(names - TEXT_FIELDS):
        raise ValueError(f"${unknown[0]} is not known; there are ${', $'.join(sorted(TEXT_FIELDS))}")
    if not Template(text).is_valid():
        raise ValueError("a dollar sign is written as $$")
    return text


class Action(StrEnum):
    """What a step does.

    ``note`` is written down, ``notify`` goes to the site's command; ``recheck``, ``reset``, ``reboot`` and
    ``ticket`` ask a person; ``drain`` and ``resume`` are ``scontrol``'s.
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
    """Which results a rule is about; each key that is given must hold.

    ``checks`` are shell patterns over a check's type or name, ``models`` over the GPU's model; ``codes`` are
    XID numbers, of which one is enough.
    """

    checks: tuple[Line, ...] = Field(min_length=1)
    verdicts: tuple[Verdict, ...] = (Verdict.FAIL,)
    severities: tuple[Severity, ...] = (Severity.ERROR,)
    models: tuple[Line, ...] = ("*",)
    codes: tuple[int, ...] = ()


class Enough(Frozen):
    """How much must be said before a rule believes it.

    Results of so many different users, from so many different jobs, received within so many hours. One result
    of a source that the site vouches for is enough alone. Two users is the least: nobody drains a node alone.
    """

    users: int = Field(2, ge=2, le=100)
    jobs: int = Field(2, ge=2, le=100)
    within_h: float = Field(72, gt=0, le=8760)


class Step(Frozen):
    """One step of recovery; the next one waits until this one is done.

    ``needs``, apart from the step before being done: ``nothing``; ``again``, enough bad results since then;
    ``passed``, enough good ones of the same check since then. ``automatic`` is for drain: without a
    person, where the settings allow that too.
    """

    action: Action
    needs: Literal["nothing", "again", "passed"] = "nothing"
    automatic: bool = False
    text: Annotated[str, AfterValidator(_known_fields)] = Field("", max_length=2000)


class Rule(Frozen):
    """A pattern, how often it must be seen, and the steps.

    ``source``: where the advice comes from, for whoever must decide.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,48}$")]
    title: Line = Field(max_length=200)
    source: Line = Field(max_length=400)
    when: Pattern
    enough: Enough = Enough()
    steps: tuple[Step, ...] = Field(min_length=1, max_length=20)


class Catalogue(Frozen):
    """The rules, in the order in which pages show them."""

    version: Literal[1]
    rules: tuple[Rule, ...]


_HOUR_NS = 3600 * 10**9
# Of a step that says nothing itself: what speaks for it.
_ANY_TEXT = "$reports reports by $users users since $since. Last: $reason"


class Statement(Frozen):
    """One result as a rule sees it: what was found, and whose word it is."""

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


class CaseSoFar(Frozen):
    """Where a rule is with a node.

    ``position`` is that of the last step, None where no case is open; ``waiting``: that step is not decided;
    ``since_ns``: when it was decided, or the last case was closed; 0 for never.
    """

    position: int | None = None
    waiting: bool = False
    since_ns: int = 0


class Proposal(Frozen):
    """What is due now: the step at `position` of the rule, or that the case is at its end (position None)."""

    position: int | None
    step: Step | None = None
    evidence: tuple[Statement, ...] = ()


def next_step(rule: Rule, so_far: CaseSoFar, heard: Sequence[Statement], *, now_ns: int) -> Proposal | None:
    """The step that is due for one node now, or None.

    ``heard`` is everything on this node, in any order.
    """
    if so_far.waiting:
        return None
    window = now_ns - int(rule.enough.within_h * _HOUR_NS)
    bad = _bad(rule.when, heard, window)
    if so_far.position is None:
        fresh = tuple(each for each in bad if each.received_ns > so_far.since_ns)
        return (
            Proposal(position=0, step=rule.steps[0], evidence=fresh) if believed(rule.enough, fresh) else None
        )
    position = so_far.position + 1
    if position >= len(rule.steps):
        return Proposal(position=None)
    step = rule.steps[position]
    if step.needs == "nothing":
        return Proposal(position=position, step=step, evidence=bad)
    said = bad if step.needs == "again" else _good(rule.when, heard, window)
    since = tuple(each for each in said if each.received_ns > so_far.since_ns)
    return Proposal(position=position, step=step, evidence=since) if believed(rule.enough, since) else None


def believed(enough: Enough, said: Iterable[Statement]) -> bool:
    """Whether these are enough: different users and different jobs, or one source that is vouched for."""
    said = tuple(said)
    users = {each.reporter for each in said}
    # A job number is the sender's word: it tells two jobs of one user apart, never two users.
    jobs = {(each.reporter, each.job) for each in said}
    return any(each.vouched for each in said) or (len(users) >= enough.users and len(jobs) >= enough.jobs)


def written(step: Step, rule: Rule, said: Sequence[Statement], *, cluster: str, node: str, key: str) -> str:
    """The step's text with this case's values; lines of its own survive, those in values don't."""
    newest = max(said, key=lambda each: each.received_ns, default=None)
    fields = {
        "node": node,
        "cluster": cluster,
        "rule": rule.title,
        "reason": newest.reason if newest else "",
        "reports": str(len({(each.reporter, each.job) for each in said})),
        "users": str(len({each.reporter for each in said})),
        "since": _utc(min((each.received_ns for each in said), default=0)),
        "key": key,
        "models": ", ".join(sorted({each.gpu_model for each in said if each.gpu_model})),
    }
    return Template(step.text or _ANY_TEXT).safe_substitute(
        {name: one_line(text) for name, text in fields.items()}
    )


def _bad(when: Pattern, heard: Sequence[Statement], window: int) -> tuple[Statement, ...]:
    """What fits the pattern, without what a vouched pass of the same check came after."""
    cleared: dict[str, int] = {}
    for each in _good(when, heard, window):
        if each.vouched:
            cleared[each.type] = max(cleared.get(each.type, 0), each.received_ns)
    return tuple(
        each
        for each in heard
        if each.received_ns > max(window, cleared.get(each.type, 0))
        and each.verdict in when.verdicts
        and each.severity in when.severities
        and _about(when, each)
        and (not when.codes or set(when.codes) & set(each.codes))
    )


def _good(when: Pattern, heard: Sequence[Statement], window: int) -> tuple[Statement, ...]:
    return tuple(
        each
        for each in heard
        if each.verdict is Verdict.PASS and each.received_ns > window and _about(when, each)
    )


def _about(when: Pattern, each: Statement) -> bool:
    checks = any(fnmatchcase(each.type, name) or fnmatchcase(each.check, name) for name in when.checks)
    return checks and any(fnmatchcase(each.gpu_model, name) for name in when.models)


def _utc(moment_ns: int) -> str:
    return datetime.fromtimestamp(moment_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M UTC")


#: The catalogue that comes with the package.
SHIPPED = Path(__file__).with_name("catalogue.yaml")


def load_rules(more: Iterable[Path] = ()) -> tuple[Rule, ...]:
    """All rules; one of a later catalogue takes the place of an earlier one of its name.

    Raises
    ------
    GipfelError
        A file can't be read, is no catalogue, or names a rule twice.
    """
    rules: dict[str, Rule] = {}
    for path in (SHIPPED, *more):
        try:
            catalogue = Catalogue.model_validate(read_yaml(path))
        except ValidationError as error:
            raise GipfelError(f"{path} is no catalogue of rules: {first_problem(error)}") from None
        names = [rule.name for rule in catalogue.rules]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise GipfelError(f"{path} has two rules named {twice[0]}.")
        rules |= {rule.name: rule for rule in catalogue.rules}
    return tuple(rules.values())
