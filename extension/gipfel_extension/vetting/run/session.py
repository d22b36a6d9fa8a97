"""Session: a vetting run from its start to its report, or an agent's part in one."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from gipfel_cluster.model import Frozen, GipfelError

from ..history.store import locked
from ..model import Scope
from ..one_check import time_limit
from ..protocol import VettingProtocol
from ..report import BAD_NODES, GOOD_NODES, VettingReport
from .actions import Action, decide, keep_report, resubmit
from .agent import Agent, await_coordinator
from .agents import start_agents
from .coordinator import COME_WITHIN_S, SKIPPED, Coordinator
from .dispatch import AgentPool
from .location import Location, LocationKind
from .rendezvous import Listener, Rendezvous
from .report_builder import EarlierRuns, ReportBuilder, write_report

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Rounds of pairs that a time limit leaves room for, where the protocol sets none.
_ROUNDS = 12
_MARGIN_S = 60.0
#: Seconds for another run in the same folder to end; one beside it would measure it, too.
_OTHERS_S = 45.0


class VettingOptions(Frozen):
    """Options of a run.

    Parameters
    ----------
    min_nodes
        How many vetted nodes must remain; None for all.
    time_limit_s
        For the whole run; None for the protocol's own.
    come_within_s
        Seconds until the agents must have come.
    skip_vetted_s
        A node that was vetted by this protocol so recently skips its own checks; 0 for never.
    resubmits
        How often a job may be submitted again.
    """

    protocol: VettingProtocol
    action: Action = Action.REPORT
    min_nodes: int | None = None
    time_limit_s: float | None = None
    come_within_s: float = COME_WITHIN_S
    skip_vetted_s: float = 0.0
    resubmits: int = 3


class Session(Frozen):
    """Ended run: its report and its folder."""

    report: VettingReport
    folder: Path


def serve(location: Location, environment: Mapping[str, str]) -> int:
    """Run the agent of a task that is not the first; return the exit status."""
    folder = location.folder(environment)
    agent = Agent(
        await_coordinator(location.rendezvous(folder)),
        node=location.node,
        rank=location.rank,
        extra=location.extra,
        environment=environment,
    )
    return agent.run()


def cancel_run(location: Location, environment: Mapping[str, str]) -> None:
    """Report to the other tasks of a step that there will be no run, so that they don't wait for one."""
    if location.kind is LocationKind.STEP and len(location.nodes) > 1:
        with contextlib.suppress(OSError, GipfelError):
            Rendezvous.over().write(location.rendezvous(location.folder(environment)))


def vet(
    options: VettingOptions,
    location: Location,
    environment: Mapping[str, str],
    show: Callable[[VettingReport], None] = lambda _: None,
) -> Session:
    """Vet the nodes of a location; there is a report whatever happens.

    Parameters
    ----------
    show
        Called with the report whenever it has changed.

    Raises
    ------
    GipfelError
        Nothing could be started, or the report can't be written.
    """
    folder = location.folder(environment)
    with _alone(folder):
        return _vet(options, location, environment, show, folder)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Ensure that no other run writes its report here: its lists of nodes must be this run's."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(folder / "vetting" / ".lock", limit_s=_OTHERS_S))
        except GipfelError as error:
            raise GipfelError(
                f"Another vetting writes its report to {folder}.", "Wait for its end, or end it."
            ) from error
        except OSError as error:
            raise GipfelError(
                f"Nothing can be written to the run folder {folder}: {error.strerror}.",
                "Set GIPFEL_RUNS to a folder that you can write to on every node.",
            ) from error
        yield


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
    limit = options.time_limit_s or protocol.time_limit_s or _longest(protocol) + options.come_within_s
    due = time.monotonic() + limit
    signals: list[int] = []

    def ended() -> str:
        if signals:
            return f"The run was interrupted by {signal.Signals(signals[0]).name}."
        return f"The run's time limit of {limit:g} s was reached." if time.monotonic() > due else ""

    def tick() -> None:
        report = builder.keep()
        if report is not None:
            show(report)

    with _signals_kept(signals):
        _forget_lists(folder)
        builder.keep()
        reason = ""
        if protocol.runnable:
            reason = _run(
                builder,
                location,
                options,
                environment=environment,
                ended=ended,
                interrupted=lambda: bool(signals),
                tick=tick,
                due=due,
            )
        else:
            cancel_run(location, environment)
        report = _concluded(builder, location, options, environment, reason)
    return Session(report=report, folder=folder)


