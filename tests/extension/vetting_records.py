"""Results of checks, and records of runs that ended some hours ago."""

import time
from typing import Any

from gipfel_extension.vetting.history.store import HistoryEntry, VettingRecord, record_from_results
from gipfel_extension.vetting.model import CheckResult, Scope, Verdict

NOW = time.time_ns()
HOUR = 3600 * 10**9


def result(node: str = "n1", verdict: Verdict = Verdict.PASS, **more: Any) -> CheckResult:
    given = {
        "check": "matmul",
        "type": "matmul",
        "scope": Scope.GPU,
        "subject": "GPU-1",
        "reason": "It is so.",
    }
    return CheckResult.model_validate(given | {"node": node, "verdict": verdict} | more)


def record(*results: CheckResult, ago: float = 1.0, **more: Any) -> VettingRecord:
    """A run that ended `ago` hours before now."""
    ended = NOW - int(ago * HOUR)
    given = {
        "cluster": "alps", "job": "7", "protocol": "quick", "started_ns": ended - 1000, "ended_ns": ended,
        "complete": True, "vetted": [each.node for each in results if each.verdict is Verdict.PASS],
    }  # fmt: skip
    return record_from_results(results, **(given | more))


def entries(*verdicts: Verdict) -> tuple[HistoryEntry, ...]:
    return record(*(result(verdict=each) for each in verdicts)).entries
