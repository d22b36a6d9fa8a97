"""A notebook's text, of which only the cells that changed are written anew."""

from collections.abc import Callable
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbformat.v4.nbjson import JSONWriter

_EMPTY = '\n "cells": []'


class Document:
    """The text of a notebook that runs; equal to ``nbformat.writes(notebook)`` at every moment.

    Stock papermill copies, validates and writes every cell at every start and end of a cell, which grows with
    the square of the notebook. Here a cell's text is kept until somebody says that it changed.

    Parameters
    ----------
    notebook
        Of format 4; its cells may change, their number may not.
    """

    def __init__(self, notebook: NotebookNode) -> None:
        self._notebook = notebook
        self._writer = JSONWriter()
        empty = {"cell_type": "raw", "source": "", "metadata": {}}
        node = nbformat.from_dict(empty)  # type: ignore[no-untyped-call]
        before, _, after = self._text([node]).partition("  {")
        self._before = len(before)
        self._after = len(after.partition("\n  }")[2])
        self._cells = [self._of(cell) for cell in notebook.cells]
        self._changed: set[int] = set()

    def change(self, index: int) -> None:
        """Say that a cell has changed."""
        self._changed.add(index)

    def change_all(self) -> None:
        """Say that any cell may have changed."""
        self._changed.update(range(len(self._cells)))

    def snapshot(self) -> Callable[[], str]:
        """The notebook as it is now; the text is put together when it is called for, in any thread."""
        for index in self._changed:
            self._cells[index] = self._of(self._notebook.cells[index])
        self._changed.clear()
        cells = list(self._cells)
        frame = self._writer.writes(NotebookNode({**self._notebook, "cells": []}))  # type: ignore[no-untyped-call]

        def text() -> str:
            filled = '\n "cells": [\n' + ",\n".join(cells) + "\n ]" if cells else _EMPTY
            before, _, after = str(frame).partition(_EMPTY)
            return before + filled + after

        return text

    def _of(self, cell: Any) -> str:
        text = self._text([cell])
        return text[self._before : len(text) - self._after]

    def _text(self, cells: list[Any]) -> str:
        return str(self._writer.writes(NotebookNode(cells=cells, metadata={})))  # type: ignore[no-untyped-call]
