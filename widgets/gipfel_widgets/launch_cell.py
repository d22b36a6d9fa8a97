"""``LaunchCell()``: a launch by a form, or one that was started before."""

import html
import threading
from collections.abc import Callable
from typing import Any

import ipywidgets as ipw

from gipfel_cluster.model import GipfelError
from gipfel_extension.training.launch import Launch
from gipfel_extension.training.preflight import Holder, end_holders
from gipfel_extension.training.record.state import LaunchState

from .launch_form import LaunchForm
from .launch_options import LaunchRequest, equivalent, parse_arguments
from .launch_run import StaticView, begin, replace_at_end, run_cell
from .launch_static import launch_of
from .launch_widget import LaunchWidget
from .output import CellOutput, is_interactive, run_sync

_NO_FORM = (
    "The form needs an interactive session. Pass a script: LaunchCell(script='train.py', nodes=2), "
    "or use %%launch."
)


class LaunchCell:
    """A form with [Check], [Launch] and [Stop], and the launch below it; or a launch that was started before.

    In a session that is not interactive, as under papermill, the arguments are launched and waited for.

    Parameters
    ----------
    which
        A launch's number here, ``RUN/N`` or its folder: no form, but that launch with its history.
    options
        What the form begins with, by the names of the options of ``%%launch``: ``script``, ``module``,
        ``notebook`` or ``code``, ``args``, ``params``, ``nodes``, ``gpus_per_node``, ``edf`` and the others.

    Raises
    ------
    GipfelError
        There is no such launch or option.
    """

    def __init__(self, which: int | str | None = None, **options: Any) -> None:
        self._view: LaunchWidget | None = None
        self._launch = None if which is None else launch_of(which)
        self._form = LaunchForm(options) if which is None else None
        self._named = bool({"script", "module", "notebook", "code"} & set(options))
        self._output = CellOutput()
        self._said = ipw.HTML()
        self._buttons: tuple[ipw.Button, ...] = ()
        self._row = ipw.HBox()

    @property
    def launch(self) -> Launch:
        """Launch that is shown.

        Raises
        ------
        GipfelError
            Nothing was launched yet.
        """
        found = self._launch or (self._view.launch if self._view else None)
        if found is None:
            raise GipfelError("Nothing was launched from this cell yet.", "Press Launch.")
        return found

    @property
    def state(self) -> LaunchState:
        """State that its supervisor wrote last."""
        return self.launch.state

    def stop(self) -> None:
        """End the ranks, and nothing else."""
        run_sync(self.launch.stop)

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the launch's end and return its exit status; None where it still runs."""
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
                self._launch = run_cell(request, self._output, StaticView(), attended=False)
        else:
            self._output.show({"text/plain": _NO_FORM})

    def _show_launch(self) -> None:
        launch = self.launch
        if launch.state.ended or not is_interactive():
            static = StaticView()
            static.follow(launch)
            self._output.show(static.static())
            return
        self._view = LaunchWidget()
        self._view.follow(launch)
        self._output.show(self._view.bundle())
        replace_at_end(launch, self._view, self._output)

    def _show_form(self) -> None:
        from IPython.display import display  # noqa: PLC0415 - only where there is a notebook

        assert self._form is not None  # noqa: S101 - for mypy: only a cell with a form comes here
        check, go = ipw.Button(description="Check"), ipw.Button(description="Launch", button_style="primary")
        check.tooltip = "Show the exact command and look for what would fail; start nothing"
        go.tooltip = "Check, then start; it keeps running when kernel, tab or server end"
        check.on_click(lambda _: self._press(dry_run=True))
        go.on_click(lambda _: self._press())
        self._buttons = self._row.children = (check, go)
        # A row of the form itself, so that what a saved notebook keeps is the launch below it.
        form = ipw.VBox([self._form.widget, self._row, self._said])
        display(form)  # type: ignore[no-untyped-call,unused-ignore]
        self._view = LaunchWidget()
        self._view.document = {"phase": "", "word": "", "says": ""}
        self._output.show(self._view.bundle())

    def _press(self, *, dry_run: bool = False, new: bool = False) -> None:
        try:
            request = self._request()
        except GipfelError as error:
            self._set_message(f"✗ {error}", alert=True)
            return
        if request is None:
            return
        new = new or request.new
        request = LaunchRequest(
            request.spec, dry_run=dry_run or request.dry_run, wait=False, new=new, free=request.free
        )
        self._on_thread(self._begin, request)

    def _on_thread(self, work: Callable[..., None], *given: object) -> None:
        """Work on a thread; the buttons are disabled meanwhile."""
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
        view.rest()
        self._set_message("")
        view.document = {"phase": "preflight", "word": "preflight", "says": "", "preflight": []}
        # An earlier launch may have ended and left a static view in its place.
        self._output.show(view.bundle())
        try:
            launch, same = begin(request, view)
        except GipfelError as error:
            self._set_message(f"✗ {error}", alert=True)
            return
        finally:
            self._row.children = self._buttons
            self._offer(tuple(each for each in view.held if not each.kept))
        if launch is None:
            return
        self._launch = launch
        # Which launch it is, so that a saved notebook shows it without this kernel.
        self._output.show(view.bundle())
        words, code = self._form.command_line() if self._form else ([], "")
        note = f"launch {launch.folder.name} is the same and is already running: this is it." if same else ""
        self._set_message(f"{note} The same as a cell: {equivalent(words, code)}".strip(), again=same)
        replace_at_end(launch, view, self._output)

    def _offer(self, held: tuple[Holder, ...]) -> None:
        """Offer to end the processes that hold GPUs, by name."""
        if held:
            who = ", ".join(str(each) for each in held)
            free = ipw.Button(description="Stop these processes", button_style="warning")
            free.tooltip = f"Ends {who}; what is in memory there is lost"
            free.on_click(lambda _: self._on_thread(self._free, held))
            self._row.children = (*self._buttons, free)

    def _free(self, held: tuple[Holder, ...]) -> None:
        self._set_message(f"Ends {', '.join(str(each) for each in held)} …")
        left = end_holders(held)
        if left:
            self._set_message(f"✗ Not ended yet: {', '.join(str(each) for each in left)}.", alert=True)
            return
        self._row.children = self._buttons
        ended = ", ".join(str(each) for each in held)
        self._set_message(f"✓ Ended: {ended}. Press Check or Launch, which looks again.")

    def _request(self) -> LaunchRequest | None:
        assert self._form is not None  # noqa: S101 - for mypy: only a cell with a form comes here
        words, code = self._form.command_line()
        return parse_arguments(words, code, {})

    def _set_message(self, text: str, *, alert: bool = False, again: bool = False) -> None:
        role = "alert" if alert else "status"
        self._said.value = f'<div role="{role}" style="overflow-wrap:anywhere">{html.escape(text)}</div>'
        if again:
            other = ipw.Button(description="Launch another one")
            other.on_click(lambda _: self._press(new=True))
            self._row.children = (*self._buttons, other)


def launch(which: int | str = "") -> LaunchCell:
    """Return a launch that was started before, by its number, ``RUN/N`` or its folder; else the newest one.

    Raises
    ------
    GipfelError
        There is none.
    """
    return LaunchCell(which)
