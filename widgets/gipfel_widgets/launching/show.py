"""Where a cell's output goes: whether somebody looks at it, and how it is replaced."""

import asyncio
import sys
import threading
from collections.abc import Callable
from typing import Any

from ..shown import Bundle, Shown


def somebody_looks() -> bool:
    """Whether a person is at this kernel: then its frontend can be asked for input, which papermill can't."""
    try:
        from IPython.core.getipython import get_ipython  # noqa: PLC0415 - a script has none
    except ImportError:
        return False
    kernel = getattr(get_ipython(), "kernel", None)
    if kernel is None:
        return False
    try:
        content = kernel.get_parent("shell").get("content", {})
    except Exception:  # noqa: BLE001 - whatever another kernel's own way is
        return False
    return content.get("allow_stdin") is True


class CellOutput:
    """One output of a cell, which later ones replace."""

    def __init__(self) -> None:
        self._shown = Shown()

    def show(self, bundle: Bundle) -> None:
        """Show it, in place of what was shown before."""
        if not in_notebook():
            sys.stdout.write(bundle["text/plain"] + "\n")
        elif self._shown:
            self._shown.replace(bundle)
        else:
            self._shown.show(bundle)


def in_notebook() -> bool:
    """Whether outputs are kept in a notebook."""
    try:
        from IPython.core.getipython import get_ipython  # noqa: PLC0415 - a script has none
    except ImportError:
        return False
    return getattr(get_ipython(), "kernel", None) is not None


def aside(work: Callable[[], Any]) -> Any:
    """Do work that runs an event loop of its own, also in a kernel, whose thread has one already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    box: list[Any] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            box.append(work())
        except BaseException as error:  # noqa: BLE001 - raised where it was asked for
            failed.append(error)

    thread = threading.Thread(target=run, name="gipfel-aside", daemon=True)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return box[0]
