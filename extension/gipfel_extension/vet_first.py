"""Vetting before a server: vet the nodes in the container, report progress to the hub, become the server.

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

from gipfel_cluster.job.spec import MOST_ROWS, NodeProgress, VettingProgress
from gipfel_cluster.model import GipfelError, one_line
from gipfel_cluster.scheduler.excluded_nodes import exclude_nodes, remaining_variables
from gipfel_cluster.scheduler.notation import fold_hostlist

from .hub_post import post_to_hub
from .vetting.external_run import ReportFile, vet_argv
from .vetting.grid import GridRow, VettingGrid, grid_of
from .vetting.model import Owner, first_to_mend
from .vetting.protocol_files import find_protocol
from .vetting.report import VettingReport
from .vetting.run.location import node_name

_ROUTE = "/gipfel/server/vetting"
_LOOK_S, _POST_EVERY_S, _STILL_HERE_S, _ANSWER_S = 0.25, 1.0, 10.0, 5.0
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_BAD = ("fail", "degraded", "inconclusive", "not_run")
_NO_VETTING = "The nodes could not be vetted"
_MOST_OUTCOME, _MOST_NAMES = 300, 80


class VetFirst:
    """One vetting before a server.

    Parameters
    ----------
    protocol
        A name, as ``gipfel vet`` takes it.
    action
        ``abort`` starts no server where a node is not vetted; ``shrink`` starts it without the nodes that are
        not, unless its own is one of them; ``report`` starts it all the same.
    """

    def __init__(self, protocol: str, action: str, environment: Mapping[str, str]) -> None:
        self._protocol, self._action, self._environment = protocol, action, environment
        self._run = Path(environment["GIPFEL_RUN"])
        self._file = ReportFile(self._run)
        self._child: subprocess.Popen[bytes] | None = None
        self._asked = 0
        self._deaf = False
        self._posted: VettingProgress | None = None
        self._posted_at = 0.0
        self.without: tuple[str, ...] = ()
        """After `run`, the nodes that the server goes on without."""

    def run(self) -> str:
        """Vet, and return why no server may start; empty where it may.

        Raises
        ------
        GipfelError
            The protocol can't be used, or the run folder not written.
        SystemExit
            The job was asked to end meanwhile.
        """
        found = find_protocol(self._protocol, directory=Path.cwd(), environment=self._environment)
        before = self._report()
        # Of the same job before it was queued again, perhaps on other nodes.
        exclude_nodes(self._run, ())
        for number in _FORWARDED:
            signal.signal(number, self._forward)
        self._child = subprocess.Popen(self._argv(), env=dict(self._environment), stdin=subprocess.DEVNULL)
        while self._child.poll() is None:
            report = self._report()
            if report is not None and report != before and report.ended_ns is None:
                self._post(progress_of(report))
            time.sleep(_LOOK_S)
        if self._asked:
            sys.exit(128 + self._asked)
        report = self._report()
        if report is None or report == before or report.ended_ns is None:
            problem = f"{_NO_VETTING} by {found.name}: the vetting ended with status {self._child.returncode}"
            return "" if self._action == "report" else problem
        return self._decide(report, vetted=self._child.returncode == 0 and report.vetted)

    def _argv(self) -> tuple[str, ...]:
        if self._action == "shrink":
            return vet_argv(self._protocol, action="shrink", min_nodes=1)
        return vet_argv(self._protocol)

    def _decide(self, report: VettingReport, *, vetted: bool) -> str:
        """Report why no server may start, and record the nodes to continue without; return the reason."""
        problem = "" if vetted else what_is_wrong(report)
        here = node_name(self._environment)
        if problem and self._action == "shrink":
            if here in report.good_nodes:
                self.without = report.bad_nodes
                exclude_nodes(self._run, self.without)
            elif report.good_nodes:
                problem += f" The server would run on {here} itself."
        starts = not problem or bool(self.without) or self._action == "report"
        self._post(progress_of(report, _outcome(problem, self.without, starts=starts)), last=True)
        return "" if starts else problem

    def _report(self) -> VettingReport | None:
        try:
            self._file.look()
        except GipfelError:
            return None
        return self._file.report

    def _post(self, progress: VettingProgress, *, last: bool = False) -> None:
        """Report to the hub what has changed, and regularly that the vetting continues; it needs no hub."""
        pause = time.monotonic() - self._posted_at
        due = pause > (_STILL_HERE_S if progress == self._posted else _POST_EVERY_S)
        if self._deaf or not (due or last):
            return
        self._posted, self._posted_at = progress, time.monotonic()
        try:
            post_to_hub(_ROUTE, progress.model_dump(mode="json"), self._environment, limit_s=_ANSWER_S)
        except urllib.error.HTTPError as error:
            # One of an older version, or one that awaits this server no longer.
            self._deaf = error.code < http.HTTPStatus.INTERNAL_SERVER_ERROR
        except (OSError, KeyError):
            return

    def _forward(self, number: int, _frame: FrameType | None) -> None:
        self._asked = number
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(signal.SIGTERM)


def _outcome(problem: str, without: Sequence[str], *, starts: bool) -> str:
    """Return what is wrong, as far as there is room, and what follows."""
    names = fold_hostlist(without)
    if len(names) > _MOST_NAMES:
        names = f"{len(without)} nodes"
    then = "No server starts." if not starts else "The server starts."
    if without:
        then = f"The server starts without {names}."
    return f"{problem[: _MOST_OUTCOME - len(then) - 1]} {then}".strip()


def progress_of(report: VettingReport, outcome: str = "") -> VettingProgress:
    """Return the part of a report that the hub's page shows."""
    grid = grid_of(report, most_rows=MOST_ROWS)
    accused = {each.node for each in report.results if each.node and each.verdict.value in _BAD}
    return VettingProgress(
        protocol=one_line(grid.protocol)[:64],
        nodes=grid.nodes,
        done=grid.done,
        bad=len(report.bad_nodes) if grid.ended_ns is not None else len(accused),
        ended=grid.ended_ns is not None,
        rows=tuple(_node(row, grid) for row in grid.rows),
        outcome=one_line(outcome)[:_MOST_OUTCOME],
    )


