"""What is known so far, and its report on disk, which is always whole and never says more than is known."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from gipfel_cluster.model import GipfelError

from ..attribution.compare import compare_with_allocation
from ..model import CheckResult
from ..protocol import VettingProtocol
from ..report import VettingReport, make_report
from .past import Past

_WRITE_EVERY_S = 0.5
#: Share of the coordinator's time that its report may cost: a large one is written less often.
_SHARE = 0.1


class Board:
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
        past: Past | None = None,
    ) -> None:
        self.protocol, self.nodes, self.folder = protocol, tuple(nodes), folder
        self._cluster, self._job = cluster, job
        self.past = past or Past()
        self.started_ns = time.time_ns()
        self.results: list[CheckResult] = list(protocol.problems())
        self.running: dict[str, str] = {}
        self.notes: list[str] = list(self.past.problems)
        self.torch_import_s: dict[str, float] = {}
        self.changes = 0
        self._heard = {(each.node, each.check) for each in self.results}
        self._next, self._written = 0.0, -1

    def add(self, results: Sequence[CheckResult]) -> None:
        """More verdicts."""
        self.results += results
        self._heard |= {(each.node, each.check) for each in results}
        self.changes += 1

    def replace(self, results: Sequence[CheckResult]) -> None:
        """The same verdicts, judged anew."""
        self.results = list(results)
        self.changes += 1

    def compared(self, results: Sequence[CheckResult]) -> Sequence[CheckResult]:
        """Verdicts with what thresholds relative to each other, or to earlier runs, say of their figures."""
        compared = list(results)
        for entry in self.protocol.checks:
            if entry.threshold is None:
                continue
            places = [place for place, each in enumerate(compared) if each.check == entry.name]
            own = [compared[place] for place in places]
            models = {str(each.evidence.get("model") or "") for each in own}
            stored = self.past.baselines(models if entry.threshold.below_baseline else (), check=entry.name)
            for place, each in zip(places, compare_with_allocation(self.protocol, own, stored), strict=True):
                compared[place] = each
        return compared

    def run(self, node: str, check: str) -> None:
        """What runs on a node now; empty for nothing."""
        if self.running.get(node, "") != check:
            self.running[node] = check
            self.changes += 1

    def imported(self, seconds: Mapping[str, float]) -> None:
        """Note how long nodes took to import torch."""
        if seconds != self.torch_import_s:
            self.torch_import_s = dict(seconds)
            self.changes += 1

    def heard_of(self, node: str, check: str) -> bool:
        """Whether a check has said anything of a node."""
        return (node, check) in self._heard

    def report(self, *, ended: bool = False, complete: bool = False) -> VettingReport:
        """The report of now."""
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
