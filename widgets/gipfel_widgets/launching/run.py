"""From what a cell asks to a launch that runs: started once, shown, waited for where nobody looks."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from gipfel_cluster.model import GipfelError
from gipfel_extension.training.launch import Launch, Launched
from gipfel_extension.training.launch import launch as start_launch
from gipfel_extension.training.launches.same import running_same
from gipfel_extension.training.preflight import CheckOutcome

from ..shown import Bundle
from .follow import FollowedLaunch
from .options import Asked
from .paper import launch_html, launch_text
from .show import CellOutput

#: The word of a launch that came to nothing before any rank began.
NOT_STARTED = "not started"
_PAPER_S = 5.0
_LOOK_S = 0.2


class LaunchFailedError(GipfelError):
    """A launch that a cell waited for has failed; the cell's traceback is that of the first failing rank."""

    def __init__(self, problem: str, fix: str, traceback: str = "") -> None:
        super().__init__(problem, fix)
        self.traceback = traceback

    def _render_traceback_(self) -> list[str]:
        return [*self.traceback.rstrip().splitlines(), str(self)] if self.traceback else [str(self)]


class Face(Protocol):
    """What shows a launch: the live view, or paper."""

    def tell(self, outcome: CheckOutcome) -> None:
        """Take an outcome of the pre-flight."""

    def plan(self, launch: Launch) -> None:
        """Take a launch that is about to be checked."""

    def say(self, word: str, sentence: str) -> None:
        """Take a sentence where there is nothing to follow."""

    def follow(self, launch: Launch) -> None:
        """Take a launch that was started."""

    def paper(self) -> Bundle:
        """What a saved notebook keeps."""

    def bundle(self) -> Bundle:
        """What a cell holds meanwhile."""


class PaperView:
    """A launch where nobody looks: plain documents, as an executed notebook keeps them."""

    def __init__(self) -> None:
        self.document: dict[str, Any] = {"word": "preflight", "preflight": []}
        self.followed: FollowedLaunch | None = None

    def tell(self, outcome: CheckOutcome) -> None:
        """Take an outcome of the pre-flight."""
        self.document = {**self.document, "preflight": [*self.document["preflight"], outcome.model_dump()]}

    def plan(self, launch: Launch) -> None:
        """Take a launch that is about to be checked."""
        self.document |= {"number": launch.state.number, "name": launch.state.name, "command": launch.command}

    def say(self, word: str, sentence: str) -> None:
        """Take a sentence where there is nothing to follow."""
        self.document = {**self.document, "word": word, "says": sentence}

    def follow(self, launch: Launch) -> None:
        """Take a launch that was started."""
        self.followed = FollowedLaunch(launch)

    def paper(self) -> Bundle:
        """Look once more, and say what is there."""
        lines: tuple[Any, ...] = ()
        if self.followed is not None:
            self.followed.poll()
            self.document, lines = self.followed.document, tuple(self.followed.lines)
        return {
            "text/plain": launch_text(self.document, lines),
            "text/html": launch_html(self.document, lines),
        }

    def bundle(self) -> Bundle:
        """The same as on paper."""
        return self.paper()


class _BrokenOff(Exception):  # noqa: N818 - told to a thread, seen by nobody
    pass


def begin(asked: Asked, face: Face, broken: threading.Event | None = None) -> tuple[Launch | None, bool]:
    """Check and start what is asked, and let a face follow it.

    Returns
    -------
    Launch or None
        None after a dry run.
    bool
        Whether it is one that ran already.

    Raises
    ------
    GipfelError
        It can't be started.
    """

    def heed() -> None:
        if broken is not None and broken.is_set():
            raise _BrokenOff

    def tell(outcome: CheckOutcome) -> None:
        heed()
        face.tell(outcome)

    def planned(launch: Launch) -> None:
        heed()
        face.plan(launch)

    directory = _here()
    if not asked.dry_run and not asked.new:
        same = running_same(asked.spec, os.environ, directory)
        if same is not None:
            face.follow(same)
            return same, True
    try:
        how: dict[str, Any] = {"directory": directory, "dry_run": asked.dry_run, "free": asked.free}
        made = start_launch(asked.spec, os.environ, **how, tell=tell, planned=planned)
    except _BrokenOff:
        face.say(NOT_STARTED, "It was broken off before it started.")
        return None, False
    except GipfelError:
        # Why, the caller says.
        face.say(NOT_STARTED, "")
        raise
    if isinstance(made, Launched):
        failed = any(each.verdict == "fail" for each in made.preflight)
        face.say("check failed" if failed else "checked", "Nothing was started: this was a check.")
        return None, False
    face.follow(made)
    return made, False


