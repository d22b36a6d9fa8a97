"""``gipfel/notebooks``: the notebooks that come with Gipfel, copied to where the user can change them."""

import asyncio
from pathlib import Path
from typing import Any

from jupyter_core.paths import jupyter_path
from jupyter_core.utils import ensure_async

from gipfel_cluster.model import GipfelError

from ..telemetry.files import read_json
from ..training.papermill.notebook_file import MOST_NOTEBOOK_BYTES
from .base import GipfelRouteHandler, route


class NotebooksRouteHandler(GipfelRouteHandler):
    """``GET``: the shipped notebooks."""

    @route
    async def get(self) -> None:
        """Answer names and titles."""
        found = await asyncio.to_thread(shipped_notebooks)
        titles = [
            {"name": name, "title": title(await asyncio.to_thread(read_notebook, path))}
            for name, path in found.items()
        ]
        self.finish({"notebooks": titles})


class NotebookRouteHandler(GipfelRouteHandler):
    """``POST``: a copy of one of them."""

    @route
    async def post(self, name: str) -> None:
        """Copy it into the server's root folder unless a file of that name exists, and answer its path."""
        path = f"{name}.ipynb"
        contents: Any = self.contents_manager
        exists = await ensure_async(contents.file_exists(path))
        if not exists:
            found = await asyncio.to_thread(shipped_notebooks)
            if name not in found:
                known = ", ".join(found) or "none"
                raise GipfelError(f"This installation has no notebook {name!r}.", f"There is: {known}.")
            content = await asyncio.to_thread(read_notebook, found[name])
            model = {"type": "notebook", "format": "json", "content": content}
            await ensure_async(contents.save(model, path))
        self.set_status(200 if exists else 201)
        self.finish({"path": path, "created": not exists})


def shipped_notebooks() -> dict[str, Path]:
    """Return the file of each notebook by name; a folder that comes earlier on Jupyter's data path wins."""
    found: dict[str, Path] = {}
    for folder in jupyter_path("gipfel", "notebooks"):
        for path in sorted(Path(folder).glob("*.ipynb")):
            found.setdefault(path.stem, path)
    return dict(sorted(found.items()))


def read_notebook(path: Path) -> dict[str, Any]:
    """Return the notebook as JSON.

    Raises
    ------
    GipfelError
        It can't be read or is not a notebook.
    """
    try:
        content = read_json(path, MOST_NOTEBOOK_BYTES, follow=True)
    except (OSError, ValueError) as error:
        raise GipfelError(f"{path} can't be read as a notebook: {error}.", "Install Gipfel again.") from error
    if not isinstance(content, dict) or "cells" not in content:
        raise GipfelError(f"{path} is not a notebook.", "Install Gipfel again.")
    return content


def title(notebook: dict[str, Any]) -> str:
    """Return the first heading of a notebook, without its marks; empty where there is none."""
    for cell in notebook["cells"]:
        lines = "".join(cell.get("source", "")).splitlines() if cell.get("cell_type") == "markdown" else []
        for line in lines:
            if line.startswith("#"):
                return line.lstrip("# ")
    return ""
