"""Vetting before a server starts: vet the nodes in the container, report progress to the hub, run the server.

``python -m gipfel_extension.vet_first PROTOCOL abort|shrink|report -- -m gipfel_extension.singleuser …``
"""

import http
import os
import signal
import subprocess
import sys
import time
import urllib.error
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from gipfel_cluster.hub_requests import post_to_hub
from gipfel_cluster.job import MAX_ROWS, NodeProgress, VettingProgress
from gipfel_cluster.model import GipfelError, one_line
from gipfel_cluster.scheduler.excluded_nodes import exclude_nodes, remaining_variables
from gipfel_cluster.scheduler.notation import fold_hostlist

from .vetting.grid import GridRow, VettingGrid, make_grid
from .vetting.model import Owner, Verdict, owner_priority
from .vetting.protocol_files import find_protocol
from .vetting.report import VettingReport
from .vetting.report_display import ReportFile, vet_argv
from .vetting.run.location import node_name

_ROUTE = "/gipfel/server/vetting"
_POLL_S, _POST_EVERY_S, _KEEPALIVE_S, _RESPONSE_LIMIT_S = 0.25, 1.0, 10.0, 5.0
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_BAD = ("fail", "degraded", "inconclusive", "not_run")
_NO_VETTING = "The nodes could not be vetted"
_MAX_OUTCOME, _MAX_NAMES = 300, 80


class VetFirst:
    """Vetting of a job's nodes before its server starts.

    Parameters
    ----------
    protocol
        Name of a protocol, as for ``gipfel vet``.
    action
        Action if a node fails: ``abort`` does not start the server, ``shrink`` starts it without the failed
        nodes unless its own node failed, and ``report`` starts it nevertheless.
    """

    def __init__(self, protocol: str, action: str, environment: Mapping[str, str]) -> None:
        self._protocol, self._action, self._environment = protocol, action, environment
        self._run = Path(environment["GIPFEL_RUN"])
        self._file = ReportFile(self._run)
        self._child: subprocess.Popen[bytes] | None = None
        self._end_signal = 0
        self._hub_refused = False
        self._posted: VettingProgress | None = None
        self._posted_at = 0.0
        self.without: tuple[str, ...] = ()
        """Nodes that the server does not use; set by `run`."""

    def run(self) -> str:
        """Vet the nodes, and return the reason why the server must not start; empty if it may.

        Raises
        ------
        GipfelError
            The protocol can't be used, or the run folder can't be written.
        SystemExit
            This process got a signal to end.
        """
        found = find_protocol(self._protocol, directory=Path.cwd(), environment=self._environment)
        before = self._report()
        # A requeued job may have the list of an earlier start, on other nodes.
        exclude_nodes(self._run, ())
        for number in _FORWARDED:
            signal.signal(number, self._forward)
        options: dict[str, Any] = {"action": "shrink", "min_nodes": 1} if self._action == "shrink" else {}
        argv = vet_argv(self._protocol, **options)
        self._child = subprocess.Popen(argv, env=dict(self._environment), stdin=subprocess.DEVNULL)
        while self._child.poll() is None:
            report = self._report()
            if report is not None and report != before and report.ended_ns is None:
                self._post(vetting_progress(report))
            time.sleep(_POLL_S)
        if self._end_signal:
            sys.exit(128 + self._end_signal)
        report = self._report()
        if report is None or report == before or report.ended_ns is None:
            problem = f"{_NO_VETTING} by {found.name}: the vetting ended with status {self._child.returncode}"
            return "" if self._action == "report" else problem
        return self._decide(report, vetted=self._child.returncode == 0 and report.vetted)

    def _decide(self, report: VettingReport, *, vetted: bool) -> str:
        """Exclude failed nodes and post the outcome; return the reason why the server must not start."""
        problem = "" if vetted else summarize_failures(report)
        own_node = node_name(self._environment)
        if problem and self._action == "shrink":
            if own_node in report.good_nodes:
                self.without = report.bad_nodes
                exclude_nodes(self._run, self.without)
            elif report.good_nodes:
                problem += f" The server would run on {own_node}, which failed."
        starts = not problem or bool(self.without) or self._action == "report"
        self._post(vetting_progress(report, _outcome(problem, self.without, starts=starts)), last=True)
        return "" if starts else problem

    def _report(self) -> VettingReport | None:
        try:
            self._file.refresh()
        except GipfelError:
            return None
        return self._file.report

    def _post(self, progress: VettingProgress, *, last: bool = False) -> None:
        """Post changed progress to the hub, and regularly a keepalive; ignore a missing hub."""
        pause = time.monotonic() - self._posted_at
        due = pause > (_KEEPALIVE_S if progress == self._posted else _POST_EVERY_S)
        if self._hub_refused or not (due or last):
            return
        self._posted, self._posted_at = progress, time.monotonic()
        try:
            post_to_hub(
                _ROUTE, progress.model_dump(mode="json"), self._environment, limit_s=_RESPONSE_LIMIT_S
            )
        except urllib.error.HTTPError as error:
            # The hub is of an older version, or no longer waits for this server.
            self._hub_refused = error.code < http.HTTPStatus.INTERNAL_SERVER_ERROR
        except (OSError, KeyError):
            return

    def _forward(self, number: int, _frame: FrameType | None) -> None:
        self._end_signal = number
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(signal.SIGTERM)


