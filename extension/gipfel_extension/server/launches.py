"""Launches of the user as the panel lists them, and where their executed notebooks open."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import Field

from gipfel_cluster.model import Frozen, GipfelError
from gipfel_cluster.runs import runs_root

from ..telemetry.files import open_regular
from ..training.launch import Launch
from ..training.launch_summary import Kind, flight_lines, rank_file, summary_or_problem
from ..training.launches.folder import LAUNCHES, known_folders
from ..training.launches.logs import Cursor, ErrorLines, LogRow, tail_cursor

_MOST = 30
_MOST_LINES = 1000
_ID = re.compile(r"(?:([A-Za-z0-9][\w.+@-]{0,199})/)?([0-9]{1,6})")


class LogPosition(Frozen):
    """Position up to which a page has read a log; ``inside`` are ranks in the middle of a traceback."""

    offsets: dict[int, int] = Field(default={})
    inside: tuple[int, ...] = ()


def list_launches(environment: Mapping[str, str], only: str = "") -> list[dict[str, Any]]:
    """Return the newest launches of all runs, the newest first, those that run before all others.

    With an ``id`` in ``only`` that launch alone, however old it is.

    Raises
    ------
    GipfelError
        There is no launch of that ``id``.
    """
    if only:
        return [summary_or_problem(launch_called(only, environment))]
    newest = reversed(known_folders(environment, everywhere=True)[-_MOST:])
    found = [summary_or_problem(Launch(folder)) for folder in newest]
    return sorted(found, key=lambda each: each["phase"] == "ended")


def launch_called(name: str, environment: Mapping[str, str]) -> Launch:
    """Return a launch by its ``id`` in the list.

    Raises
    ------
    GipfelError
        There is none.
    """
    match = _ID.fullmatch(name)
    if not match:
        raise GipfelError("There is no such launch.", "Choose one of the list.")
    root = runs_root(dict(environment))
    parent = root / match[1] if match[1] else root
    own = environment.get("GIPFEL_RUN", "")
    # A job's run folder may be elsewhere than the others.
    if match[1] and own and Path(own).name == match[1]:
        parent = Path(own)
    return Launch.open(parent / LAUNCHES / match[2])


def log_page(
    launch: Launch, position: LogPosition | None, rank: int | None
) -> tuple[list[LogRow], LogPosition, bool]:
    """Return the lines that are new, where to read on, and whether there are more already."""
    ranks = () if rank is None else (rank,)
    cursor = tail_cursor(launch.folder, ranks=ranks) if position is None else Cursor(offsets=position.offsets)
    page = launch.logs(cursor, ranks=ranks)
    marks = ErrorLines(position.inside if position else ())
    rows = marks.marked(page.lines)
    position = LogPosition(offsets=page.cursor.offsets, inside=tuple(sorted(marks.inside)))
    return rows[-_MOST_LINES:], position, page.more


def flight_of(launch: Launch) -> list[str]:
    """Return the findings of torch's flight recorder for a launch."""
    return flight_lines(launch.folder)


def open_rank_file(launch: Launch, kind: Kind, rank: int) -> BinaryIO:
    """Open a rank's profiler trace or flight recorder dump; only regular files, no links.

    Raises
    ------
    GipfelError
        There is none, or it can't be read.
    """
    try:
        return open_regular(rank_file(launch.folder, kind, rank), follow=False)
    except OSError as error:
        why = error.strerror or "it can't be opened"
        raise GipfelError(f"There is no {kind} of rank {rank} to read: {why}.", "See its log.") from error


def executed_notebook(launch: Launch, root: Path) -> str:
    """Return the path, below the server's root folder, at which a launch's executed notebook opens.

    Run folders are mostly hidden from the file browser: then a link ``launches/<run>-<n>.ipynb`` is made.

    Raises
    ------
    GipfelError
        There is none, or no link can be made.
    """
    root = root.resolve()
    notebook = launch.folder / "notebook.ipynb"
    if not notebook.is_file():
        raise GipfelError(
            "This launch has no executed notebook (yet).", "Only notebooks and cells have one; see the log."
        )
    if notebook.is_relative_to(root):
        inside = notebook.relative_to(root)
        if not any(part.startswith(".") for part in inside.parts):
            return inside.as_posix()
    link = root / LAUNCHES / f"{launch.folder.parents[1].name.lstrip('.')}-{launch.folder.name}.ipynb"
    try:
        link.parent.mkdir(exist_ok=True)
        if link.is_symlink() and link.readlink() != notebook:
            link.unlink()
        if not link.is_symlink():
            link.symlink_to(notebook)
    except OSError as error:
        raise GipfelError(
            f"{link} can't be made: {os.strerror(error.errno or 0)}.", f"Open {notebook} in a terminal."
        ) from error
    return link.relative_to(root).as_posix()