def run_cell(asked: Asked, output: CellOutput, face: Face, *, attended: bool) -> Launch | None:
    """Carry out what a cell asks; return at once where a user is present, else when the launch ends.

    ``--wait`` and ``--no-wait`` override that.

    Raises
    ------
    GipfelError
        It can't be started, or it was waited for and has failed.
    """
    output.show(face.bundle())
    try:
        launch, same = _begin_aside(asked, face)
    except BaseException:
        output.show(face.paper())
        raise
    if launch is None:
        output.show(face.paper())
        return None
    if attended:
        # Which launch it is, so that a saved notebook shows it without this kernel.
        output.show(face.bundle())
    if same:
        # Not in the output, which later ones replace.
        print(  # noqa: T201 - what a cell says
            f"Launch {launch.folder.name} is the same and runs already: this is it. "
            "--new starts another one beside it."
        )
    wait = asked.wait if asked.wait is not None else not attended
    if wait:
        _wait(launch, face, output)
    elif attended:
        replace_at_end(launch, face, output)
    else:
        # Nothing replaces this output later: it says how the launch began.
        output.show(face.paper())
    return launch


def replace_at_end(launch: Launch, face: Face, output: CellOutput) -> None:
    """Put paper in the live view's place when the launch has ended, so that a saved notebook keeps it."""

    def watch() -> None:
        pause = _LOOK_S
        while not _ended(launch):
            time.sleep(pause)
            pause = min(1.0, pause * 1.2)
        time.sleep(2 * _LOOK_S)  # for the view's own last look
        output.show(face.paper())

    threading.Thread(target=watch, name="gipfel-launch-end", daemon=True).start()


def _wait(launch: Launch, face: Face, output: CellOutput) -> None:
    shown = 0.0
    try:
        while not _ended(launch):
            if time.monotonic() - shown > _PAPER_S and isinstance(face, PaperView):
                output.show(face.paper())
                shown = time.monotonic()
            time.sleep(_LOOK_S)
    except KeyboardInterrupt:
        number = launch.folder.name
        raise GipfelError(
            f"The cell was interrupted; launch {number} goes on.",
            f"`launch({number})` shows it, `launch({number}).stop()` ends it.",
        ) from None
    output.show(face.paper())
    state = launch.state
    if state.outcome != "completed":
        why = str(state.failure) if state.failure else state.reason or state.outcome
        raise LaunchFailedError(
            f"Launch {state.number} {state.outcome or 'failed'}: {why}",
            f"All of its log: `gipfel launch logs {state.number}`.",
            state.failure.traceback if state.failure else "",
        )


def _ended(launch: Launch) -> bool:
    try:
        return launch.state.ended
    except GipfelError:
        return not launch.folder.exists()


def _begin_aside(asked: Asked, face: Face) -> tuple[Launch | None, bool]:
    """`begin` beside the kernel's own event loop; an interrupt breaks it off before anything runs."""
    broken = threading.Event()
    box: list[tuple[Launch | None, bool]] = []
    failed: list[BaseException] = []
    work: Callable[[], Any] = lambda: box.append(begin(asked, face, broken))  # noqa: E731

    def guarded() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised by the cell
            failed.append(error)

    thread = threading.Thread(target=guarded, name="gipfel-launch-start", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_LOOK_S)
    except KeyboardInterrupt:
        broken.set()
        thread.join(60)
        if box and box[0][0] is not None:
            number = box[0][0].folder.name
            raise GipfelError(f"Launch {number} was started before the interrupt.", "It goes on.") from None
        raise GipfelError("The launch was broken off before it started.") from None
    if failed:
        raise failed[0]
    return box[0]


def _here() -> Path:
    try:
        return Path.cwd()
    except OSError as error:
        raise GipfelError("The folder that the kernel is in is gone.", "Go to another one.") from error