def _outcome(problem: str, without: Sequence[str], *, starts: bool) -> str:
    """Return the problem, shortened if necessary, and whether the server starts."""
    names = fold_hostlist(without)
    if len(names) > _MAX_NAMES:
        names = f"{len(without)} nodes"
    then = "No server starts." if not starts else "The server starts."
    if without:
        then = f"The server starts without {names}."
    return f"{problem[: _MAX_OUTCOME - len(then) - 1]} {then}".strip()


def vetting_progress(report: VettingReport, outcome: str = "") -> VettingProgress:
    """Return the part of a report that the hub's page shows."""
    grid = make_grid(report, max_rows=MAX_ROWS)
    accused = {each.node for each in report.results if each.node and each.verdict.value in _BAD}
    return VettingProgress(
        protocol=one_line(grid.protocol)[:64],
        nodes=grid.nodes,
        done=grid.done,
        bad=len(report.bad_nodes) if grid.ended_ns is not None else len(accused),
        ended=grid.ended_ns is not None,
        rows=tuple(_node(row, grid) for row in grid.rows),
        outcome=one_line(outcome)[:_MAX_OUTCOME],
    )


def summarize_failures(report: VettingReport) -> str:
    """Return as one line the number of failed nodes, the most important failure, and its owner."""
    bad = [each for each in report.nodes if each.node in report.bad_nodes]
    if not bad:
        return f"{report.protocol}: {one_line(report.outcome) or 'the vetting was not completed.'}"
    bad.sort(key=lambda each: owner_priority(each.owner))
    first, owner = bad[0], bad[0].owner
    reason = first.reasons[0] if first.reasons else "it was not vetted"
    detail = f"{first.node}: {one_line(reason)[:200].rstrip('.')}"
    # The hub's catalogue of failures matches this text.
    prefix = f"Fault of the {owner}: " if owner not in {None, Owner.NODE} else ""
    names = ", ".join(each.node for each in bad[1:9])
    more = f"; and {len(bad) - 1} more: {names}" if names else ""
    return f"{prefix}{len(bad)} of {len(report.nodes)} nodes not fit by {report.protocol}: {detail}{more}."


def _node(row: GridRow, grid: VettingGrid) -> NodeProgress:
    bad = [
        (_BAD.index(cell.verdict), check, cell)
        for check, cell in zip(grid.checks, row.cells, strict=True)
        if cell.verdict in _BAD
    ]
    state, detail = row.verdict, ""
    if bad:
        _, check, cell = min(bad, key=lambda each: each[0])
        state, detail = cell.verdict, f"{check}: {cell.reason}"
    elif row.running:
        detail = f"{row.running} runs"
    elif all(cell.verdict == "pass" for cell in row.cells) and (grid.complete or grid.ended_ns is None):
        state = Verdict.PASS
    return NodeProgress.model_validate({"node": row.node[:64], "state": state, "detail": detail[:160]})


def main() -> None:
    """Vet the nodes, then run the server; if it must not start, write the reason to stderr."""
    protocol, action, _, *server = sys.argv[1:]
    vetting = VetFirst(protocol, action, os.environ)
    try:
        problem = vetting.run()
        # The server and its kernels see only the remaining nodes of the job.
        os.environ.update(remaining_variables(os.environ, vetting.without))
    except GipfelError as error:
        problem = f"{_NO_VETTING}: {error}"
    if problem:
        sys.exit(f"gipfel: vet first: {problem}")
    # execv does not flush the buffers.
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-I", *server])  # noqa: S606 - the server's own command


if __name__ == "__main__":
    main()
