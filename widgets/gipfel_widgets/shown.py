"""Where a view is shown: in a cell or several, until something else takes its place there."""

import uuid
from typing import Any

Bundle = dict[str, Any]
#: What the lab extension's renderer of saved widgets is registered for.
LIVE = "application/vnd.gipfel.live+json"


def widget_bundle(model_id: str, launch: str = "") -> Bundle:
    """Return what JupyterLab prefers to a figure and an image beside it.

    Where the lab extension is installed, those are shown as the saved view until the widget's model is found;
    of a launch, by its id, rather what the notebook server knows of it.
    """
    view = {"version_major": 2, "version_minor": 1, "model_id": model_id}
    return {"application/vnd.jupyter.widget-view+json": view, LIVE: {"launch": launch} if launch else {}}


class Shown:
    """The outputs of one view, which have one name, so that all of them can be replaced."""

    def __init__(self) -> None:
        self._name = ""

    def __bool__(self) -> bool:
        return self._name != ""

    def show(self, bundle: Bundle) -> None:
        """Show it in the cell that runs."""
        from IPython.display import display  # noqa: PLC0415 - only where there is a notebook

        self._name = self._name or f"gipfel-{uuid.uuid4().hex}"
        display(bundle, raw=True, display_id=self._name)  # type: ignore[no-untyped-call]

    def replace(self, bundle: Bundle) -> None:
        """Put it where the view was shown; nothing where it was not."""
        from IPython.display import update_display  # noqa: PLC0415 - only where there is a notebook

        if self:
            update_display(bundle, raw=True, display_id=self._name)  # type: ignore[no-untyped-call]
