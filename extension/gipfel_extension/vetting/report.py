"""Report of a vetting run: every verdict, the vetted nodes, and files for the next step."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from gipfel_cluster.model import Frozen, GipfelError
from gipfel_cluster.runs import write_atomically
from gipfel_cluster.scheduler.notation import fold_hostlist

from ..telemetry.files import read_regular
from .model import CheckResult, Owner, Scope, Severity, Verdict, first_to_mend, with_owners, worst
from .protocol import ProtocolCheck, VettingProtocol

REPORT, GOOD_NODES, BAD_NODES = "vetting.json", "good_nodes.txt", "bad_nodes.txt"
#: Ten thousand nodes with ten checks each take half of it.
MOST_REPORT_BYTES = 64 << 20


class CheckColumn(Frozen):
    """Check of the protocol, as a column of the grid."""

    name: str
    type: str
    scope: Scope
    severity: Severity = Severity.ERROR


class NodeReport(Frozen):
    """Summary of a node.

    Parameters
    ----------
    verdict
        The worst of the checks that decide; not run as long as one of them has said nothing, and at best not
        run after a run that was cut short.
    vetted
        Whether every check that decides passed, or is degraded where the protocol tolerates it; after a run
        that was cut short no node is.
    running
        The check that runs on it at the moment.
    reasons
        Why it is not vetted, one sentence a check; those that other nodes would not mend come first.
    owner
        Whose fault the first reason is; None for a vetted node, and where no check says it.
    torch_import_s
        Seconds that importing torch took there, once for all checks; None where none of them needed it.
    """

    node: str
    verdict: Verdict
    vetted: bool
    running: str = ""
    reasons: tuple[str, ...] = ()
    owner: Owner | None = None
    torch_import_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None


class VettingReport(Frozen):
    """A vetting run, while it runs and when it has ended.

    Parameters
    ----------
    started_ns, ended_ns
        UTC, in nanoseconds; no end as long as it runs.
    digest
        Of what the protocol demands; see `VettingProtocol.digest`.
    complete
        Whether the run came to its own end; false while it runs, and after it was interrupted.
    vetted
        Whether every node is.
    bad_nodes
        Every node that is not vetted; after a run that was cut short, only those that were found unfit until
        then: nothing speaks against the others.
    exclude
        A hostlist for ``--exclude``: the bad nodes whose own fault it is; see `owner`.
    action, outcome
        What was to be done with bad nodes, and what was done, in one sentence.
    """

    schema_version: Literal[1, 2] = 2
    protocol: str
    digest: str = ""
    source: str = ""
    cluster: str = ""
    job: str = ""
    started_ns: int = Field(ge=0)
    ended_ns: int | None = None
    complete: bool = False
    vetted: bool = False
    checks: tuple[CheckColumn, ...] = ()
    nodes: tuple[NodeReport, ...] = ()
    results: tuple[CheckResult, ...] = ()
    good_nodes: tuple[str, ...] = ()
    bad_nodes: tuple[str, ...] = ()
    exclude: str = ""
    action: str = "report"
    outcome: str = ""
    exit_status: int | None = None
    notes: tuple[str, ...] = ()

    def write(self, folder: Path) -> None:
        """Write ``vetting.json`` and, where the run has ended, the lists of nodes, into a run folder.

        Raises
        ------
        OSError
            They can't be written.
        """
        write_atomically(folder / REPORT, self.model_dump_json(indent=1) + "\n")
        if self.ended_ns is not None:
            write_atomically(folder / GOOD_NODES, "".join(f"{node}\n" for node in self.good_nodes))
            write_atomically(folder / BAD_NODES, "".join(f"{node}\n" for node in self.bad_nodes))


def read_report(path: Path) -> VettingReport:
    """Return the report in a file or in a run folder.

    Raises
    ------
    GipfelError
        There is none, or it can't be read.
    """
    inside = path.is_dir()
    path = path / REPORT if inside else path
    try:
        return VettingReport.model_validate_json(read_regular(path, MOST_REPORT_BYTES, follow=not inside))
    except FileNotFoundError as error:
        raise GipfelError(f"There is not a vetting report {path}.", "Run `gipfel vet standard`.") from error
    except OSError as error:
        raise GipfelError(f"The vetting report {path} can't be read: {error.strerror}.") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise GipfelError(f"{path} is not a vetting report: {first['msg']}.") from error


def judge_nodes(
    protocol: VettingProtocol,
    nodes: Sequence[str],
    results: Sequence[CheckResult],
    running: Mapping[str, str] | None = None,
) -> tuple[NodeReport, ...]:
    """Return the summary of each node; a node without a verdict is not vetted."""
    entries = {entry.name: entry for entry in protocol.checks}
    by_node: dict[str, list[CheckResult]] = {node: [] for node in nodes}
    for result in results:
        if result.node in by_node:
            by_node[result.node].append(result)
    for node in _left_out_for_links(results, entries):
        by_node.get(node, []).extend(_links_of(node, results, entries))
    busy = running or {}
    of_all = [each for each in results if _counts_for_all(each) and each.severity is Severity.ERROR]
    return tuple(_judge_node(node, by_node[node], of_all, entries, busy.get(node, "")) for node in nodes)


def _judge_node(
    node: str,
    own: Sequence[CheckResult],
    of_all: Sequence[CheckResult],
    entries: Mapping[str, ProtocolCheck],
    running: str,
) -> NodeReport:
    deciding = [each for each in own if each.severity is Severity.ERROR]
    looked = any(each.applies for each in (*deciding, *of_all))
    heard = {each.check for each in (*own, *of_all)}
    missing = [
        entry
        for entry in entries.values()
        if not entry.problem and entry.severity is Severity.ERROR and entry.name not in heard
    ]
    bad = [each for each in (*deciding, *of_all) if not _vets(each, entries)]
    bad.sort(key=lambda each: first_to_mend(each.owner))
    reasons = [f"{each.check}: {each.reason}" for each in bad]
    reasons += [f"{entry.name}: It gave no verdict." for entry in missing]
    verdicts = [each.verdict for each in (*deciding, *of_all) if not each.left_out]
    verdicts += [Verdict.NOT_RUN for _ in missing]
    return NodeReport(
        node=node,
        verdict=worst(verdicts),
        vetted=looked and not bad and not missing,
        running=running,
        reasons=tuple(reasons) or (() if looked else ("No check that decides has looked at it.",)),
        owner=bad[0].owner if bad else None,
    )


def _vets(result: CheckResult, entries: Mapping[str, ProtocolCheck]) -> bool:
    if result.severity is not Severity.ERROR or result.left_out:
        return True
    entry = entries.get(result.check)
    return entry.vets(result.verdict) if entry else result.verdict is Verdict.PASS


def _counts_for_all(result: CheckResult) -> bool:
    return not result.node and "|" not in result.subject


def _bad_links(
    results: Iterable[CheckResult], entries: Mapping[str, ProtocolCheck]
) -> list[tuple[tuple[str, ...], CheckResult]]:
    return [
        (tuple(each.subject.split("|")), each)
        for each in results
        if not each.node and "|" in each.subject and not _vets(each, entries)
    ]


def _left_out_for_links(results: Iterable[CheckResult], entries: Mapping[str, ProtocolCheck]) -> list[str]:
    """Return nodes without which no slow link is left: most links first, else the later name."""
    links = [set(ends) for ends, _ in _bad_links(results, entries)]
    left_out: list[str] = []
    while links:
        counts: dict[str, int] = {}
        for link in links:
            for node in link:
                counts[node] = counts.get(node, 0) + 1
        worst_node = max(sorted(counts), key=lambda node: (counts[node], node))
        left_out.append(worst_node)
        links = [link for link in links if worst_node not in link]
    return left_out


def _links_of(
    node: str, results: Iterable[CheckResult], entries: Mapping[str, ProtocolCheck]
) -> list[CheckResult]:
    return [each for ends, each in _bad_links(results, entries) if node in ends]


def make_report(
    protocol: VettingProtocol,
    nodes: Sequence[str],
    results: Sequence[CheckResult],
    *,
    started_ns: int,
    ended_ns: int | None = None,
    complete: bool = False,
    running: Mapping[str, str] | None = None,
    cluster: str = "",
    job: str = "",
    notes: Sequence[str] = (),
    torch_import_s: Mapping[str, float] | None = None,
) -> VettingReport:
    """Return the report of the results so far."""
    results = with_owners(results)
    imports = torch_import_s or {}
    judged = tuple(
        each.model_copy(update={"torch_import_s": imports.get(each.node)})
        for each in judge_nodes(protocol, nodes, results, running)
    )
    # What a run that was cut short did not get to is nobody's fault.
    said = results if complete else [each for each in results if each.verdict is not Verdict.NOT_RUN]
    accused = _accused(protocol, judged, said)
    bad = {each.node for each in judged if not each.vetted}
    if ended_ns is not None and not complete:
        bad &= _unfit(protocol, results)
        judged = tuple(map(_cut_short, judged))
    good = tuple(each.node for each in judged if each.vetted)
    return VettingReport(
        protocol=protocol.name,
        digest=protocol.digest,
        source=protocol.source,
        cluster=cluster,
        job=job,
        started_ns=started_ns,
        ended_ns=ended_ns,
        complete=complete,
        vetted=bool(judged) and len(good) == len(judged),
        checks=tuple(
            CheckColumn(name=each.name, type=each.type, scope=each.scope, severity=each.severity)
            for each in protocol.checks
        ),
        nodes=judged,
        results=results,
        good_nodes=good,
        bad_nodes=tuple(each.node for each in judged if each.node in bad),
        exclude=fold_hostlist(accused),
        notes=tuple(
            dict.fromkeys(
                (*protocol.notes, *_notes(protocol), *_left_out(results), *_imported(imports), *notes)
            )
        ),
    )


def _cut_short(node: NodeReport) -> NodeReport:
    """Return what counts of a node after a run that was cut short: whatever passed, it is not vetted."""
    verdict = worst((node.verdict, Verdict.NOT_RUN))
    reasons = node.reasons or ("The run was not completed.",)
    return node.model_copy(update={"verdict": verdict, "vetted": False, "reasons": reasons})


def _unfit(protocol: VettingProtocol, results: Sequence[CheckResult]) -> set[str]:
    """Return the nodes that were found unfit: by more than a check, or rounds of pairs, that had no time."""
    entries = {entry.name: entry for entry in protocol.checks}
    open_yet = {Verdict.NOT_RUN, Verdict.INCONCLUSIVE}
    said = [
        each
        for each in results
        if not each.follows and not (each.scope in {Scope.PAIR, Scope.ALL} and each.verdict in open_yet)
    ]
    alone = {each.node for each in said if each.node and not _vets(each, entries)}
    return alone | set(_left_out_for_links(said, entries))


def _accused(
    protocol: VettingProtocol, judged: Sequence[NodeReport], results: Sequence[CheckResult]
) -> Collection[str]:
    """Return the nodes with a fault of their own; doubt is none, and a link's is not either of its ends'."""
    entries = {entry.name: entry for entry in protocol.checks}
    guilty = {
        each.node
        for each in results
        if each.owner is Owner.NODE and each.verdict is not Verdict.INCONCLUSIVE and not _vets(each, entries)
    }
    return [each.node for each in judged if not each.vetted and each.node in guilty]


def _left_out(results: Sequence[CheckResult]) -> list[str]:
    """Return one line on the checks that had nothing to measure."""
    names = dict.fromkeys(each.check for each in results if each.left_out and each.severity is Severity.ERROR)
    return [f"Not measured, as there is nothing to measure with: {', '.join(names)}."] if names else []


def _imported(seconds: Mapping[str, float]) -> list[str]:
    """Say in one line how long nodes took to import torch: on a slow file system it is most of the time."""
    if not seconds:
        return []
    slowest = max(seconds, key=lambda node: (seconds[node], node))
    took = f"{seconds[slowest]:.1f} s"
    where = f" per node, in at most {took} ({slowest})" if len(seconds) > 1 else f", in {took}"
    return [f"torch was imported once{where}."]


def _notes(protocol: VettingProtocol) -> list[str]:
    return [f"{entry.name}: {note}" for entry in protocol.checks for note in entry.notes]


def write_document(report: VettingReport, path: Path) -> None:
    """Write a report where the user wants it.

    Raises
    ------
    GipfelError
        The file can't be written.
    """
    document = json.dumps(report.model_dump(mode="json"), indent=1) + "\n"
    try:
        write_atomically(path, document)
    except OSError as error:
        raise GipfelError(
            f"The report can't be written to {path}: {error.strerror}.", "Name another file."
        ) from error
