"""Verdicts so far and their report on disk, which is complete JSON at every moment.

`ReportBuilder` collects results, `EarlierRuns` answers what the history says of a node, and `failed_alone`
returns nodes that failed their own checks.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from gipfel_cluster.model import GipfelError

from ..attribution.compare import compare_with_allocation
from ..history.exclusions import Exclusion, Exclusions
from ..history.queries import Baseline, baselines_of, recently_vetted, settle_borderline
from ..history.site_registry import site_baselines
from ..history.store import History, HistoryContent, HistoryEntry, history_root
from ..model import CheckResult, Owner, Severity, Verdict, with_owners
from ..one_check import is_group
from ..protocol import ProtocolCheck, VettingProtocol
from ..report import VettingReport, make_report

_LAST = 5
_WRITE_EVERY_S = 0.5
#: Share of the coordinator's time that its report may cost: a large one is written less often.
_SHARE = 0.1


class EarlierRuns:
    """History of a cluster; empty where there is none or it can't be read."""

    def __init__(
        self,
        content: HistoryContent | None = None,
        excluded: Sequence[Exclusion] = (),
        ask: Callable[[Collection[str]], Sequence[Baseline]] = lambda _: (),
    ) -> None:
        self._ask, self._asked = ask, set[str]()
        self._site: list[Baseline] = []
        self._content = content or HistoryContent()
        self._excluded = excluded
        self.problems = self._content.problems
        entries = [each for record in self._content.records for each in record.entries]
        self._of: dict[tuple[str, str], list[HistoryEntry]] = defaultdict(list)
        self._baselines = baselines_of(entries)
        for entry in entries:
            self._of[entry.node, entry.check].append(entry)

    @classmethod
    def of(cls, cluster: str, environment: Mapping[str, str]) -> "EarlierRuns":
        """Return the history of a cluster."""
        try:
            history = History(history_root(environment), cluster)
            content, (excluded, wrong) = history.read(), Exclusions(history.folder).read()
        except (GipfelError, OSError) as error:
            problem = f"The history of earlier runs can't be read: {error}"
            return cls(HistoryContent(problems=(problem,)))
        problems = (*content.problems, *filter(None, [wrong]))

        def ask(models: Collection[str]) -> Sequence[Baseline]:
            return site_baselines(cluster, models, environment=environment)

        return cls(HistoryContent(content.records, problems), excluded, ask)

    def vetted(self, protocol: VettingProtocol, nodes: Sequence[str], within_s: float) -> dict[str, int]:
        """Return the nodes that this protocol vetted recently, with when (UTC, ns).

        A protocol of the same name that demanded something else does not count.
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

    def baselines(self, models: Collection[str] = (), *, check: str) -> dict[tuple[str, str], float]:
        """Return the usual measurement of a check by check type and GPU model.

        The user's own of the same name, as checks of one type may measure different things; else the site's
        for these models.
        """
        # Whoever does not answer is not asked again.
        if new := set(models) - self._asked:
            self._asked |= new
            self._site += self._ask(new)
        found = (each for each in (*self._site, *self._baselines) if each.check == check)
        return {(each.type, each.gpu_model): each.median for each in found}

    def usual(self, entry: ProtocolCheck) -> float | None:
        """Return the usual measurement of a check on the model of most nodes; None without any."""
        found = [each for each in self._baselines if (each.check, each.type) == (entry.name, entry.type)]
        return max(found, key=lambda each: each.nodes).median if found else None

    def fit(self, node: str, check: str) -> tuple[bool, ...]:
        """Return whether a node was fit by a check in its last runs, newest last."""
        telling = [
            each
            for each in self._of.get((node, check), ())
            if each.verdict not in {Verdict.NOT_RUN, Verdict.INCONCLUSIVE}
        ]
        return tuple(each.verdict is Verdict.PASS for each in telling[-_LAST:])

    def settle(self, results: Sequence[CheckResult]) -> list[CheckResult]:
        """Return borderline verdicts decided by how often the node was bad recently."""
        settled = []
        for each, owned in zip(results, with_owners(results), strict=True):
            # What is wrong with all nodes, or with the image, does not become a node's own by repetition.
            own = owned.owner in {Owner.NODE, Owner.LINK}
            earlier = self._of.get((each.node, each.check), ()) if own else ()
            settled.append(settle_borderline(each, earlier))
        return settled


class ReportBuilder:
    """Collects verdicts and keeps ``vetting.json`` current.

    Parameters
    ----------
    folder
        The run folder.
    past
        What is remembered of earlier runs.
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
        self.torch_import_s: dict[str, float] = {}
        self.changes = 0
        self._heard = {(each.node, each.check) for each in self.results}
        self._next, self._written = 0.0, -1

    def add(self, results: Sequence[CheckResult]) -> None:
        """Add verdicts."""
        self.results += results
        self._heard |= {(each.node, each.check) for each in results}
        self.changes += 1

    def replace(self, results: Sequence[CheckResult]) -> None:
        """Replace the verdicts by the same ones, judged again."""
        self.results = list(results)
        self.changes += 1

    def compared(self, results: Sequence[CheckResult]) -> Sequence[CheckResult]:
        """Return verdicts judged by thresholds relative to each other or to earlier runs."""
        compared = list(results)
        for entry in self.protocol.checks:
            if entry.threshold is None:
                continue
            places = [place for place, each in enumerate(compared) if each.check == entry.name]
            own = [compared[place] for place in places]
            models = {str(each.evidence.get("model") or "") for each in own}
            stored = self.earlier_runs.baselines(
                models if entry.threshold.below_baseline else (), check=entry.name
            )
            for place, each in zip(places, compare_with_allocation(self.protocol, own, stored), strict=True):
                compared[place] = each
        return compared

    def run(self, node: str, check: str) -> None:
        """Set the check that runs on a node now; empty for none."""
        if self.running.get(node, "") != check:
            self.running[node] = check
            self.changes += 1

    def imported(self, seconds: Mapping[str, float]) -> None:
        """Note how long nodes took to import torch."""
        if seconds != self.torch_import_s:
            self.torch_import_s = dict(seconds)
            self.changes += 1

    def has_verdict(self, node: str, check: str) -> bool:
        """Return whether a check has given a verdict on a node."""
        return (node, check) in self._heard

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

    def keep(self) -> VettingReport | None:
        """Write the report where something has changed, at most twice a second; the report if it was written.

        Raises
        ------
        GipfelError
            It can't be written.
        """
        started = time.monotonic()
        if self._written == self.changes or started < self._next:
            return None
        self._written = self.changes
        report = self.report()
        write_report(report, self.folder)
        took = time.monotonic() - started
        self._next = started + max(_WRITE_EVERY_S, took / _SHARE)
        return report


def write_report(report: VettingReport, folder: Path) -> None:
    """Write a report into its run folder.

    Raises
    ------
    GipfelError
        It can't be written.
    """
    try:
        report.write(folder)
    except OSError as error:
        raise GipfelError(
            f"The report can't be written to {folder}: {error.strerror}.",
            "Set GIPFEL_RUNS to another folder.",
        ) from error


def failed_alone(builder: ReportBuilder) -> frozenset[str]:
    """Return the nodes that failed their own (single-node) checks."""
    entries = {entry.name: entry for entry in builder.protocol.checks}
    return frozenset(
        each.node
        for each in builder.results
        if each.node
        and each.applies
        and each.severity is Severity.ERROR
        and not (each.check in entries and entries[each.check].vets(each.verdict))
    )
