"""Collect results and write the report, whose file is valid JSON at all times.

`ReportBuilder` collects results, `EarlierRuns` provides the history and baselines, and `failed_alone`
returns the nodes that failed a check of one node.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

from gipfel_cluster.model import GipfelError

from ..attribution.compare import compare_with_allocation
from ..history.queries import (
    Baseline,
    Exclusion,
    Exclusions,
    compute_baselines,
    decide_borderline,
    recently_vetted,
)
from ..history.site_registry import site_baselines
from ..history.store import History, HistoryContent, HistoryEntry, history_root
from ..model import CheckResult, Owner, Severity, Verdict, with_owners
from ..one_check import is_group
from ..protocol import ProtocolCheck, VettingProtocol
from ..report import VettingReport, make_report

_LAST_RUNS = 5
_WRITE_INTERVAL_S = 0.5
#: Share of the coordinator's time for writing the report: a large report is written less often.
_MAX_WRITE_SHARE = 0.1


class EarlierRuns:
    """History and baselines of earlier runs on a cluster; empty if the history can't be read."""

    def __init__(
        self,
        content: HistoryContent | None = None,
        excluded: Sequence[Exclusion] = (),
        fetch: Callable[[Collection[str]], Sequence[Baseline]] = lambda _: (),
    ) -> None:
        self._fetch, self._fetched = fetch, set[str]()
        self._site: list[Baseline] = []
        self._content = content or HistoryContent()
        self._excluded = excluded
        self.problems = self._content.problems
        entries = [each for record in self._content.records for each in record.entries]
        self._entries: dict[tuple[str, str], list[HistoryEntry]] = defaultdict(list)
        self._baselines = compute_baselines(entries)
        for entry in entries:
            self._entries[entry.node, entry.check].append(entry)

    @classmethod
    def of(cls, cluster: str, environment: Mapping[str, str]) -> "EarlierRuns":
        """Read the history of a cluster."""
        try:
            history = History(history_root(environment), cluster)
            content, (excluded, problem) = history.read(), Exclusions(history.folder).read()
        except (GipfelError, OSError) as error:
            reason = f"The history of earlier runs can't be read: {error}"
            return cls(HistoryContent(problems=(reason,)))
        problems = (*content.problems, *filter(None, [problem]))
        fetch = partial(site_baselines, cluster, environment=environment)
        return cls(HistoryContent(content.records, problems), excluded, fetch)

    def vetted(self, protocol: VettingProtocol, nodes: Sequence[str], within_s: float) -> dict[str, int]:
        """Return the nodes that this protocol vetted recently, and when (UTC, ns).

        A run with other checks or settings does not count.
        """
        found = recently_vetted(
            self._content,
            nodes,
            protocol=protocol.name,
            digest=protocol.digest,
            within_s=within_s,
            excluded=self._excluded,
        )
        deciding = [
            each for each in protocol.runnable if each.severity is Severity.ERROR and not is_group(each)
        ]
        return {
            node: when
            for node, when in found.items()
            if all(self.fit(node, each.name)[-1:] == (True,) for each in deciding)
        }

    def baselines(self, entry: ProtocolCheck, models: Collection[str]) -> dict[tuple[str, str], float]:
        """Return the baselines of a check by its name and GPU model.

        For each model it is the user's own baseline if there is one, else the site's. The name must be the
        same, not only the type, since checks of one type may measure different things.
        """
        # A registry that does not respond is not queried again.
        if new := set(models) - self._fetched:
            self._fetched |= new
            self._site += self._fetch(new)
        found = [
            each
            for each in (*self._site, *self._baselines)
            if (each.check, each.type) == (entry.name, entry.type)
        ]
        return {(each.check, each.gpu_model): each.median for each in found}

    def baseline(self, entry: ProtocolCheck) -> float | None:
        """Return the user's own baseline of a check on the GPU model of most nodes; None if there is none."""
        found = [each for each in self._baselines if (each.check, each.type) == (entry.name, entry.type)]
        return max(found, key=lambda each: each.nodes).median if found else None

    def fit(self, node: str, check: str) -> tuple[bool, ...]:
        """Return whether a node passed a check in its last conclusive runs, newest last."""
        conclusive = [
            each
            for each in self._entries.get((node, check), ())
            if each.verdict not in {Verdict.NOT_RUN, Verdict.INCONCLUSIVE}
        ]
        return tuple(each.verdict is Verdict.PASS for each in conclusive[-_LAST_RUNS:])

    def settle(self, results: Sequence[CheckResult]) -> list[CheckResult]:
        """Return the results; those close to a threshold fail if the node was often bad in its last runs."""
        settled = []
        for each, owned in zip(results, with_owners(results), strict=True):
            # A repeated fault of all nodes or of the image is not a fault of the node.
            own = owned.owner in {Owner.NODE, Owner.LINK}
            earlier = self._entries.get((each.node, each.check), ()) if own else ()
            settled.append(decide_borderline(each, earlier))
        return settled


