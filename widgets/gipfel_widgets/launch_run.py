"""Launch from a notebook cell: check, start and show it; in a session that is not interactive, wait for it.

`run_magic` implements ``%launch`` and ``%%launch``; `run_cell` is the part that it shares with `LaunchCell`.
A `StaticView` shows the launch, or `LaunchWidget`, which is one.
"""

import os
import threading
import time
from concurrent.futures import wait
from pathlib import Path
from typing import Any

from gipfel_cluster.model import GipfelError
from gipfel_cluster.workloads.directory import workload_id
from gipfel_extension.training.launch import DryRun, Launch, find_running_duplicate
from gipfel_extension.training.launch import launch as start_launch
from gipfel_extension.training.preflight import CheckOutcome, Holder

from .launch_options import LaunchRequest, parse_line
from .launch_static import FollowedLaunch, launch_html, launch_text
from .output import Bundle, CellOutput, is_interactive, saved_bundle, start_thread

#: Document of a launch that is not planned yet.
EMPTY: dict[str, Any] = {"phase": "preflight", "status": "preflight", "message": "", "preflight": []}
#: Status of a launch that ended before any rank was started.
NOT_STARTED = "not started"
_REFRESH_S = 5.0
_POLL_S = 0.2


class LaunchFailedError(GipfelError):
    """Failure of a launch that a cell waited for; its traceback is that of the first rank that failed."""

    def __init__(self, problem: str, fix: str, traceback: str = "") -> None:
        super().__init__(problem, fix)
        self.traceback = traceback

    def _render_traceback_(self) -> list[str]:
        return [*self.traceback.rstrip().splitlines(), str(self)] if self.traceback else [str(self)]


class StaticView:
    """View without a frontend: text and HTML for an executed notebook. `LaunchWidget` is the live view."""

    #: What is shown, as the dictionary of `gipfel_extension.training.launch_summary.summarize`.
    document: Any = EMPTY
    #: Processes that held the launch's GPUs in the last pre-flight check.
    holders: tuple[Holder, ...] = ()
    followed: FollowedLaunch | None = None

    @property
    def launch(self) -> Launch | None:
        """Launch that the view shows; None before it is started."""
        return None if self.followed is None else self.followed.launch

    def on_outcome(self, outcome: CheckOutcome) -> None:
        """Add the result of a pre-flight check."""
        self.holders = outcome.holders or self.holders
        known = self.document.get("preflight", ())
        self.document = {**self.document, "preflight": [*known, outcome.model_dump()]}

    def on_planned(self, launch: Launch) -> None:
        """Show the command that is about to be checked and started."""
        self.holders = ()
        known = launch.state.model_dump(include={"number", "name", "title", "ranks"})
        self.document = {**EMPTY, **known, "command": launch.command, "folder": str(launch.folder)}

    def set_status(self, status: str, message: str) -> None:
        """Show a status and a message of a launch that was not started."""
        self.document = {**self.document, "status": status, "phase": "preflight", "message": message}

    def follow(self, launch: Launch) -> None:
        """Show the launch that was started."""
        self.followed = FollowedLaunch(launch)

    def refresh(self) -> None:
        """Read the launch again."""
        if self.followed is not None:
            self.followed.poll()
            self.document = self.followed.document

    def static(self) -> Bundle:
        """Return the output for a saved notebook, with the present state of the launch."""
        self.refresh()
        lines = () if self.followed is None else tuple(self.followed.lines)
        return {
            "text/plain": launch_text(self.document, lines),
            "text/html": launch_html(self.document, lines),
            **saved_bundle(self.id),
        }

    def bundle(self) -> Bundle:
        """Return the output while the launch runs."""
        return self.static()

    @property
    def id(self) -> str:
        """ID of the launch; empty before it is started."""
        return "" if self.launch is None else workload_id(self.launch.folder)


class _Cancelled(Exception):  # noqa: N818 - internal
    pass


def begin(
    request: LaunchRequest, view: StaticView, cancelled: threading.Event | None = None
) -> tuple[Launch | None, bool]:
    """Check and start a launch, and let a view follow it.

    Returns
    -------
    Launch or None
        None after a dry run, and if it was cancelled before it started.
    bool
        True if the launch was already running, and was only shown.

    Raises
    ------
    GipfelError
        The launch can't be started.
    """

    def check_cancelled() -> None:
        if cancelled is not None and cancelled.is_set():
            raise _Cancelled

    def on_outcome(outcome: CheckOutcome) -> None:
        check_cancelled()
        view.on_outcome(outcome)

    def on_planned(launch: Launch) -> None:
        check_cancelled()
        view.on_planned(launch)

    directory = _working_directory()
    if not request.dry_run and not request.new:
        same = find_running_duplicate(request.spec, os.environ, directory)
        if same is not None:
            view.follow(same)
            return same, True
    try:
        started = start_launch(
            request.spec,
            os.environ,
            directory=directory,
            dry_run=request.dry_run,
            on_outcome=on_outcome,
            on_planned=on_planned,
            kill_holders=request.kill_holders,
        )
    except _Cancelled:
        view.set_status(NOT_STARTED, "It was cancelled before it started.")
        return None, False
    except GipfelError:
        # The caller shows the reason.
        view.set_status(NOT_STARTED, "")
        raise
    if isinstance(started, DryRun):
        failed = any(each.verdict == "fail" for each in started.preflight)
        view.set_status("check failed" if failed else "checked", "This was a check; nothing was started.")
        return None, False
    view.follow(started)
    return started, False


