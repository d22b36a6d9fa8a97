"""A launch as pages and cells show it: one document, the same in the panel, a cell and on paper."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gipfel_cluster.model import GipfelError

from .points import Course, read_course
from .progress import Progress
from .rank_files import ranks_with
from .state import LaunchState

if TYPE_CHECKING:
    from ..launch import Launch

_MOST_FILES = 64
_LONGEST = 20_000
_MOST_NODES = 64
#: A page waits for it.
_FLIGHT_S = 20.0


def glance(launch: "Launch") -> dict[str, Any]:
    """Everything about a launch but its logs, as JSON; reads small files only.

    Raises
    ------
    GipfelError
        Its state can't be read.
    """
    state, folder = launch.state, launch.folder
    silent = launch.silent
    course = read_course(folder, state)
    document: dict[str, Any] = {
        **_head(state, folder),
        "word": "silent" if silent else state.outcome or state.phase,
        "says": says(launch),
        "failure": state.failure.model_dump(exclude={"traceback"}) if state.failure else None,
        "traceback": state.failure.traceback[-_LONGEST:] if state.failure else "",
        "progress": {**(progress := launch.progress).model_dump(), "fraction": progress.fraction},
        "course": course.model_dump(),
        "preflight": [each.model_dump() for each in launch.preflight],
        "command": "",
        "notebook": (folder / "notebook.ipynb").is_file(),
        "traces": list(ranks_with(folder, "trace")[:_MOST_FILES]),
        "dumps": list(ranks_with(folder, "dump")[:_MOST_FILES]),
        "flight": [],
    }
    with contextlib.suppress(OSError):
        document["command"] = launch.command[:_LONGEST]
    with contextlib.suppress(GipfelError, OSError, ValueError):
        spec = launch.spec
        document["kind"], document["vetting"] = spec.kind, spec.vetting
        document["nodes_asked"] = [spec.nodes_min or spec.nodes, spec.nodes]
    return document


def listed(launch: "Launch") -> dict[str, Any]:
    """Return the document of `glance`, or where it fails one with the reason, for lists."""
    try:
        return glance(launch)
    except GipfelError as error:
        problem = str(error)
    state = LaunchState(phase="ended", number=int(launch.folder.name), name="unreadable", reason=problem)
    return {
        **_head(state, launch.folder),
        "word": "unreadable",
        "says": problem,
        "failure": None,
        "traceback": "",
        "progress": {**Progress().model_dump(), "fraction": None},
        "course": Course().model_dump(),
        "preflight": [],
        "command": "",
        "notebook": False,
        "traces": [],
        "dumps": [],
        "flight": [],
    }


def _head(state: LaunchState, folder: Path) -> dict[str, Any]:
    left_out = {"gpus", "supervisor", "nodes", "failure", "notes", "step_ids"}
    return {
        **state.model_dump(mode="json", exclude=left_out),
        "id": launch_id(folder),
        "folder": str(folder),
        "nodes": list(state.nodes[:_MOST_NODES]),
        "node_count": len(state.nodes),
        "notes": list(state.notes[-5:]),
    }


def says(launch: "Launch") -> str:
    """What became of it, or why it waits, as one sentence; empty where there is nothing to say."""
    state = launch.state
    if state.failure is not None and state.outcome == "failed":
        return str(state.failure)
    if launch.silent:
        return "Nothing was heard of it for long: its job may have ended, or its node is gone."
    return state.reason


def flight_lines(folder: Path) -> list[str]:
    """What torch's flight recorder says of a launch; empty where no rank has dumped anything."""
    from ..flight_recorder import report_of  # noqa: PLC0415 - it reads ranks/, which is beside this

    if not _names(folder / "flight_recorder"):
        return []
    try:
        return [line[:_LONGEST] for line in report_of(folder, limit_s=_FLIGHT_S).lines[:50]]
    except (OSError, ValueError, GipfelError) as error:
        return [f"The dumps can't be read: {error}"]


def launch_id(folder: Path) -> str:
    """``RUN/N``, or ``N`` of a launch that is no run's; what `find_folder` takes."""
    run = folder.parents[1]
    return f"{run.name}/{folder.name}" if (run / "telemetry").is_dir() else folder.name


def _names(folder: Path) -> list[str]:
    try:
        return sorted(each.name for each in folder.iterdir() if each.is_file())[:_MOST_FILES]
    except OSError:
        return []
