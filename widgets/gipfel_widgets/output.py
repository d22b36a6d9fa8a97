"""Outputs in cells: how they are shown and replaced, whether the session is interactive, and `LiveWidget`."""

import asyncio
import sys
import threading
import uuid
from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import anywidget

from gipfel_cluster.model import GipfelError

Bundle = dict[str, Any]
Result = TypeVar("Result")
#: MIME type for which the labextension's renderer of saved widgets is registered.
LIVE = "application/vnd.gipfel.live+json"


def view_files(name: str) -> tuple[Path, Path]:
    """Return the JavaScript module and the style sheet of a view, built from the panel's sources.

    Raises
    ------
    GipfelError
        They are not built, as in a source tree before ``make install``.
    """
    module = Path(__file__).parent / "static" / f"{name}.js"
    if not module.is_file():
        raise GipfelError(f"{module} is missing.", "Run jlpm build in extension/, or make install.")
    return module, module.with_suffix(".css")


def widget_bundle(model_id: str, launch: str = "") -> Bundle:
    """Return the MIME bundle of a widget, which JupyterLab prefers to a figure and image in the same output.

    Until the widget's model is found, the lab extension shows the figure or image, or, with the ID of a
    launch, the notebook server's view of that launch.
    """
    view = {"version_major": 2, "version_minor": 1, "model_id": model_id}
    return {"application/vnd.jupyter.widget-view+json": view, **(saved_bundle(launch) or {LIVE: {}})}


def saved_bundle(launch: str) -> Bundle:
    """Return the MIME bundle for which the lab extension shows a launch as the notebook server knows it.

    It is empty without the ID of a launch.
    """
    return {LIVE: {"launch": launch}} if launch else {}


class ViewOutput:
    """Outputs of one view with one display ID, so that all of them can be replaced."""

    def __init__(self) -> None:
        self._name = ""

    def __bool__(self) -> bool:
        return self._name != ""

    def show(self, bundle: Bundle) -> None:
        """Show the view in the cell that is running."""
        from IPython.display import display  # noqa: PLC0415 - only where there is a notebook

        self._name = self._name or f"gipfel-{uuid.uuid4().hex}"
        display(bundle, raw=True, display_id=self._name)  # type: ignore[no-untyped-call]

    def replace(self, bundle: Bundle) -> None:
        """Replace the view wherever it was shown."""
        from IPython.display import update_display  # noqa: PLC0415 - only where there is a notebook

        if self:
            update_display(bundle, raw=True, display_id=self._name)  # type: ignore[no-untyped-call]


def is_interactive() -> bool:
    """Return whether the frontend supports input, unlike papermill."""
    kernel = _kernel()
    if kernel is None:
        return False
    try:
        content = kernel.get_parent("shell").get("content", {})
    except Exception:  # noqa: BLE001 - another kernel may raise anything
        return False
    return content.get("allow_stdin") is True


class CellOutput(ViewOutput):
    """The output of a cell; each new one replaces the previous one."""

    def show(self, bundle: Bundle) -> None:
        """Show the output, replacing the previous one."""
        if not in_notebook():
            sys.stdout.write(bundle["text/plain"] + "\n")
        elif self:
            self.replace(bundle)
        else:
            super().show(bundle)


def in_notebook() -> bool:
    """Return whether the code runs in a kernel, whose outputs are part of a notebook."""
    return _kernel() is not None


def _kernel() -> Any:
    try:
        from IPython.core.getipython import get_ipython  # noqa: PLC0415 - a script has none
    except ImportError:
        return None
    return getattr(get_ipython(), "kernel", None)


def run_sync(work: Callable[[], Result]) -> Result:
    """Run a function that starts an event loop, even in a kernel's thread, where one is running."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    return start_thread(work, "gipfel-run_sync").result()


def start_thread(work: Callable[[], Result], name: str) -> "Future[Result]":
    """Run a function on a thread that does not keep the process alive; return its result as a future."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised where the result is requested
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


class LiveWidget(anywidget.AnyWidget):
    """Widget whose state a thread changes, and that a reloaded page can restore meanwhile.

    A reloaded page requests the whole state and accepts the first ``update`` message as the reply. The kernel
    marks messages of a thread as replies to the current request, so a partial change could be taken for the
    whole state. Partial changes are therefore sent as ``echo_update``, which is never a reply.

    A subclass sets the event ``_ended`` when its thread is to end.
    """

    def _send(self, msg: dict[str, Any], buffers: Any = None) -> None:
        """Send a message to the pages; send a partial state as ``echo_update``."""
        if msg.get("method") == "update" and "_model_module" not in msg["state"]:
            msg = {**msg, "method": "echo_update"}
        super()._send(msg, buffers)

    @abstractmethod
    def stop(self) -> None:
        """Stop the view's threads; the cell keeps what it shows."""

    def close(self) -> None:
        """Stop, and remove the live view from the page."""
        # Called also when a partly initialized widget is deleted.
        if hasattr(self, "_ended"):
            self.stop()
        super().close()