def run_cell(
    request: LaunchRequest, output: CellOutput, view: StaticView, *, interactive: bool
) -> Launch | None:
    """Execute the request of a cell, and return its launch; None after a dry run or a cancellation.

    In an interactive session it returns as soon as the launch has started, else when that has ended;
    ``--wait`` and ``--no-wait`` override this.

    Raises
    ------
    GipfelError
        The launch can't be started, or it failed while the cell waited.
    """
    output.show(view.bundle())
    try:
        launch, same = _begin_on_thread(request, view)
    except BaseException:
        output.show(view.static())
        raise
    if launch is None:
        output.show(view.static())
        return None
    if interactive:
        # The output now has the launch's ID, so that a reopened notebook shows it without this kernel.
        output.show(view.bundle())
    if same:
        # Printed separately, because updates replace the displayed output.
        print(  # noqa: T201 - output of the cell
            f"Launch {launch.folder.name} with the same options is already running, and is shown here. "
            "Use --new to start another one."
        )
    if request.wait if request.wait is not None else not interactive:
        _wait(launch, view, output)
    elif interactive:
        replace_at_end(launch, view, output)
    else:
        # Nothing replaces this output later: it shows the start of the launch.
        output.show(view.static())
    return launch


def replace_at_end(launch: Launch, view: StaticView, output: CellOutput) -> None:
    """Replace the live view by a static one when the launch has ended, so that a saved notebook keeps it."""

    def watch() -> None:
        pause = _POLL_S
        while not _ended(launch):
            time.sleep(pause)
            pause = min(1.0, pause * 1.2)
        time.sleep(2 * _POLL_S)  # meanwhile the view's thread reads the launch a last time
        output.show(view.static())

    threading.Thread(target=watch, name="gipfel-launch-end", daemon=True).start()


def _wait(launch: Launch, view: StaticView, output: CellOutput) -> None:
    shown = 0.0
    try:
        while not _ended(launch):
            if time.monotonic() - shown > _REFRESH_S and isinstance(view, StaticView):
                output.show(view.static())
                shown = time.monotonic()
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        number = launch.folder.name
        raise GipfelError(
            f"The cell was interrupted; launch {number} keeps running.",
            f"Use `launch({number})` to show it and `launch({number}).stop()` to stop it.",
        ) from None
    output.show(view.static())
    state = launch.state
    if state.outcome != "completed":
        why = str(state.failure) if state.failure else state.reason or state.outcome
        raise LaunchFailedError(
            f"Launch {state.number} {state.outcome or 'failed'}: {why}",
            f"See its log: `gipfel launch logs {state.number}`.",
            state.failure.traceback if state.failure else "",
        )


def _ended(launch: Launch) -> bool:
    try:
        return launch.state.ended
    except GipfelError:
        return not launch.folder.exists()


def _begin_on_thread(request: LaunchRequest, view: StaticView) -> tuple[Launch | None, bool]:
    """Run `begin` on a thread, since it needs an event loop of its own; an interrupt cancels it."""
    cancelled = threading.Event()
    future = start_thread(lambda: begin(request, view, cancelled), "gipfel-launch-start")
    try:
        return future.result()
    except KeyboardInterrupt:
        cancelled.set()
        wait([future], 60)
        launch = future.result()[0] if future.done() and future.exception() is None else None
        if launch is not None:
            raise GipfelError(
                f"Launch {launch.folder.name} was started before the interrupt.", "It keeps running."
            ) from None
        raise GipfelError("The launch was cancelled before it started.") from None


def _working_directory() -> Path:
    try:
        return Path.cwd()
    except OSError as error:
        raise GipfelError(
            "The kernel's working directory does not exist any more.", "Change to another one with %cd."
        ) from error


def run_magic(shell: Any, line: str, cell: str = "") -> None:
    """Execute ``%launch`` or ``%%launch`` in an IPython shell, and keep the launch in its ``_launch``.

    Raises
    ------
    GipfelError
        The line is not valid, or the launch can't be started, or it failed while the cell waited.
    """
    variables: dict[str, Any] = shell.user_ns
    request = parse_line(line, cell, variables)
    if request is None:
        return
    interactive = is_interactive()
    launched = run_cell(request, CellOutput(), view_for(interactive=interactive), interactive=interactive)
    # Like IPython's `_`: later cells use it.
    variables["_launch"] = launched


def view_for(*, interactive: bool) -> StaticView:
    """Return a live view for an interactive session, else a static one."""
    if not interactive:
        return StaticView()
    from .launch_widget import LaunchWidget  # noqa: PLC0415 - widgets need a frontend

    return LaunchWidget()
