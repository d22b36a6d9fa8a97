"""Launches of the user for the panel: their list, logs, rank files and executed notebooks."""

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import Field

from gipfel_cluster.model import Frozen, GipfelError
from gipfel_cluster.runs import runs_root
from gipfel_cluster.workloads.logs import Cursor, tail_cursor

from ..job.looks import (
    DUMP_COST,
    ChosenRanks,
    LaunchRoles,
    cost_of,
    default_ranks,
    draw_flame_graph,
    select_ranks,
)
from ..telemetry.files import open_regular
from ..training.launch import Launch
from ..training.launch_summary import RankFileKind, rank_file, summarize_or_report
from ..training.launches.logs import ErrorLines, LogRow, launch_logs
from ..training.launches.requests import LookRequest, check_running, earlier_looks, find_look
from ..training.launches.score import ended_score
from ..training.record import LAUNCHES, known_folders

_MAX_LAUNCHES = 30
#: Launches of the list whose score is shown: computing it reads their samples.
_MAX_SCORED = 3
_MAX_REMEMBERED = 256
_MAX_LINES = 1000
_ID = re.compile(r"(?:([A-Za-z0-9][\w.+@-]{0,199})/)?([0-9]{1,6})")


class LogPosition(Frozen):
    """Position up to which a page has read a log: a byte offset for each rank.

    ``in_traceback`` are the ranks whose next line belongs to a traceback.
    """

    offsets: dict[int, int] = Field(default={})
    in_traceback: tuple[int, ...] = ()


def list_launches(environment: Mapping[str, str], only: str = "") -> list[dict[str, Any]]:
    """Return the newest launches of all runs: running ones first, then by age with the newest first.

    If ``only`` is the ``id`` of a launch, return that launch alone, even if it is old.

    Raises
    ------
    GipfelError
        There is no launch of that ``id``.
    """
    if only:
        launch = find_launch(only, environment)
        return [_with_score(launch.folder, summarize_or_report(launch))]
    newest = known_folders(environment, all_runs=True)[-_MAX_LAUNCHES:][::-1]
    found = [summarize_or_report(Launch(folder)) for folder in newest]
    scored = newest[:_MAX_SCORED]
    found = [
        _with_score(folder, each) if folder in scored else {**each, "score": None}
        for folder, each in zip(newest, found, strict=True)
    ]
    return sorted(found, key=lambda each: each["phase"] == "ended")


def _with_score(folder: Path, document: dict[str, Any]) -> dict[str, Any]:
    """Return the document with the score of an ended launch."""
    ended_ns = document["ended_ns"] if document["phase"] == "ended" else None
    return {**document, "score": None if ended_ns is None else _score(folder, ended_ns)}


@lru_cache(maxsize=_MAX_REMEMBERED)
def _score(folder: Path, ended_ns: int) -> float | None:  # noqa: ARG001 - a restarted launch ends again
    return ended_score(folder)


def find_launch(name: str, environment: Mapping[str, str]) -> Launch:
    """Return a launch by its ``id`` in the list.

    Raises
    ------
    GipfelError
        There is none.
    """
    match = _ID.fullmatch(name)
    if not match:
        raise GipfelError("There is no such launch.", "Choose a launch from the list.")
    root = runs_root(dict(environment))
    parent = root / match[1] if match[1] else root
    own = environment.get("GIPFEL_RUN", "")
    # The run folder of a job need not be below the runs directory.
    if match[1] and own and Path(own).name == match[1]:
        parent = Path(own)
    return Launch.open(parent / LAUNCHES / match[2])


def log_page(
    launch: Launch, position: LogPosition | None, rank: int | None
) -> tuple[list[LogRow], LogPosition, bool]:
    """Return the new lines, the position after them, and whether more lines are available."""
    ranks = () if rank is None else (rank,)
    cursor = (
        tail_cursor(launch_logs(launch.folder), ranks=ranks)
        if position is None
        else Cursor(offsets=position.offsets)
    )
    page = launch.logs(cursor, ranks=ranks)
    errors = ErrorLines(position.in_traceback if position else ())
    rows = errors.mark(page.lines)
    position = LogPosition(offsets=page.cursor.offsets, in_traceback=tuple(sorted(errors.in_traceback)))
    return rows[-_MAX_LINES:], position, page.more