def _concluded(
    builder: ReportBuilder,
    location: Location,
    options: VettingOptions,
    environment: Mapping[str, str],
    reason: str,
) -> VettingReport:
    """Write the final report, then store it, and submit the job again where the action wants that."""
    report = builder.report(ended=True, complete=not reason)
    decision = decide(report, options.action, options.min_nodes)
    report = report.model_copy(
        update={
            "action": options.action.value,
            "outcome": f"{reason} {decision.outcome}".strip(),
            "exit_status": decision.status,
        }
    )
    write_report(report, builder.folder)
    notes = keep_report(_newly_found(report), environment)
    if decision.resubmit:
        outcome = resubmit(report, location, environment, most=options.resubmits)
        report = report.model_copy(update={"outcome": f"{report.outcome} {outcome}"})
    report = report.model_copy(update={"notes": (*report.notes, *notes)})
    write_report(report, builder.folder)
    return report


def _forget_lists(folder: Path) -> None:
    """Remove an earlier run's lists of nodes, which must not be taken for this one's."""
    for name in (GOOD_NODES, BAD_NODES):
        with contextlib.suppress(OSError):
            (folder / name).unlink(missing_ok=True)


def _run(
    builder: ReportBuilder,
    location: Location,
    options: VettingOptions,
    *,
    environment: Mapping[str, str],
    ended: Callable[[], str],
    interrupted: Callable[[], bool],
    tick: Callable[[], None],
    due: float,
) -> str:
    listener = Listener(alone=location.nodes == (location.node,), node=location.node)
    pool = AgentPool(listener, location.nodes)
    try:
        agents = start_agents(location, listener.rendezvous, builder.folder, environment)
        try:
            coordinator = Coordinator(
                builder,
                pool,
                why_not=agents.problem,
                ended=ended,
                tick=tick,
                skipped=builder.earlier_runs.vetted(builder.protocol, builder.nodes, options.skip_vetted_s),
                stop_early=options.action is Action.ABORT,
                one_suffices=options.action is Action.SHRINK and options.min_nodes == 1,
                come_within_s=options.come_within_s,
                interrupted=interrupted,
                due=due,
            )
            reason = coordinator.run()
            builder.notes += pool.notes
            return reason
        finally:
            # Tasks that are done end well: the status of the step is the first one's.
            pool.farewell(0)
            agents.end()
    finally:
        listener.close()


def _newly_found(report: VettingReport) -> VettingReport:
    """Return the report without results of an earlier run, which must not count twice."""
    old = {each.node for each in report.results if each.evidence.get(SKIPPED)}
    return report.model_copy(
        update={
            "results": tuple(each for each in report.results if each.node not in old),
            "good_nodes": tuple(node for node in report.good_nodes if node not in old),
        }
    )


def _longest(protocol: VettingProtocol) -> float:
    return _MARGIN_S + sum(
        time_limit(entry) * (_ROUNDS if entry.scope is Scope.PAIR else 1) for entry in protocol.runnable
    )


@contextlib.contextmanager
def _signals_kept(signals: list[int]) -> Iterator[None]:
    """Note signals that ask for the end, as far as this thread may; a second one changes nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def note(number: int, _frame: object) -> None:
        signals.append(number)

    before = {number: signal.signal(number, note) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def location_of(environment: Mapping[str, str]) -> Location:
    """Return where this process runs; as a coordinator, or an agent's task.

    Raises
    ------
    GipfelError
        Slurm's variables contradict each other.
    """
    location = Location.of(environment)
    if location.kind is LocationKind.STEP and location.rank == 0 and location.node not in location.nodes:
        raise GipfelError(
            f"This node calls itself {location.node}, which is none of the step's nodes.",
            "See that SLURMD_NODENAME reaches the container.",
        )
    return location
