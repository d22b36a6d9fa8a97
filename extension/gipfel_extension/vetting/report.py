"""Report of a vetting run: every result, the vetted nodes, and lists of nodes for the next job step."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from gipfel_cluster.model import Frozen, GipfelError
from gipfel_cluster.runs import write_atomically
from gipfel_cluster.scheduler.notation import fold_hostlist

from ..telemetry.files import read_regular
from .model import CheckResult, Owner, Scope, Severity, Verdict, owner_priority, with_owners, worst
from .protocol import CheckColumn, VettingProtocol

REPORT, GOOD_NODES, BAD_NODES = "vetting.json", "good_nodes.txt", "bad_nodes.txt"
#: Twice the report of ten thousand nodes with ten checks each.
MAX_REPORT_BYTES = 64 << 20


class NodeReport(Frozen):
    """Summary of a node.

    Parameters
    ----------
    verdict
        The worst verdict of the checks of severity error, where a check without a verdict counts as
        ``not_run``; no better than ``not_run`` after a run that was cut short.
    vetted
        Whether every check of severity error passed, or is degraded where the protocol tolerates that; always
        false after a run that was cut short.
    running
        The check that is running on the node.
    reasons
        Why the node is not vetted, one sentence per check; faults that other nodes would have too come first.
    owner
        Owner of the fault in the first reason; None for a vetted node, or if it is unknown.
    torch_import_s
        Seconds that importing torch took on the node, once for all checks; None if no check needed it.
    """

    node: str
    verdict: Verdict
    vetted: bool
    running: str = ""
    reasons: tuple[str, ...] = ()
    owner: Owner | None = None
    torch_import_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None


class VettingReport(Frozen):
    """Report of a vetting run, while it runs and after its end.

    Parameters
    ----------
    started_ns, ended_ns
        UTC, in nanoseconds; `ended_ns` is None while the run continues.
    digest
        Digest of the protocol's checks; see `VettingProtocol.digest`.
    complete
        Whether the run finished all checks; false while it runs, and after it was interrupted.
    vetted
        Whether every node is vetted.
    bad_nodes
        Every node that is not vetted; after a run that was cut short, only those that had been found unfit by
        then.
    exclude
        Hostlist for ``--exclude``: the bad nodes that have a fault of owner ``node``.
    action, outcome
        The requested action for bad nodes, and the outcome as one sentence.
    source
        The protocol's file, or the name of a shipped protocol.
    exit_status
        Exit status of ``gipfel vet``, which depends on the action; None until the run has ended.
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
        """Write ``vetting.json`` into a run folder and, after the end of the run, the lists of nodes.

        Raises
        ------
        GipfelError
            A file can't be written.
        """
        try:
            write_atomically(folder / REPORT, self.model_dump_json(indent=1) + "\n")
            if self.ended_ns is not None:
                write_atomically(folder / GOOD_NODES, "".join(f"{node}\n" for node in self.good_nodes))
                write_atomically(folder / BAD_NODES, "".join(f"{node}\n" for node in self.bad_nodes))
        except OSError as error:
            raise GipfelError(
                f"The report can't be written to {folder}: {error.strerror}.",
                "Set GIPFEL_RUNS to another directory.",
            ) from error


def read_report(path: Path) -> VettingReport:
    """Return the report in a file or in a run folder.

    Raises
    ------
    GipfelError
        There is no report, or it can't be read.
    """
    inside = path.is_dir()
    path = path / REPORT if inside else path
    try:
        return VettingReport.model_validate_json(read_regular(path, MAX_REPORT_BYTES, follow=not inside))
    except FileNotFoundError as error:
        raise GipfelError(f"There is no vetting report {path}.", "Run `gipfel vet standard`.") from error
    except OSError as error:
        raise GipfelError(f"The vetting report {path} can't be read: {error.strerror}.") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise GipfelError(f"{path} is not a vetting report: {first['msg']}.") from error


def _judge_nodes(
    protocol: VettingProtocol,
    nodes: Sequence[str],
    results: Sequence[CheckResult],
    running: Mapping[str, str],
    torch_import_s: Mapping[str, float],
) -> tuple[NodeReport, ...]:
    """Return the summary of each node; a node without results is not vetted."""
    by_node: dict[str, list[CheckResult]] = {node: [] for node in nodes}
    for result in results:
        if result.node in by_node:
            by_node[result.node].append(result)
    links = _bad_links(protocol, results)
    for node in _nodes_to_drop_for_links(links):
        by_node.get(node, []).extend(each for ends, each in links if node in ends)
    # Results of links have no node either, but count only for their ends.
    common = [each for each in results if not each.node and "|" not in each.subject]
    for_all = [each for each in common if each.severity is Severity.ERROR]
    return tuple(
        _judge_node(protocol, node, by_node[node], for_all).model_copy(
            update={"running": running.get(node, ""), "torch_import_s": torch_import_s.get(node)}
        )
        for node in nodes
    )


