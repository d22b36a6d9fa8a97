"""What is remembered of one vetting run: a verdict per node and check, and the figure behind it."""

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from gipfel_cluster.model import Frozen, Line, one_line

from ..model import CheckResult, Figure, Owner, Scope, Severity, Verdict

_MOST_RESULTS = 200_000
_MOST_CODES = 32
#: In the evidence of a verdict that history decided: what it was before.
BEFORE = "before_history"


class HistoryEntry(Frozen):
    """One verdict on one node, without what only its report needs."""

    node: Line = Field(max_length=255)
    check: Line = Field(max_length=200)
    type: Line = Field(max_length=200)
    scope: Scope
    subject: Line = Field("", max_length=512)
    verdict: Verdict
    severity: Severity = Severity.ERROR
    owner: Owner = Owner.NODE
    reason: Line = Field("", max_length=500)
    figure: Figure = None
    unit: Line = Field("", max_length=32)
    gpu_model: Line = Field("", max_length=128)
    codes: tuple[Annotated[int, Field(ge=0, le=9999)], ...] = Field((), max_length=_MOST_CODES)
    """XID numbers, which rules of recovery go by."""
    started_ns: int = Field(0, ge=0)


class VettingRecord(Frozen):
    """One run as the history keeps it.

    ``vetted`` are the nodes that the run itself called good, ``digest`` names what its protocol demanded.
    """

    version: Literal[1] = 1
    cluster: Line = Field(max_length=128)
    job: Line = Field("", max_length=64)
    protocol: Line = Field(max_length=200)
    digest: Line = Field("", max_length=64)
    started_ns: int = Field(ge=0)
    ended_ns: int = Field(ge=0)
    complete: bool = False
    vetted: tuple[Line, ...] = ()
    entries: tuple[HistoryEntry, ...] = Field((), max_length=_MOST_RESULTS)


def record_of(
    results: Sequence[CheckResult],
    *,
    cluster: str,
    job: str,
    protocol: str,
    started_ns: int,
    ended_ns: int,
    complete: bool,
    vetted: Collection[str],
    digest: str = "",
    models: Mapping[str, str] | None = None,
) -> VettingRecord:
    """What of a report is remembered.

    Parameters
    ----------
    vetted
        The nodes that the report calls good, by its own rules for severities and tolerated verdicts.
    models
        The GPU model of each node, for results whose evidence has no ``model``.

    A result that counts for no single node (a link between two, all of them) is not kept: it says nothing of
    one node alone.
    """
    return VettingRecord(
        cluster=one_line(cluster)[:128],
        job=one_line(job)[:64],
        protocol=one_line(protocol)[:200],
        digest=digest,
        started_ns=started_ns,
        ended_ns=ended_ns,
        complete=complete,
        vetted=tuple(sorted(vetted)),
        entries=tuple(_entry(each, models or {}) for each in results if each.node),
    )


def _entry(result: CheckResult, models: Mapping[str, str]) -> HistoryEntry:
    model = result.evidence.get("model")
    return HistoryEntry(
        node=one_line(result.node)[:255],
        check=one_line(result.check)[:200],
        type=one_line(result.type)[:200],
        scope=result.scope,
        subject=one_line(result.subject)[:512],
        verdict=_own_verdict(result),
        severity=result.severity,
        owner=result.owner or Owner.NODE,
        reason=one_line(result.reason)[:500],
        figure=result.figure,
        unit=one_line(result.unit)[:32],
        gpu_model=one_line(model if isinstance(model, str) else models.get(result.node, ""))[:128],
        codes=_codes(result.evidence.get("xids")),
        started_ns=result.started_ns,
    )


def _own_verdict(result: CheckResult) -> Verdict:
    """The verdict without what history made of it: no node is bad because it was called bad."""
    before = result.evidence.get(BEFORE)
    return Verdict(before) if before in set(Verdict) else result.verdict


def _codes(given: object) -> tuple[int, ...]:
    """Numbers out of a list of them, or out of the keys of counts; what is none is left out."""
    found = set()
    for each in given if isinstance(given, list | tuple | dict) else ():
        text = str(each.get("xid", "")) if isinstance(each, dict) else str(each)
        if text.isascii() and text.isdecimal() and int(text) <= 9999:
            found.add(int(text))
    return tuple(sorted(found)[:_MOST_CODES])
