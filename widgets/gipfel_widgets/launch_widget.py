"""Live view of a launch in a cell; its browser half is ``extension/src/widgets/launch.tsx``."""

import atexit
import threading
import weakref
from typing import Any

import traitlets

from gipfel_cluster.model import GipfelError
from gipfel_extension.training.launch import Launch
from gipfel_extension.training.launches.logs import LogRow

from .launch_run import EMPTY, StaticView
from .launch_static import FollowedLaunch
from .output import LiveWidget, run_sync, view_files, widget_bundle

#: Maximum number of log lines in one message; older lines are only in the log file.
_MAX_SENT = 500
_END_S = 3.0


class LaunchWidget(StaticView, LiveWidget):
    """Live view of a launch: phases, progress, the merged log with a filter, and a button that stops it.

    A thread reads the launch's directory until the launch ends. The launch depends neither on the view nor on
    the thread.
    """

    _esm, _css = view_files("launch")

    document = traitlets.Dict(EMPTY).tag(sync=True)

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        super().__init__()
        self.on_msg(self._on_message)

    def follow(self, launch: Launch) -> None:
        """Follow a launch, and stop following the previous one."""
        self.stop()
        self._ended = threading.Event()
        self.followed = FollowedLaunch(launch)
        self._thread = threading.Thread(
            target=_follow,
            args=(weakref.ref(self), self.followed, self._ended),
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

    def refresh(self) -> None:
        """Do nothing: the thread reads the launch."""

    def bundle(self) -> dict[str, Any]:
        """Return the output while the widget is live."""
        return {**self.static(), **widget_bundle(self.model_id, self.id)}

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
        elif kind == "logs" and self.followed is not None:
            rank = content.get("rank")
            rank = rank if isinstance(rank, int) and rank >= 0 else None
            self._send_lines(self.followed.lines_of(rank), first=True, rank=rank)

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