class ReportBuilder:
    """Collector of results that keeps ``vetting.json`` up to date.

    Parameters
    ----------
    folder
        The run folder.
    earlier_runs
        History and baselines of the cluster.
    """

    def __init__(
        self,
        protocol: VettingProtocol,
        nodes: Sequence[str],
        folder: Path,
        *,
        cluster: str,
        job: str,
        earlier_runs: EarlierRuns | None = None,
    ) -> None:
        self.protocol, self.nodes, self.folder = protocol, tuple(nodes), folder
        self._cluster, self._job = cluster, job
        self.earlier_runs = earlier_runs or EarlierRuns()
        self.started_ns = time.time_ns()
        self.results: list[CheckResult] = list(protocol.problems())
        self.running: dict[str, str] = {}
        self.notes: list[str] = list(self.earlier_runs.problems)
        #: Seconds that importing torch took, by node.
        self.torch_import_s: Mapping[str, float] = {}
        self.changes = 0
        self._with_result = {(each.node, each.check) for each in self.results}
        self._next, self._written = 0.0, -1

    def add(self, results: Sequence[CheckResult]) -> None:
        """Add results."""
        self.results += results
        self._with_result |= {(each.node, each.check) for each in results}
        self.changes += 1

    def replace(self, results: Sequence[CheckResult]) -> None:
        """Replace all results by those that were judged again."""
        self.results = list(results)
        self.changes += 1

    def compare(self, results: Sequence[CheckResult]) -> Sequence[CheckResult]:
        """Judge the results against each other and against baselines, where a threshold asks for it."""
        stored: dict[tuple[str, str], float] = {}
        for entry in self.protocol.checks:
            if entry.threshold is not None and entry.threshold.below_baseline:
                own = [each for each in results if each.check == entry.name]
                models = {str(each.evidence.get("model") or "") for each in own}
                stored |= self.earlier_runs.baselines(entry, models)
        return compare_with_allocation(self.protocol, results, stored)

    def set_running(self, node: str, check: str) -> None:
        """Set the check that is running on a node; empty for none."""
        if self.running.get(node, "") != check:
            self.running[node] = check
            self.changes += 1

    def has_verdict(self, node: str, check: str) -> bool:
        """Return whether a check has a result for a node."""
        return (node, check) in self._with_result

    def report(self, *, ended: bool = False, complete: bool = False) -> VettingReport:
        """Return the current report."""
        return make_report(
            self.protocol,
            self.nodes,
            self.results,
            started_ns=self.started_ns,
            ended_ns=time.time_ns() if ended else None,
            complete=complete,
            running={} if ended else self.running,
            cluster=self._cluster,
            job=self._job,
            notes=self.notes,
            torch_import_s=self.torch_import_s,
        )

    def write_if_changed(self) -> VettingReport | None:
        """Write the report if it has changed, at most twice a second; return it if it was written.

        Raises
        ------
        GipfelError
            The report can't be written.
        """
        started = time.monotonic()
        if self._written == self.changes or started < self._next:
            return None
        self._written = self.changes
        report = self.report()
        report.write(self.folder)
        took = time.monotonic() - started
        self._next = started + max(_WRITE_INTERVAL_S, took / _MAX_WRITE_SHARE)
        return report


def failed_alone(builder: ReportBuilder) -> frozenset[str]:
    """Return the nodes that failed their own (single-node) checks."""
    return frozenset(
        each.node
        for each in builder.results
        if each.node and each.applies and not builder.protocol.accepts(each)
    )
