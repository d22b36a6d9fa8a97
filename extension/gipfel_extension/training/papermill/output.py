"""Output file of an executed notebook: locked by one run, written by a thread, and replaced atomically.

`claim_output` locks an output, `Document` caches the notebook's text by cells, `Saver` writes the newest
state in the background, and `replace` writes a file atomically. With `AtomicHandler` papermill itself does
so, too.
"""

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbformat.v4.nbjson import JSONWriter
from papermill.iorw import LocalHandler, papermill_io

from gipfel_cluster.model import GipfelError
from gipfel_cluster.process.locks import lock_within
from gipfel_cluster.runs import write_atomically

_REMOTE = "://"
# Time for an earlier run to save its output and end.
_LOCK_LIMIT_S = 5.0
_EMPTY = '\n "cells": []'
_DELAY_S = 0.5
_RETRY_S = 5.0


@contextlib.contextmanager
def claim_output(output: Path) -> Iterator[None]:
    """Lock an output for this run; the lock ends at the latest with this process.

    Without file locks, or in a directory that is not writable, other runs are not excluded.

    Raises
    ------
    GipfelError
        Another run has locked the output.
    """
    target = output.resolve()
    path = target.with_name(f".{target.name}.lock")
    handle = _acquire_lock(path)
    if handle is None:
        yield
        return
    try:
        _clear(target)
        yield
    finally:
        # Removed before the lock is released, so that a waiting run detects that the locked file is gone.
        path.unlink(missing_ok=True)
        os.close(handle)


class Document:
    """Text of a running notebook; always equal to ``nbformat.writes(notebook)``.

    Papermill copies, validates and writes every cell at each start and end of a cell, which takes quadratic
    time. This class caches the text of a cell until `change` is called for it.

    Parameters
    ----------
    notebook
        Notebook of format 4; its cells may change, but not their number.
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
        """Mark a cell as changed."""
        self._changed.add(index)

    def snapshot(self) -> Callable[[], str]:
        """Return a thread-safe function that returns the notebook's text at the time of this call."""
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


class Saver:
    """Thread that writes the newest state of a file; earlier states may be skipped.

    `put` submits a state, which is written immediately or after the current write. A state that is not
    `urgent` waits up to half a second for a newer one. A failed write is reported and retried, because a full
    disk must not end hours of work.

    Parameters
    ----------
    report
        Called once when writing starts to fail.
    """

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._change = threading.Condition()
        self._newest: Callable[[], None] | None = None
        self._version = self._written = 0
        self._due: float | None = None
        self._error: OSError | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._write_loop, name="gipfel-saver", daemon=True)
        self._thread.start()

    def put(self, state: Callable[[], None], *, urgent: bool = True) -> int:
        """Submit a state, and return its version for `wait`.

        `state` is a function that writes the state; it may raise OSError.
        """
        with self._change:
            self._newest = state
            self._version += 1
            due = time.monotonic() + (0.0 if urgent else _DELAY_S)
            if self._due is None or due < self._due:
                self._due = due
                self._change.notify_all()
            return self._version

    def wait(self, version: int) -> None:
        """Wait until this state or a newer one is written, or writing fails."""
        with self._change:
            while self._written < version and self._error is None and self._thread.is_alive():
                self._change.wait(1.0)

    def close(self) -> None:
        """Write the pending state and end the thread.

        Raises
        ------
        OSError
            The last state could not be written.
        """
        with self._change:
            self._closing = True
            self._change.notify_all()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _write_loop(self) -> None:
        while True:
            with self._change:
                while not self._closing and (self._due is None or self._due > time.monotonic()):
                    self._change.wait(None if self._due is None else self._due - time.monotonic())
                closing, state, version = self._closing, self._newest, self._version
                self._newest, self._due = None, None
            error = try_write(state) if state is not None else self._error
            with self._change:
                if error is None:
                    self._written = version
                elif self._newest is None and not closing:
                    self._newest, self._due = state, time.monotonic() + _RETRY_S
                if error is not None and self._error is None:
                    self._report(f"the notebook can't be saved, retrying: {error}")
                self._error = error
                self._change.notify_all()
                if closing and self._newest is None:
                    return


class AtomicHandler(LocalHandler):  # type: ignore[misc]
    """Papermill handler of local files that writes atomically.

    The handler stays registered after the run. For a later run in another directory, relative paths start at
    the current directory of papermill's own handler.
    """

    def read(self, path: str) -> str:
        """Read a file as papermill does."""
        return str(papermill_io.get_handler("local").read(path))

    def write(self, buf: str, path: str) -> None:
        """Replace a file atomically, and keep its permissions."""
        replace(_caller_directory() / path, buf)

    def listdir(self, path: str) -> list[str]:
        """List a directory as papermill does."""
        return list(papermill_io.get_handler("local").listdir(path))


def replace(path: Path, text: str) -> None:
    """Replace the content of a file atomically; follow links, and create a new file for its owner only."""
    target = path.resolve()
    try:
        mode: int | None = target.stat().st_mode & 0o777
    except OSError:
        mode = None
    # JSON can have lone surrogates, which UTF-8 can't encode; they are written as JSON escapes.
    write_atomically(target, text.encode(errors="backslashreplace"))
    if mode is not None:
        os.chmod(target, mode)  # noqa: PTH101


def local_path(output: str | None) -> Path | None:
    """Return the absolute path of a local output; None for a remote output or without one.

    Register an `AtomicHandler` for the output, so that papermill writes it atomically, too.
    """
    if not output or output == "-" or _REMOTE in output:
        return None
    if not isinstance(papermill_io.get_handler(output), AtomicHandler):
        papermill_io.register(output, AtomicHandler())
    return _caller_directory() / output


def writer(output: str, local: Path | None) -> Callable[[str], None]:
    """Return a function that writes the text of an output: to the path `local`, else with papermill."""
    return partial(replace, local) if local else partial(papermill_io.write, path=output)


def _caller_directory() -> Path:
    """Return the directory in which papermill was called; the run may have changed the current directory."""
    plain = papermill_io.get_handler("local")
    folder = plain.cwd(None)
    plain.cwd(folder)
    return Path(folder or Path.cwd())


def _acquire_lock(path: Path) -> int | None:
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError:
            return None
        if not lock_within(handle, _LOCK_LIMIT_S):
            os.close(handle)
            raise GipfelError("Another run writes to this output.", "End it first, or give another path.")
        if _is_same_file(path, handle):
            return handle
        os.close(handle)


def _is_same_file(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except OSError:
        return False


def _clear(target: Path) -> None:
    """Remove temporary files of runs that were killed while saving; the caller holds the lock."""
    own = re.compile(rf"\.{{1,2}}{re.escape(target.name)}\.(?!progress$)(?:[a-z0-9_]{{8}}|progress\.\d+)")
    with contextlib.suppress(OSError), os.scandir(target.parent) as entries:
        for entry in entries:
            if own.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    Path(entry.path).unlink()


def try_write(state: Callable[[], None]) -> OSError | None:
    """Write a state, and return why it can't be written; None if it was written."""
    try:
        state()
    except OSError as error:
        return error
    except Exception as error:  # noqa: BLE001 - if the thread ended, later states would be lost silently
        return OSError(f"{type(error).__name__}: {error}")
    return None
