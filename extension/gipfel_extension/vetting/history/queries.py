"""Queries of the history: excluded nodes, baselines, decisions on borderline verdicts, recently vetted nodes.

Nodes are excluded for a limited time, for one check or for all, with a reason. The other queries are pure
functions of records that `store.History` has read.
"""

import math
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Literal

from pydantic import Field, ValidationError

from gipfel_cluster.model import Frozen, GipfelError, OneLine
from gipfel_cluster.runs import make_private, write_atomically
from gipfel_cluster.scheduler.notation import fold_hostlist

from ...telemetry.files import read_regular
from ..model import CheckResult, Owner, Severity, Verdict
from .store import BEFORE_HISTORY, History, HistoryContent, HistoryEntry, history_root, locked, set_aside

#: Variable with the site's expected seconds between failures of a node, such as a year, 31536000.
SITE_FAILURE_VARIABLE = "GIPFEL_NODE_FAILURE_S"
_MAX_EXCLUSIONS = 4096
_MAX_BYTES = 16 << 20


class Exclusion(Frozen):
    """One node that is excluded until a time (UTC, ns); an empty ``check`` means all checks."""

    node: OneLine = Field(min_length=1, max_length=255)
    check: OneLine = Field("", max_length=200)
    reason: OneLine = Field(min_length=1, max_length=500)
    since_ns: int = Field(ge=0)
    until_ns: int = Field(ge=0)


def excluded_hostlist(exclusions: Iterable[Exclusion], checks: Collection[str] | None = None) -> str:
    """Return the nodes as a hostlist; with `checks`, only those excluded for one of them or for all."""
    return fold_hostlist({each.node for each in exclusions if checks is None or each.check in {"", *checks}})


class _Content(Frozen):
    version: Literal[1] = 1
    exclusions: tuple[Exclusion, ...] = Field((), max_length=_MAX_EXCLUSIONS)


class Exclusions:
    """Exclusion list of one cluster.

    Parameters
    ----------
    folder
        The cluster's directory in the history, which holds ``exclusions.json``.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "exclusions.json"

    def read(self, *, now_ns: int | None = None) -> tuple[tuple[Exclusion, ...], str]:
        """Return the current exclusions, and a problem with the file, which is then renamed."""
        now = time.time_ns() if now_ns is None else now_ns
        try:
            content = _Content.model_validate_json(read_regular(self.path, _MAX_BYTES))
        except FileNotFoundError:
            return (), ""
        except OSError as error:
            return (), f"{self.path} can't be read: {error.strerror}."
        except ValidationError:
            return (), set_aside(self.path, ValueError("it is not an exclusion list, so no node is excluded"))
        return tuple(each for each in content.exclusions if each.until_ns > now), ""

    def update(
        self,
        added: Iterable[Exclusion],
        *,
        removed: Collection[tuple[str, str]] = (),
        now_ns: int | None = None,
    ) -> tuple[Exclusion, ...]:
        """Add exclusions, which replace older ones of the same node and check; return all exclusions.

        Parameters
        ----------
        removed
            Nodes and checks whose exclusions are removed.

        Raises
        ------
        GipfelError
            The file can't be written, or has more than 4096 exclusions.
        """
        try:
            make_private(self.path.parent)
            with locked(self.path.with_name(".exclusions.lock")):
                current, _ = self.read(now_ns=now_ns)
                kept = (each for each in current if (each.node, each.check) not in removed)
                changed = {(each.node, each.check): each for each in (*kept, *added)}
                if len(changed) > _MAX_EXCLUSIONS:
                    problem = f"{self.path} would hold more than {_MAX_EXCLUSIONS} nodes."
                    raise GipfelError(problem, "Remove exclusions of other nodes first.")
                content = _Content(exclusions=tuple(changed[key] for key in sorted(changed)))
                write_atomically(self.path, content.model_dump_json(indent=2))
        except OSError as error:
            raise GipfelError(
                f"{self.path} can't be written: {error.strerror}.",
                "Set GIPFEL_VETTING_HISTORY to a directory that you can write to.",
            ) from error
        return content.exclusions


_BORDERLINE = {Verdict.DEGRADED, Verdict.INCONCLUSIVE}
_BAD = {Verdict.FAIL, Verdict.DEGRADED}
_MIN_BAD_RUNS, _RECENT_RUNS = 2, 5


class Baseline(Frozen):
    """Typical measurement of a check on a GPU model.

    ``spread`` is the median distance to the median (MAD), not scaled; ``nodes`` is the number of different
    nodes that it was measured on.
    """

    type: str
    check: str
    gpu_model: str
    unit: str
    median: float
    spread: float
    nodes: int
    samples: int


def compute_baselines(entries: Iterable[HistoryEntry], *, min_nodes: int = 1) -> tuple[Baseline, ...]:
    """Return one baseline per check, GPU model and unit, from passing results.

    Each node counts once, with its own median, so that a frequently vetted node does not dominate.
    """
    groups: dict[tuple[str, str, str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for each in entries:
        if each.verdict is Verdict.PASS and each.measurement is not None:
            groups[each.type, each.check, each.gpu_model, each.unit][each.node].append(each.measurement)
    baselines = []
    for (type_, check, model, unit), nodes in sorted(groups.items()):
        if len(nodes) < min_nodes:
            continue
        by_node = [median(values) for values in nodes.values()]
        middle = median(by_node)
        baselines.append(
            Baseline(
                type=type_,
                check=check,
                gpu_model=model,
                unit=unit,
                median=middle,
                spread=median(abs(each - middle) for each in by_node),
                nodes=len(nodes),
                samples=sum(map(len, nodes.values())),
            )
        )
    return tuple(baselines)


def decide_borderline(result: CheckResult, earlier: Sequence[HistoryEntry]) -> CheckResult:
    """Return the result; a borderline verdict becomes ``fail`` if 2 of the last 5 verdicts were bad.

    The history never improves a verdict, because one good run does not clear a node with intermittent faults.
    Verdicts ``pass`` and ``fail`` are not changed, and earlier ones that were inconclusive or not run don't
    count.

    Parameters
    ----------
    earlier
        Entries of the same check on the same node, oldest first.
    """
    recent = _conclusive(earlier)[-_RECENT_RUNS:]
    bad = sum(each.verdict in _BAD for each in recent)
    if result.verdict not in _BORDERLINE or bad < _MIN_BAD_RUNS:
        return result
    reason = f"{result.reason.rstrip('.')}; and it was bad in {bad} of its last {len(recent)} runs."
    evidence = {**result.evidence, BEFORE_HISTORY: result.verdict.value}
    return result.with_verdict(Verdict.FAIL, reason, evidence=evidence)


class FailureRate(Frozen):
    """Failures of vetted nodes, and the time in which they were seen.

    ``failures`` counts nodes that were vetted and had a failed check of their own at the next run that tested
    them; ``node_s`` is the time between those runs, of all nodes. A fault that was mended in between is not
    seen, and one that comes and goes counts each time.
    """

    failures: int
    node_s: float

    def between_s(self, expected_s: float) -> float:
        """Return the seconds between failures of a node: the mean rate of a Gamma(k + 1/2) posterior.

        With k failures in T seconds it is (T + M/2) / (k + 1/2): `expected_s`, M, without any history, and
        T / k after many. Source: Jeffreys' prior of a Poisson rate, scaled to the mean 1/M.
        """
        return (self.node_s + expected_s / 2) / (self.failures + 0.5)


def site_failure_s(environment: Mapping[str, str]) -> float:
    """Return the site's expected seconds between failures of a node; 0 if it has set none."""
    try:
        seconds = float(environment.get(SITE_FAILURE_VARIABLE, "") or 0)
    except ValueError:
        return 0.0
    return seconds if 0 < seconds < math.inf else 0.0


