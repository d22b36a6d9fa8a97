"""Base class of widgets whose state changes on a thread, beside the kernel's main thread."""

from typing import Any

import anywidget


class LiveWidget(anywidget.AnyWidget):
    """A widget that a reloaded page finds again while a thread keeps changing it.

    Such a page asks the kernel for the whole state and takes the first ``update`` that answers it. A kernel
    marks what a thread sends as an answer to the request of the moment: a change that came first would be
    taken for the whole, of which no page can make a widget. ``echo_update`` is read like ``update``, but
    answers nothing.
    """

    def _send(self, msg: dict[str, Any], buffers: Any = None) -> None:
        """Send a message to the pages; a part of the state as a change alone."""
        if msg.get("method") == "update" and "_model_module" not in msg["state"]:
            msg = {**msg, "method": "echo_update"}
        super()._send(msg, buffers)
