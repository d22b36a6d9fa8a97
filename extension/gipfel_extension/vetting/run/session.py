"""A vetting run from its start to its report, or an agent's part in one."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from gipfel_cluster.model import Frozen, GipfelError

from ..history.finished import keep_report
from ..history.locking import locked
from ..model import Scope
from ..one_check import time_limit
from ..protocol import VettingProtocol
from ..report import BAD_NODES, GOOD_NODES, VettingReport
from .actions import Action, decide
from .agent import Agent, await_coordinator
from .agents import start_agents
from .board import Board, write_report
from .coordinator import COME_WITHIN_S, SKIPPED, Coordinator
from .past import Past
from .peers import Peers
from .place import Kind, Place
from .rendezvous import Door, Rendezvous
from .resubmit import resubmit

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Rounds of pairs that a time limit leaves room for, where the protocol sets none.
_ROUNDS = 12
_MARGIN_S = 60.0
#: Seconds for another run in the same folder to end; one beside it would measure it, too.
_OTHERS_S = 45.0


class VettingOptions(Frozen):
    """What is asked of a run.

    Parameters
    ----------
    min_nodes
        How many vetted nodes must remain; None for all.
    time_limit_s
        For the whole run; None for the protocol's own.
    come_within_s
        Seconds until the agents must have come.
    skip_vetted_s
        A node that was vetted by this protocol so lately runs its own checks not again; 0 for never.
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
    """A run that has ended: its report and where it is."""

    report: VettingReport
    folder: Path


def serve(place: Place, environment: Mapping[str, str]) -> int:
    """Be the agent of a task that is not the first; the exit status."""
    folder = place.folder(environment)
    agent = Agent(
        await_coordinator(place.rendezvous(folder)),
        node=place.node,
        rank=place.rank,
        extra=place.extra,
        environment=environment,
    )
    return agent.run()


def call_off(place: Place, environment: Mapping[str, str]) -> None:
    """Tell the other tasks of a step that there will be no run, so that they don't wait for one."""
    if place.kind is Kind.STEP and len(place.nodes) > 1:
        with contextlib.suppress(OSError, GipfelError):
            Rendezvous.over().write(place.rendezvous(place.folder(environment)))


def vet(
    options: VettingOptions,
    place: Place,
    environment: Mapping[str, str],
    show: Callable[[VettingReport], None] = lambda _: None,
) -> Session:
    """Vet the nodes of a place; whatever happens, there is a report.

    Parameters
    ----------
    show
        Called with the report whenever it has changed.

    Raises
    ------
    GipfelError
        Nothing could be started, or the report can't be written.
    """
    folder = place.folder(environment)
    with _alone(folder):
        return _vet(options, place, environment, show, folder)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """See that no other run writes its report here: whose lists of nodes they are must be certain."""
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
    place: Place,
    environment: Mapping[str, str],
    show: Callable[[VettingReport], None],
    folder: Path,
) -> Session:
    protocol = options.protocol
    board = Board(
        protocol,
        place.nodes,
        folder,
        cluster=place.cluster,
        job=place.job,
        past=Past.of(place.cluster, environment),
    )
    limit = options.time_limit_s or protocol.time_limit_s or _longest(protocol) + options.come_within_s
    due = time.monotonic() + limit
    asked: list[int] = []

    def ended() -> str:
        if asked:
            return f"The run was interrupted by {signal.Signals(asked[0]).name}."
        return f"The run's time limit of {limit:g} s was reached." if time.monotonic() > due else ""

    def tick() -> None:
        report = board.keep()
        if report is not None:
            show(report)

    with _signals_kept(asked):
        _forget_lists(folder)
        board.keep()
        reason = ""
        if protocol.runnable:
            reason = _run(
                board,
                place,
                options,
                environment=environment,
                ended=ended,
                interrupted=lambda: bool(asked),
                tick=tick,
                due=due,
            )
        else:
            call_off(place, environment)
        report = board.report(ended=True, complete=not reason)
        decision = decide(report, options.action, options.min_nodes)
        report = report.model_copy(
            update={
                "action": options.action.value,
                "outcome": f"{reason} {decision.outcome}".strip(),
                "exit_status": decision.status,
            }
        )
        write_report(report, folder)
        notes = keep_report(_newly_found(report), environment)
        if decision.resubmit:
            outcome = resubmit(report, place, environment, most=options.resubmits)
            report = report.model_copy(update={"outcome": f"{report.outcome} {outcome}"})
        report = report.model_copy(update={"notes": (*report.notes, *notes)})
        write_report(report, folder)
    return Session(report=report, folder=folder)


def _forget_lists(folder: Path) -> None:
    """Take an earlier run's lists of nodes away: whoever reads them must not take them for this one's."""
    for name in (GOOD_NODES, BAD_NODES):
        with contextlib.suppress(OSError):
            (folder / name).unlink(missing_ok=True)


def _run(
    board: Board,
    place: Place,
    options: VettingOptions,
    *,
    environment: Mapping[str, str],
    ended: Callable[[], str],
    interrupted: Callable[[], bool],
    tick: Callable[[], None],
    due: float,
) -> str:
    door = Door(alone=place.nodes == (place.node,), node=place.node)
    peers = Peers(door, place.nodes)
    try:
        agents = start_agents(place, door.rendezvous, board.folder, environment)
        try:
            coordinator = Coordinator(
                board,
                peers,
                why_not=agents.problem,
                ended=ended,
                tick=tick,
                skipped=board.past.vetted(board.protocol, board.nodes, options.skip_vetted_s),
                stop_early=options.action is Action.ABORT,
                one_suffices=options.action is Action.SHRINK and options.min_nodes == 1,
                come_within_s=options.come_within_s,
                interrupted=interrupted,
                due=due,
            )
            reason = coordinator.run()
            board.notes += peers.notes
            return reason
        finally:
            # Tasks that are done end well: the status of the step is the first one's.
            peers.farewell(0)
            agents.end()
    finally:
        door.close()


def _newly_found(report: VettingReport) -> VettingReport:
    """The report without what an earlier run had found, which must not count as found anew."""
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
def _signals_kept(asked: list[int]) -> Iterator[None]:
    """Note signals that ask for the end, as far as this thread may; a second one changes nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def note(number: int, _frame: object) -> None:
        asked.append(number)

    before = {number: signal.signal(number, note) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def place_of(environment: Mapping[str, str]) -> Place:
    """Where this process is; a coordinator, or an agent's task.

    Raises
    ------
    GipfelError
        Slurm's variables contradict each other.
    """
    place = Place.of(environment)
    if place.kind is Kind.STEP and place.rank == 0 and place.node not in place.nodes:
        raise GipfelError(
            f"This node calls itself {place.node}, which is none of the step's nodes.",
            "See that SLURMD_NODENAME reaches the container.",
        )
    return place