def what_is_wrong(report: VettingReport) -> str:
    """Return as one line which nodes are not fit, and whose fault and what is first to mend."""
    bad = [each for each in report.nodes if each.node in report.bad_nodes]
    if not bad:
        return f"{report.protocol}: {one_line(report.outcome) or 'the vetting was not completed.'}"
    bad.sort(key=lambda each: first_to_mend(each.owner))
    first, owner = bad[0], bad[0].owner
    reason = first.reasons[0] if first.reasons else "it was not vetted"
    words = f"{first.node}: {one_line(reason)[:200].rstrip('.')}"
    # The hub's catalogue of causes knows these words.
    whose = f"Fault of the {owner}: " if owner not in {None, Owner.NODE} else ""
    names = ", ".join(each.node for each in bad[1:9])
    more = f"; and {len(bad) - 1} more: {names}" if names else ""
    return f"{whose}{len(bad)} of {len(report.nodes)} nodes not fit by {report.protocol}: {words}{more}."


def _node(row: GridRow, grid: VettingGrid) -> NodeProgress:
    bad = [
        (_BAD.index(cell.verdict), check, cell)
        for check, cell in zip(grid.checks, row.cells, strict=True)
        if cell.verdict in _BAD
    ]
    state, words = row.verdict, ""
    if bad:
        _, check, cell = min(bad, key=lambda each: each[0])
        state, words = cell.verdict, f"{check}: {cell.reason}"
    elif row.running:
        words = f"{row.running} runs"
    elif all(cell.verdict == "pass" for cell in row.cells) and (grid.complete or grid.ended_ns is None):
        state = "pass"
    return NodeProgress.model_validate({"node": row.node[:64], "state": state, "words": words[:160]})


def main() -> None:
    """Vet, then run the server; where none may start, one line on stderr has the reason."""
    protocol, action, _, *server = sys.argv[1:]
    vetting = VetFirst(protocol, action, os.environ)
    try:
        problem = vetting.run()
        # Whatever runs in the server finds the nodes that remain, as if the job had no others.
        os.environ.update(remaining_variables(os.environ, vetting.without))
    except GipfelError as error:
        problem = f"{_NO_VETTING}: {error}"
    if problem:
        sys.exit(f"gipfel: vet first: {problem}")
    # Flushed by nobody after this.
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-I", *server])  # noqa: S606 - the server's own command


if __name__ == "__main__":
    main()
