"""Notify the user that a launch has ended; its supervisor calls this once the end is written."""

from collections.abc import Mapping
from pathlib import Path

from gipfel_cluster.notify.event import Event
from gipfel_cluster.notify.reporter import Reporter
from gipfel_cluster.workloads.directory import workload_id

from ...telemetry.events import report_failure
from ..record.state import LaunchState

_SHORT_NS = 60 * 10**9


def report_end(folder: Path, state: LaunchState, environment: Mapping[str, str]) -> None:
    """Report the end of a launch; it never raises, and waits a few seconds at most.

    A launch in a job of its own leaves only the reason of its failure in the run folder: its job reports the
    end. A launch that completed within a minute is not reported: its user is still looking at it.
    """
    failed = state.outcome not in {"completed", "stopped"}
    if not state.in_job:
        if failed:
            report_failure({**environment, "GIPFEL_RUN": state.run}, state.reason)
        return
    if not failed and (state.ended_ns or 0) - (state.started_ns or 0) < _SHORT_NS:
        return
    identifier = workload_id(folder)
    event = Event.of(
        "failed" if failed else "ended",
        f"Launch {state.name} ({identifier})",
        state.reason or f"Its outcome: {state.outcome}.",
        run=Path(state.run).name,
        workload=f"launch:{identifier}",
    )
    reporter = Reporter(environment)
    reporter.report(event)
    reporter.finish()
