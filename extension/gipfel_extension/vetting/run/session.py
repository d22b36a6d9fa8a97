"""Run a whole vetting (`vet`), or the agent of one of its tasks (`run_agent`)."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from pydantic import JsonValue

from gipfel_cluster.job.record import now
from gipfel_cluster.model import Frozen, GipfelError
from gipfel_cluster.runs import RunFolder

from ..history.store import locked
from ..model import Scope
from ..one_check import time_limit
from ..protocol import VettingProtocol
from ..report import BAD_NODES, GOOD_NODES, VettingReport
from .actions import Action, decide, resubmit, store_report
from .agent import Agent
from .coordinator import CONNECT_LIMIT_S, SKIPPED, Coordinator
from .dispatch import AgentPool
from .location import Location, LocationKind
from .rendezvous import CoordinatorSocket, Rendezvous, start_agents
from .report_builder import EarlierRuns, ReportBuilder

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Rounds of pairs that the default time limit of a run allows for.
_DEFAULT_ROUNDS = 12
_MARGIN_S = 60.0
#: Seconds to wait for another run in the same run folder.
_OTHER_RUN_LIMIT_S = 45.0


class VettingOptions(Frozen):
    """Options of a vetting run.

    Parameters
    ----------
    min_nodes
        Fewest nodes that must pass so that the job continues with them; None for all.
    time_limit_s
        Seconds for the whole run; None for the protocol's limit.
    skip_vetted_s
        A node that passed this protocol within these seconds is only checked together with others, not alone
        again; 0 to skip none.
    resubmits
        How often a job may be resubmitted.
    """

    protocol: VettingProtocol
    action: Action = Action.REPORT
    min_nodes: int | None = None
    time_limit_s: float | None = None
    skip_vetted_s: float = 0.0
    resubmits: int = 3


class Session(Frozen):
    """Result of a run: its report and its run folder."""

    report: VettingReport
    folder: Path


def run_agent(location: Location, environment: Mapping[str, str]) -> int:
    """Run the agent of a task other than the first; return the exit status."""
    folder = location.folder(environment)
    agent = Agent(
        partial(Rendezvous.read, location.rendezvous(folder)),
        node=location.node,
        # A second task on this node only waits for the end.
        redundant=location.redundant,
        environment=environment,
    )
    return agent.run()


def cancel_run(location: Location, environment: Mapping[str, str]) -> None:
    """Notify the other tasks of a step that there will be no run, so that they don't wait for it."""
    if location.kind is LocationKind.STEP and len(location.nodes) > 1:
        with contextlib.suppress(OSError, GipfelError):
            Rendezvous.ended().write(location.rendezvous(location.folder(environment)))


def vet(
    options: VettingOptions,
    location: Location,
    environment: Mapping[str, str],
    show: Callable[[VettingReport], None] = lambda _: None,
) -> Session:
    """Vet the nodes of a location; return the report and the run folder, even if nodes fail.

    Parameters
    ----------
    location
        The step, job or machine in which this process runs.
    show
        Called with the report whenever it has been written.

    Raises
    ------
    GipfelError
        The run can't be started, or the report can't be written.
    """
    folder = location.folder(environment)
    # Another run would write its report there too, and its load would disturb measurements.
    alone = locked(
        folder / "vetting" / ".lock", f"Another vetting run is using {folder}.", limit_s=_OTHER_RUN_LIMIT_S
    )
    with alone, _recorded(RunFolder(folder), options.protocol.name, location) as record:
        session = _vet(options, location, environment, show, folder)
        record["exit_status"] = session.report.exit_status
        return session


@contextlib.contextmanager
def _recorded(folder: RunFolder, protocol: str, location: Location) -> Iterator[dict[str, JsonValue]]:
    """Write a record for a run folder that vetting made, so that `gipfel runs` shows its kind and its end."""
    record: dict[str, JsonValue] = {
        "schema": 1, "kind": "vetting", "cluster": location.cluster, "job_id": location.job,
        "started": now(), "ended": None, "exit_status": None,
        "nodes": [*location.nodes], "command": ["gipfel", "vet", protocol],
    }  # fmt: skip
    if (folder.path / "record.json").exists():
        yield record
        return
    # Don't stop if a record can't be written: the report has the findings.
    with contextlib.suppress(OSError):
        folder.write_record(record)
    try:
        yield record
    finally:
        with contextlib.suppress(OSError):
            folder.write_record({**record, "ended": now()})


