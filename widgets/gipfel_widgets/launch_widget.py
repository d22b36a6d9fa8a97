"""Live view of a launch in a cell; its browser half is ``extension/src/widgets/launch.tsx``."""

import atexit
import threading
import weakref
from typing import Any

import traitlets

from gipfel_cluster.model import GipfelError
from gipfel_cluster.workloads.directory import workload_id
from gipfel_extension.training.launch import Launch
from gipfel_extension.training.launches.logs import LogRow
from gipfel_extension.training.preflight import CheckOutcome, Holder

from .launch_static import FollowedLaunch, launch_html, launch_text
from .output import LiveWidget, run_sync, saved_bundle, view_files, widget_bundle

#: Maximum number of log lines in one message; older lines are only in the log file.
_MAX_SENT = 500
_END_S = 3.0
_EMPTY: dict[str, Any] = {"phase": "preflight", "status": "preflight", "message": "", "preflight": []}


class LaunchWidget(LiveWidget):
    """Live view of a launch: phases, progress, the merged log with a filter, and a button that stops it.

    A thread reads the launch's directory until the launch ends. The launch depends neither on the view nor on
    the thread.
    """

    _esm, _css = view_files("launch")

    document = traitlets.Dict(_EMPTY).tag(sync=True)

    def __init__(self) -> None:
        #: Processes that held the launch's GPUs in the last pre-flight check.
        self.holders: tuple[Holder, ...] = ()
        self._followed: FollowedLaunch | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        super().__init__()
        self.on_msg(self._on_message)

    @property
    def launch(self) -> Launch | None:
        """Launch that the view shows; None before it is planned."""
        return None if self._followed is None else self._followed.launch

    def on_outcome(self, outcome: CheckOutcome) -> None:
        """Show the result of a pre-flight check."""
        self.holders = outcome.holders or self.holders
        self.document = {
            **self.document,
            "preflight": [*self.document.get("preflight", ()), outcome.model_dump()],
        }

    def set_status(self, status: str, message: str) -> None:
        """Show a status and a message of a launch that was not started."""
        self.document = {**self.document, "status": status, "phase": "preflight", "message": message}

    def on_planned(self, launch: Launch) -> None:
        """Show the command that is about to be checked and started."""
        self.holders = ()
        try:
            command = launch.command
        except (OSError, UnicodeDecodeError):
            command = ""
        state = launch.state
        known = {"number": state.number, "name": state.name, "title": state.title, "ranks": state.ranks}
        self.document = {**_EMPTY, **known, "command": command, "folder": str(launch.folder)}

    def follow(self, launch: Launch) -> None:
        """Follow a launch, and stop following the previous one."""
        self.stop()
        self._ended = threading.Event()
        self._followed = FollowedLaunch(launch)
        self._thread = threading.Thread(
            target=_follow,
            args=(weakref.ref(self), self._followed, self._ended),
            name="gipfel-launch",
            daemon=True,
        )
        self._thread.start()
        atexit.register(self._ended.set)

    def stop(self) -> None:
        """Stop following; the launch keeps running."""
        self._ended.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_END_S)

    def static(self) -> dict[str, Any]:
        """Return the output for a saved notebook."""
        lines = () if self._followed is None else tuple(self._followed.lines)
        return {
            "text/plain": launch_text(self.document, lines),
            "text/html": launch_html(self.document, lines),
            **saved_bundle(self._id),
        }

    def bundle(self) -> dict[str, Any]:
        """Return the output while the widget is live."""
        return {**self.static(), **widget_bundle(self.model_id, self._id)}

    @property
    def _id(self) -> str:
        return "" if self.launch is None else workload_id(self.launch.folder)

    def stop_launch(self) -> None:
        """Stop the ranks of the launch."""
        launch = self.launch
        if launch is None:
            return
        try:
            run_sync(launch.stop)
        except GipfelError as error:
            self.send({"type": "error", "text": str(error)})

    def _on_message(self, _: object, content: Any, __: object) -> None:
        kind = content.get("type") if isinstance(content, dict) else None
        if kind == "stop":
            threading.Thread(target=self.stop_launch, name="gipfel-stop", daemon=True).start()
        elif kind == "logs" and self._followed is not None:
            rank = content.get("rank")
            rank = rank if isinstance(rank, int) and rank >= 0 else None
            self._send_lines(self._followed.lines_of(rank), first=True, rank=rank)

    def _send_lines(self, lines: list[LogRow], *, first: bool, rank: int | None = None) -> None:
        self.send({"type": "logs", "first": first, "rank": rank, "lines": lines[-_MAX_SENT:]})

    def _publish(self, followed: FollowedLaunch, fresh: list[LogRow], *, changed: bool) -> None:
        """Send changes and new lines to the pages; called on the thread."""
        if changed:
            self.document = followed.document
        if fresh:
            self._send_lines(fresh, first=False)


def _follow(view: "weakref.ref[LaunchWidget]", followed: FollowedLaunch, ended: threading.Event) -> None:
    while not ended.is_set():
        try:
            changed, fresh = followed.poll()
        except OSError:
            changed, fresh = False, []
        shown = view()
        if shown is None or ended.is_set():
            return
        shown._publish(followed, fresh, changed=changed)  # noqa: SLF001 - the view's own thread
        del shown
        if followed.ended and not fresh:
            return
        ended.wait(followed.pause_s)
