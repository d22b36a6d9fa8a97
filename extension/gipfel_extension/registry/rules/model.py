"""What a rule is, as its YAML says it."""

from enum import StrEnum
from string import Template
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from gipfel_cluster.model import Frozen, Line

from ...vetting.model import Severity, Verdict

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