def _vet(
    options: VettingOptions,
    location: Location,
    environment: Mapping[str, str],
    show: Callable[[VettingReport], None],
    folder: Path,
) -> Session:
    protocol = options.protocol
    builder = ReportBuilder(
        protocol,
        location.nodes,
        folder,
        cluster=location.cluster,
        job=location.job,
        earlier_runs=EarlierRuns.of(location.cluster, environment),
    )
    limit = options.time_limit_s or protocol.time_limit_s or _default_limit(protocol)
    due = time.monotonic() + limit
    signals: list[int] = []

    def end_reason() -> str:
        if signals:
            return f"The run was interrupted by {signal.Signals(signals[0]).name}."
        return f"The run's time limit of {limit:g} s was reached." if time.monotonic() > due else ""

    def tick() -> None:
        report = builder.write_if_changed()
        if report is not None:
            show(report)

    with _recorded_signals(signals):
        # An earlier run's lists of nodes must not be mistaken for this run's.
        for name in (GOOD_NODES, BAD_NODES):
            with contextlib.suppress(OSError):
                (folder / name).unlink(missing_ok=True)
        builder.write_if_changed()
        reason = ""
        if protocol.runnable:
            reason = _run(
                builder,
                location,
                options,
                environment=environment,
                end_reason=end_reason,
                interrupted=lambda: bool(signals),
                tick=tick,
                due=due,
            )
        else:
            cancel_run(location, environment)
        report = _finish(builder, location, options, environment, reason)
    return Session(report=report, folder=folder)


def _finish(
    builder: ReportBuilder,
    location: Location,
    options: VettingOptions,
    environment: Mapping[str, str],
    reason: str,
) -> VettingReport:
    """Write the final report, store it in the history, and resubmit the job if the action requires it."""
    report = builder.report(ended=True, complete=not reason)
    decision = decide(report, options.action, options.min_nodes)
    report = report.model_copy(
        update={
            "action": options.action.value,
            "outcome": f"{reason} {decision.outcome}".strip(),
            "exit_status": decision.status,
        }
    )
    report.write(builder.folder)
    notes = store_report(_without_skipped(report), environment)
    if decision.resubmit:
        outcome = resubmit(report, location, environment, max_attempts=options.resubmits)
        report = report.model_copy(update={"outcome": f"{report.outcome} {outcome}"})
    report = report.model_copy(update={"notes": (*report.notes, *notes)})
    report.write(builder.folder)
    return report


def _run(
    builder: ReportBuilder,
    location: Location,
    options: VettingOptions,
    *,
    environment: Mapping[str, str],
    end_reason: Callable[[], str],
    interrupted: Callable[[], bool],
    tick: Callable[[], None],
    due: float,
) -> str:
    listener = CoordinatorSocket(local_only=location.nodes == (location.node,), node=location.node)
    pool = AgentPool(listener, location.nodes)
    with contextlib.closing(listener):
        agents = start_agents(location, listener.rendezvous, builder.folder, environment)
        try:
            coordinator = Coordinator(
                builder,
                pool,
                agent_problem=agents.problem,
                end_reason=end_reason,
                tick=tick,
                skipped=builder.earlier_runs.vetted(builder.protocol, builder.nodes, options.skip_vetted_s),
                stop_early=options.action is Action.ABORT,
                single_node_allowed=options.action is Action.SHRINK and options.min_nodes == 1,
                interrupted=interrupted,
                due=due,
            )
            reason = coordinator.run()
            builder.notes += pool.notes
            return reason
        finally:
            # Other tasks exit with 0, so that the first task determines the status of the step.
            pool.end_run(0)
            agents.end()


def _without_skipped(report: VettingReport) -> VettingReport:
    """Return the report without nodes whose results are from an earlier run, which must not count twice."""
    skipped = {each.node for each in report.results if each.evidence.get(SKIPPED)}
    return report.model_copy(
        update={
            "results": tuple(each for each in report.results if each.node not in skipped),
            "good_nodes": tuple(node for node in report.good_nodes if node not in skipped),
        }
    )


def _default_limit(protocol: VettingProtocol) -> float:
    return (
        CONNECT_LIMIT_S
        + _MARGIN_S
        + sum(
            time_limit(entry) * (_DEFAULT_ROUNDS if entry.scope is Scope.PAIR else 1)
            for entry in protocol.runnable
        )
    )


@contextlib.contextmanager
def _recorded_signals(signals: list[int]) -> Iterator[None]:
    """Record termination signals instead of ending the process; only possible in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    before = {number: signal.signal(number, lambda each, _: signals.append(each)) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def checked_location(environment: Mapping[str, str]) -> Location:
    """Return the step, job or machine in which this process runs; check that its node is one of the step's.

    Raises
    ------
    GipfelError
        Slurm's variables are inconsistent.
    """
    location = Location.of(environment)
    if location.kind is LocationKind.STEP and location.rank == 0 and location.node not in location.nodes:
        raise GipfelError(
            f"This node's name is {location.node}, which is not a node of the step.",
            "Pass SLURMD_NODENAME to the container.",
        )
    return location