def _judge_node(
    protocol: VettingProtocol, node: str, results: Sequence[CheckResult], for_all: Sequence[CheckResult]
) -> NodeReport:
    deciding = [*(each for each in results if each.severity is Severity.ERROR), *for_all]
    tested = any(each.applies for each in deciding)
    with_result = {each.check for each in (*results, *for_all)}
    missing = [
        entry
        for entry in protocol.runnable
        if entry.severity is Severity.ERROR and entry.name not in with_result
    ]
    bad = [each for each in deciding if not protocol.accepts(each)]
    bad.sort(key=lambda each: owner_priority(each.owner))
    reasons = [f"{each.check}: {each.reason}" for each in bad]
    reasons += [f"{entry.name}: It gave no verdict." for entry in missing]
    verdicts = [each.verdict for each in deciding if not each.not_required]
    verdicts += [Verdict.NOT_RUN for _ in missing]
    return NodeReport(
        node=node,
        verdict=worst(verdicts),
        vetted=tested and not bad and not missing,
        reasons=tuple(reasons) or (() if tested else ("No check of severity error has tested this node.",)),
        owner=bad[0].owner if bad else None,
    )


def _bad_links(
    protocol: VettingProtocol, results: Iterable[CheckResult]
) -> list[tuple[tuple[str, ...], CheckResult]]:
    return [
        (tuple(each.subject.split("|")), each)
        for each in results
        if not each.node and "|" in each.subject and not protocol.accepts(each)
    ]


def _nodes_to_drop_for_links(links: Sequence[tuple[tuple[str, ...], CheckResult]]) -> list[str]:
    """Return a small set of nodes without which no bad link remains: those with most bad links first."""
    remaining = [set(ends) for ends, _ in links]
    dropped: list[str] = []
    while remaining:
        counts = Counter(node for link in remaining for node in link)
        worst_node = max(counts, key=lambda node: (counts[node], node))
        dropped.append(worst_node)
        remaining = [link for link in remaining if worst_node not in link]
    return dropped


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
    """Return the report of the current results."""
    results = with_owners(results)
    imports = torch_import_s or {}
    judged = _judge_nodes(protocol, nodes, results, running or {}, imports)
    # That a run was cut short before a check is not a node's fault.
    counted = results if complete else [each for each in results if each.verdict is not Verdict.NOT_RUN]
    faulty = _faulty_nodes(protocol, judged, counted)
    bad = {each.node for each in judged if not each.vetted}
    if ended_ns is not None and not complete:
        bad &= _unfit(protocol, results)
        judged = tuple(map(_cut_short, judged))
    good = tuple(each.node for each in judged if each.vetted)
    of_checks = (f"{entry.name}: {note}" for entry in protocol.checks for note in entry.notes)
    all_notes = (*protocol.notes, *of_checks, *_not_measured(results), *_import_times(imports), *notes)
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
        exclude=fold_hostlist(faulty),
        notes=tuple(dict.fromkeys(all_notes)),
    )


def _cut_short(node: NodeReport) -> NodeReport:
    """Return the summary of a node after an interrupted run: it is not vetted, even if checks passed."""
    verdict = worst((node.verdict, Verdict.NOT_RUN))
    reasons = node.reasons or ("The run was not completed.",)
    return node.model_copy(update={"verdict": verdict, "vetted": False, "reasons": reasons})


def _unfit(protocol: VettingProtocol, results: Sequence[CheckResult]) -> set[str]:
    """Return the nodes that were found unfit before the run was cut short.

    Group checks without a conclusion do not count, because they may not have had time.
    """
    unfinished = {Verdict.NOT_RUN, Verdict.INCONCLUSIVE}
    counted = [
        each
        for each in results
        if not each.is_consequence
        and not (each.scope in {Scope.PAIR, Scope.ALL} and each.verdict in unfinished)
    ]
    alone = {each.node for each in counted if each.node and not protocol.accepts(each)}
    return alone | set(_nodes_to_drop_for_links(_bad_links(protocol, counted)))


def _faulty_nodes(
    protocol: VettingProtocol, judged: Sequence[NodeReport], results: Sequence[CheckResult]
) -> Collection[str]:
    """Return the nodes with a fault of their own; ``inconclusive`` and faults of links do not count."""
    faulty = {
        each.node
        for each in results
        if each.owner is Owner.NODE
        and each.verdict is not Verdict.INCONCLUSIVE
        and not protocol.accepts(each)
    }
    return [each.node for each in judged if not each.vetted and each.node in faulty]


def _not_measured(results: Sequence[CheckResult]) -> list[str]:
    """Return a note that lists the checks that were not measured because what they test is not there."""
    names = dict.fromkeys(
        each.check for each in results if each.not_required and each.severity is Severity.ERROR
    )
    lacking = "Not measured, because what they test is not there (such as a second node or GPU)"
    return [f"{lacking}: {', '.join(names)}."] if names else []


def _import_times(seconds: Mapping[str, float]) -> list[str]:
    """Return a note on how long importing torch took: on a slow file system it is most of the time."""
    if not seconds:
        return []
    slowest = max(seconds, key=lambda node: (seconds[node], node))
    took = f"{seconds[slowest]:.1f} s"
    detail = f" per node, in at most {took} ({slowest})" if len(seconds) > 1 else f", in {took}"
    return [f"torch was imported once{detail}."]


def write_document(report: VettingReport, path: Path) -> None:
    """Write a report to a file that the user has chosen.

    Raises
    ------
    GipfelError
        The file can't be written.
    """
    try:
        write_atomically(path, report.model_dump_json(indent=1) + "\n")
    except OSError as error:
        raise GipfelError(
            f"The report can't be written to {path}: {error.strerror}.", "Choose another file."
        ) from error
