"""What a rule makes of the results of one node: pure, and the same for anybody who asks."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from string import Template

from gipfel_cluster.model import Frozen, one_line

from ...vetting.model import Severity, Verdict
from .model import Enough, Pattern, Rule, Step

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
