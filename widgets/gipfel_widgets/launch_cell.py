"""``LaunchCell()``: a form that starts a launch, or the view of an existing launch."""

import html
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ipywidgets as ipw

from gipfel_cluster.model import GipfelError
from gipfel_extension.training.launch import Launch
from gipfel_extension.training.preflight import Holder, terminate_holders
from gipfel_extension.training.record import LaunchState

from .launch_form import LaunchForm
from .launch_options import LaunchRequest, equivalent, parse_arguments
from .launch_run import StaticView, begin, replace_at_end, run_cell, view_for
from .launch_static import launch_of
from .launch_widget import LaunchWidget
from .output import CellOutput, is_interactive, run_sync

_NO_FORM = (
    "The form needs an interactive session. Pass a script: LaunchCell(script='train.py', nodes=2), "
    "or use %%launch."
)


class LaunchCell:
    """Form with the buttons Check and Launch and the launch below it; or the view of an existing launch.

    In a session that is not interactive, such as papermill's, showing the cell starts the launch that the
    options describe, and waits for its end.

    Parameters
    ----------
    which
        Existing launch to show without a form: its number in this run, ``RUN/N``, or its directory.
    options
        Initial values of the form, by the names of the options of ``%%launch``: ``script``, ``module``,
        ``notebook`` or ``code``, ``args``, ``params``, ``nodes``, ``gpus_per_node``, ``edf`` and the others.

    Raises
    ------
    GipfelError
        The launch or the option does not exist.
    """

    def __init__(self, which: int | str | None = None, **options: Any) -> None:
        self._view: LaunchWidget | None = None
        self._launch = None if which is None else launch_of(which)
        self._form = LaunchForm(options) if which is None else None
        self._named = bool({"script", "module", "notebook", "code"} & set(options))
        self._output = CellOutput()
        self._message = ipw.HTML()
        self._buttons: tuple[ipw.Button, ...] = ()
        self._row = ipw.HBox()

    @property
    def launch(self) -> Launch:
        """Launch that the cell shows.

        Raises
        ------
        GipfelError
            No launch was started yet.
        """
        found = self._launch or (self._view.launch if self._view else None)
        if found is None:
            raise GipfelError("Nothing was launched from this cell yet.", "Press Launch.")
        return found

    @property
    def state(self) -> LaunchState:
        """State of the launch, as its supervisor last wrote it."""
        return self.launch.state

    def stop(self) -> None:
        """Stop the ranks of the launch."""
        run_sync(self.launch.stop)

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the end of the launch; return its exit status, or None after `timeout` seconds."""
        return self.launch.wait(timeout)

    def __repr__(self) -> str:
        return "LaunchCell()" if self._launch is None else f"LaunchCell({str(self._launch.folder)!r})"

    def _ipython_display_(self) -> None:
        if self._form is None:
            self._show_launch()
        elif is_interactive():
            self._show_form()
        elif self._named:
            request = self._request()
            if request is not None:
                self._launch = run_cell(request, self._output, StaticView(), interactive=False)
        else:
            self._output.show({"text/plain": _NO_FORM})

    def _show_launch(self) -> None:
        launch = self.launch
        live = is_interactive() and not launch.state.ended
        view = view_for(interactive=live)
        view.follow(launch)
        self._output.show(view.bundle())
        if live:
            replace_at_end(launch, view, self._output)

    def _show_form(self) -> None:
        from IPython.display import display  # noqa: PLC0415 - only where there is a notebook

        assert self._form is not None  # noqa: S101 - for mypy: only cells with a form call this
        check_button = ipw.Button(description="Check")
        launch_button = ipw.Button(description="Launch", button_style="primary")
        check_button.tooltip = "Show the command and check its requirements without starting it"
        launch_button.tooltip = "Check, then start; the launch keeps running after kernel, tab or server end"
        check_button.on_click(lambda _: self._on_press(dry_run=True))
        launch_button.on_click(lambda _: self._on_press())
        self._buttons = self._row.children = (check_button, launch_button)
        # The form is a separate output, so that a saved notebook keeps the launch below it.
        form = ipw.VBox([self._form.widget, self._row, self._message])
        form.add_class("jp-Gipfel-form")
        display(form)  # type: ignore[no-untyped-call,unused-ignore]
        self._view = LaunchWidget()
        self._view.document = {"phase": "", "status": "", "message": ""}
        self._output.show(self._view.bundle())

    def _on_press(self, *, dry_run: bool = False, new: bool = False) -> None:
        try:
            request = self._request()
        except GipfelError as error:
            self._set_message(f"✗ {error}", alert=True)
            return
        if request is None:
            return
        request = replace(request, dry_run=dry_run or request.dry_run, wait=False, new=new or request.new)
        self._on_thread(self._begin, request)

    def _on_thread(self, work: Callable[..., None], *given: object) -> None:
        """Run a function on a thread, with the buttons disabled."""
        for button in self._row.children:
            button.disabled = True

        def done() -> None:
            try:
                work(*given)
            finally:
                for button in self._row.children:
                    button.disabled = False

        threading.Thread(target=done, name="gipfel-launch-start", daemon=True).start()

    def _begin(self, request: LaunchRequest) -> None:
        view = self._view = self._view or LaunchWidget()
        view.stop()
        self._set_message("")
        view.document = {"phase": "preflight", "status": "preflight", "message": "", "preflight": []}
        # An earlier launch may have ended and left a static view in its place.
        self._output.show(view.bundle())
        try:
            launch, same = begin(request, view)
        except GipfelError as error:
            self._set_message(f"✗ {error}", alert=True)
            return
        finally:
            self._row.children = self._buttons
            self._show_stop_holders(tuple(each for each in view.holders if not each.protection_reason))
        if launch is None:
            return
        self._launch = launch
        # The output has the ID of the launch, so that a saved notebook shows it without this kernel.
        self._output.show(view.bundle())
        words, code = self._form.command_line() if self._form else ([], "")
        note = f"Launch {launch.folder.name} with the same options is already running." if same else ""
        self._set_message(f"{note} As a cell: {equivalent(words, code)}".strip(), again=same)
        replace_at_end(launch, view, self._output)

    def _show_stop_holders(self, holders: tuple[Holder, ...]) -> None:
        """Show a button that stops the processes that hold GPUs."""
        if holders:
            who = ", ".join(str(each) for each in holders)
            button = ipw.Button(description="Stop these processes", button_style="warning")
            button.tooltip = f"Stops {who}; unsaved data in their memory is lost"
            button.on_click(lambda _: self._on_thread(self._stop_holders, holders))
            self._row.children = (*self._buttons, button)

    def _stop_holders(self, holders: tuple[Holder, ...]) -> None:
        self._set_message(f"Stopping {', '.join(str(each) for each in holders)} …")
        left = terminate_holders(holders)
        if left:
            self._set_message(f"✗ Still running: {', '.join(str(each) for each in left)}.", alert=True)
            return
        self._row.children = self._buttons
        ended = ", ".join(str(each) for each in holders)
        self._set_message(f"✓ Stopped: {ended}. Press Check or Launch to check again.")

    def _request(self) -> LaunchRequest | None:
        assert self._form is not None  # noqa: S101 - for mypy: only cells with a form call this
        words, code = self._form.command_line()
        return parse_arguments(words, code, {})

    def _set_message(self, text: str, *, alert: bool = False, again: bool = False) -> None:
        role = "alert" if alert else "status"
        self._message.value = f'<div role="{role}" style="overflow-wrap:anywhere">{html.escape(text)}</div>'
        if again:
            other = ipw.Button(description="Launch another one")
            other.on_click(lambda _: self._on_press(new=True))
            self._row.children = (*self._buttons, other)


def launch(which: int | str = "") -> LaunchCell:
    """Return the view of a launch by its number, ``RUN/N`` or its directory; by default the newest one.

    Raises
    ------
    GipfelError
        The launch does not exist.
    """
    return LaunchCell(which)