def known_failures(cluster: str, environment: Mapping[str, str]) -> FailureRate:
    """Return the failures in the user's vettings of a cluster; no failures in 0 s if there is no history."""
    try:
        return count_failures(History(history_root(environment), cluster).read())
    except (GipfelError, OSError):
        return FailureRate(failures=0, node_s=0.0)


def count_failures(content: HistoryContent) -> FailureRate:
    """Return how often nodes that had been vetted failed afterwards."""
    good_since: dict[str, int] = {}
    failures, node_ns = 0, 0
    for record in sorted(content.records, key=lambda each: each.ended_ns):
        failed = {
            each.node
            for each in record.entries
            if each.verdict is Verdict.FAIL and each.owner is Owner.NODE and each.severity is Severity.ERROR
        }
        for node in {*record.vetted, *failed}:
            if node in good_since:
                node_ns += max(0, record.ended_ns - good_since.pop(node))
                failures += node in failed
            if node not in failed:
                good_since[node] = record.ended_ns
    return FailureRate(failures=failures, node_s=node_ns / 1e9)


def _conclusive(earlier: Sequence[HistoryEntry]) -> list[HistoryEntry]:
    own = {Owner.NODE, Owner.LINK}
    return [each for each in earlier if each.verdict in {*_BAD, Verdict.PASS} and each.owner in own]


def recently_vetted(
    content: HistoryContent,
    nodes: Collection[str],
    *,
    protocol: str,
    digest: str = "",
    within_s: float,
    excluded: Collection[Exclusion] = (),
    now_ns: int | None = None,
) -> dict[str, int]:
    """Return the nodes that may be skipped, and when they were vetted (UTC, ns).

    A node may be skipped when the last run of the same protocol that tested it ended within `within_s`
    seconds, was complete, and vetted it, no later run of any protocol did not vet it, and no
    exclusion names it. With a `digest`, the protocol must also have had this digest.
    """
    now = time.time_ns() if now_ns is None else now_ns
    latest: dict[str, int] = {}
    for record in sorted(content.records, key=lambda each: each.ended_ns):
        good = set(record.vetted) if record.complete else set()
        for node in {entry.node for entry in record.entries} | good:
            if node not in good:
                latest.pop(node, None)
            elif record.protocol == protocol and digest in {"", record.digest}:
                latest[node] = record.ended_ns
    excluded_nodes = {each.node for each in excluded if each.until_ns > now}
    oldest = now - int(within_s * 1e9)
    return {
        node: latest[node]
        for node in sorted(nodes)
        if node not in excluded_nodes and oldest <= latest.get(node, -1) <= now
    }
