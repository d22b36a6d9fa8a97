"""The executed notebook's file: claimed by one run, written by a thread, and replaced whole or not at all.

`claim_output` locks an output, `Document` keeps the notebook's text by cells, `Saver` writes the newest
state in the background, and `replace` puts it in place. `AtomicHandler` makes papermill itself write the
same way.
"""

import contextlib
import errno
import fcntl
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbformat.v4.nbjson import JSONWriter
from papermill.iorw import LocalHandler, papermill_io

from gipfel_cluster.model import GipfelError
from gipfel_cluster.runs import write_atomically

_REMOTE = "://"
# A run that is ending may still be saving.
_PATIENCE_S = 5.0
_LOOK_S = 0.2
_HELD = frozenset({errno.EWOULDBLOCK, errno.EACCES})
_EMPTY = '\n "cells": []'
_LAZY_S = 0.5
_AGAIN_S = 5.0


@contextlib.contextmanager
def claim_output(output: Path) -> Iterator[None]:
    """Keep other runs from writing to an output, as long as this process lives at the longest.

    A file system without locks, or a directory that can't be written to, excludes no other run.

    Raises
    ------
    GipfelError
        Another run writes there.
    """
    target = output.resolve()
    path = target.with_name(f".{target.name}.lock")
    handle = _taken(path)
    if handle is None:
        yield
        return
    try:
        _clear(target)
        yield
    finally:
        # Before the lock is released: a waiting run sees that the locked file is gone.
        path.unlink(missing_ok=True)
        os.close(handle)


class Document:
    """Text of a notebook that runs; equal to ``nbformat.writes(notebook)`` at every moment.

    Stock papermill copies, validates and writes every cell at every start and end of a cell, which grows with
    the square of the notebook. Here a cell's text is kept until `change` is called for it.

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
        """Return a function that builds the notebook's text as of now, in any thread."""
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
    """Writer that keeps one file at the newest state; states in between may be skipped.

    A state that is `put` is written at once, or as soon as the write before it has ended. One that is not
    `urgent` waits up to half a second for a newer one. A write that fails is reported and retried, since a
    full disk must not end hours of work.

    Parameters
    ----------
    report
        Is called once when writing begins to fail.
    """

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._change = threading.Condition()
        self._newest: Callable[[], None] | None = None
        self._version = self._written = 0
        self._due: float | None = None
        self._error: OSError | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._keep_writing, name="gipfel-saver", daemon=True)
        self._thread.start()

    def put(self, state: Callable[[], None], *, urgent: bool = True) -> int:
        """Take a state, which writes itself when it is called; the number by which `wait` knows it.

        It may raise OSError.
        """
        with self._change:
            self._newest = state
            self._version += 1
            due = time.monotonic() + (0.0 if urgent else _LAZY_S)
            if self._due is None or due < self._due:
                self._due = due
                self._change.notify_all()
            return self._version

    def wait(self, version: int) -> None:
        """Wait until this state or a newer one is written, or writing fails."""
        with self._change:
            while self._written < version and self._error is None and self._thread.is_alive():
                self._change.wait(1.0)

    @property
    def error(self) -> OSError | None:
        """Return why the newest write failed; None if it succeeded."""
        with self._change:
            return self._error

    def give_up(self) -> None:
        """End the thread and leave the file as it is."""
        with self._change:
            self._newest, self._error = None, None
        self.close()

    def close(self) -> None:
        """Write what is left and end the thread.

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

    def _keep_writing(self) -> None:
        while True:
            with self._change:
                while not self._closing and (self._due is None or self._due > time.monotonic()):
                    self._change.wait(None if self._due is None else self._due - time.monotonic())
                closing, state, version = self._closing, self._newest, self._version
                self._newest, self._due = None, None
            error = _attempt(state) if state is not None else self._error
            with self._change:
                if error is None:
                    self._written = version
                elif self._newest is None and not closing:
                    self._newest, self._due = state, time.monotonic() + _AGAIN_S
                if error is not None and self._error is None:
                    self._report(f"the notebook can't be saved, which is tried again: {error}")
                self._error = error
                self._change.notify_all()
                if closing and self._newest is None:
                    return


class AtomicHandler(LocalHandler):  # type: ignore[misc]
    """Papermill's handler of local files, which writes a file whole or not at all.

    It stays registered when the run has ended, and a later run may be called from another directory: relative
    paths start where papermill's own handler has them start at that time.
    """

    def read(self, path: str) -> str:
        """Read a file as papermill does."""
        return str(papermill_io.get_handler("local").read(path))

    def write(self, buf: str, path: str) -> None:
        """Write it beside, then put it in place; the permissions of an earlier file stay."""
        replace(_called_from() / path, buf)

    def listdir(self, path: str) -> list[str]:
        """List a directory as papermill does."""
        return list(papermill_io.get_handler("local").listdir(path))


def replace(path: Path, text: str) -> None:
    """Replace a file's content, for its owner alone where it is new; through a link, what it points to."""
    target = path.resolve()
    try:
        mode: int | None = target.stat().st_mode & 0o777
    except OSError:
        mode = None
    # Half a character of two, which JSON can hold and UTF-8 can't, as JSON writes it.
    write_atomically(target, text.encode(errors="backslashreplace"))
    if mode is not None:
        os.chmod(target, mode)  # noqa: PTH101


def local_path(output: str | None) -> Path | None:
    """Return the absolute path of a local output; None for a remote one or none.

    From now on papermill itself writes this output atomically, too.
    """
    if not output or output == "-" or _REMOTE in output:
        return None
    if not isinstance(papermill_io.get_handler(output), AtomicHandler):
        papermill_io.register(output, AtomicHandler())
    return _called_from() / output


def writer(output: str, local: Path | None) -> Callable[[str], None]:
    """Return what writes the text of an output: to the path `local` if it has one, else as papermill does."""

    def write(text: str) -> None:
        if local is None:
            papermill_io.write(text, output)
        else:
            replace(local, text)

    return write


def _called_from() -> Path:
    """Return the directory that papermill was called from, which the run itself may have left."""
    plain = papermill_io.get_handler("local")
    folder = plain.cwd(None)
    plain.cwd(folder)
    return Path(folder or Path.cwd())


def _taken(path: Path) -> int | None:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError:
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_still(path, handle):
                return handle
            os.close(handle)
        except OSError as error:
            os.close(handle)
            if error.errno not in _HELD:
                return None
            if time.monotonic() > deadline:
                raise GipfelError(
                    "Another run writes to this output.", "End it first, or give another path."
                ) from None
            time.sleep(_LOOK_S)


def _is_still(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except OSError:
        return False


def _clear(target: Path) -> None:
    """Remove what runs that were killed while saving have left; no other run saves now."""
    own = re.compile(rf"\.{re.escape(target.name)}\.(?!progress$)(?:[a-z0-9_]{{8}}|progress\.\d+)")
    with contextlib.suppress(OSError), os.scandir(target.parent) as entries:
        for entry in entries:
            if own.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    Path(entry.path).unlink()


def _attempt(state: Callable[[], None]) -> OSError | None:
    try:
        state()
    except OSError as error:
        return error
    except Exception as error:  # noqa: BLE001 - an end of this thread would lose all that follows, silently
        return OSError(f"{type(error).__name__}: {error}")
    return None