def open_rank_file(launch: Launch, kind: RankFileKind, rank: int) -> BinaryIO:
    """Open a rank's profiler trace or flight recorder dump; it must be a regular file and not a link.

    Raises
    ------
    GipfelError
        The rank has no such file, or it can't be read.
    """
    try:
        return open_regular(rank_file(launch.folder, kind, rank), follow=False)
    except OSError as error:
        why = error.strerror or "it can't be opened"
        raise GipfelError(
            f"The {kind} of rank {rank} can't be read: {why}.", "See the log of this rank."
        ) from error


def executed_notebook(launch: Launch, root: Path) -> str:
    """Return the path of a launch's executed notebook below the server's root directory.

    JupyterLab opens only files below that directory that are not hidden. For another file, create the link
    ``launches/<run>-<n>.ipynb``.

    Raises
    ------
    GipfelError
        The launch has no executed notebook, or the link can't be created.
    """
    root = root.resolve()
    notebook = launch.folder / "notebook.ipynb"
    if not notebook.is_file():
        raise GipfelError(
            "This launch has no executed notebook (yet).",
            "Only launches of notebooks and cells have one. See the log.",
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
            f"The link {link} can't be created: {os.strerror(error.errno or 0)}.",
            f"Open {notebook} in a terminal.",
        ) from error
    return link.relative_to(root).as_posix()


def look_list(launch: Launch) -> dict[str, Any]:
    """Return the content of a `job_responses.LookList`."""
    looks = [
        {
            "id": each.identifier,
            "what": each.request.what,
            "time_ms": each.time_ms,
            "missing": list(each.missing),
            "answers": [each.answers[rank].model_dump(exclude={"path"}) for rank in sorted(each.answers)],
            "flame": each.request.what == "flame" and any(answer.path for answer in each.answers.values()),
        }
        for each in earlier_looks(launch.folder)
    ]
    running = launch.state.phase == "running"
    return {"running": running, "directory": str(launch.folder / "deeper"), "looks": looks}


def look_plan(launch: Launch, what: str, ranks: str, **details: Any) -> dict[str, Any]:
    """Return the content of a `job_responses.LookPlan`; ``ranks`` are a selection, empty for the default.

    Raises
    ------
    GipfelError
        The launch does not run, or the selection is not valid.
    """
    check_running(launch.folder, ())
    found = LaunchRoles.of(launch.folder)
    chosen = select_ranks(ranks, found) if ranks.strip() else default_ranks(found)
    if what == "dump":
        chosen, cost = ChosenRanks(ranks=found.ranks, why="dumps are compared with each other"), DUMP_COST
    else:
        cost = cost_of(LookRequest.model_validate({"what": what, "ranks": chosen.ranks, **details}))
    return {"ranks": list(chosen.ranks), "why": chosen.why, "cost": cost}


def open_look_file(launch: Launch, identifier: str, rank: int | None) -> tuple[BinaryIO, str]:
    """Open what a rank wrote, or for None the flame graph of all, which is drawn now; return its name, too.

    Raises
    ------
    GipfelError
        There is no such file, or it can't be read.
    """
    look = find_look(launch.folder, identifier)
    if look is None:
        raise GipfelError("There is no such look into this launch.", "Choose one from the list.")
    path = look.directory / "flame.svg" if rank is None else look.file(rank)
    try:
        if rank is None:
            draw_flame_graph(look)
        return open_regular(path, follow=False), path.name
    except OSError as error:
        why = error.strerror or "it can't be opened"
        raise GipfelError(f"{path.name} can't be read: {why}.", "See what the rank answered.") from error
