"""A launch as pages and cells show it: one JSON document, the same in the panel, a cell and a report.

Beside it the files that ranks leave for other programs: profiler traces and flight recorder dumps.
"""

import contextlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gipfel_cluster.model import GipfelError
from gipfel_cluster.workloads.places import workload_id

from .launches.progress import Progress, TrainingCurve, read_training_curve
from .record.state import LaunchState

if TYPE_CHECKING:
    from .launch import Launch

Kind = Literal["trace", "dump"]
#: Chrome's trace format, which torch writes, opens here; torch's own pages name chrome://tracing beside it.
TRACE_VIEWER = "https://ui.perfetto.dev"
TRACE_HELP = "Open trace file there: it stays in the browser. In Chrome, chrome://tracing shows it, too."
_NAMES: dict[str, tuple[str, re.Pattern[str], str]] = {
    "trace": ("profile", re.compile(r"rank-(0|[1-9][0-9]{0,6})\.json"), "rank-{}.json"),
    "dump": ("flight_recorder", re.compile(r"rank_(0|[1-9][0-9]{0,6})"), "rank_{}"),
}
_MOST_FILES = 64
_LONGEST = 20_000
_MOST_NODES = 64
#: A page waits for it.
_FLIGHT_S = 20.0


def summarize(launch: "Launch") -> dict[str, Any]:
    """Return everything about a launch except its logs, as JSON; reads small files only.

    Raises
    ------
    GipfelError
        Its state can't be read.
    """
    state, folder = launch.state, launch.folder
    silent = launch.silent
    course = read_training_curve(folder, state)
    document: dict[str, Any] = {
        **_head(state, folder),
        "word": "silent" if silent else state.outcome or state.phase,
        "says": status_message(launch),
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


def summary_or_problem(launch: "Launch") -> dict[str, Any]:
    """Return the document of `summarize`, or where it fails one with the reason, for lists."""
    try:
        return summarize(launch)
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
        "course": TrainingCurve().model_dump(),
        "preflight": [],
        "command": "",
        "notebook": False,
        "traces": [],
        "dumps": [],
        "flight": [],
    }


def status_message(launch: "Launch") -> str:
    """Return why it failed or waits, as one sentence; empty if there is nothing to report."""
    state = launch.state
    if state.failure is not None and state.outcome == "failed":
        return str(state.failure)
    if launch.silent:
        return "It has not reported for long: its job may have ended, or its node is gone."
    return state.reason


def flight_lines(folder: Path) -> list[str]:
    """Return the flight recorder's report of a launch as lines; empty if no rank has dumped anything."""
    from .flight_recorder import report_of  # noqa: PLC0415 - it reads ranks/, which is beside this

    if not _names(folder / "flight_recorder"):
        return []
    try:
        return [line[:_LONGEST] for line in report_of(folder, limit_s=_FLIGHT_S).lines[:50]]
    except (OSError, ValueError, GipfelError) as error:
        return [f"The dumps can't be read: {error}"]


def ranks_with(folder: Path, kind: Kind) -> tuple[int, ...]:
    """Return the ranks that have left such a file in a launch's directory."""
    place, pattern, _ = _NAMES[kind]
    try:
        found = list((folder / place).iterdir())
        names = [each.name for each in found if each.is_file() and not each.is_symlink()]
    except OSError:
        return ()
    return tuple(sorted(int(match[1]) for name in names if (match := pattern.fullmatch(name))))


def rank_file(folder: Path, kind: Kind, rank: int) -> Path:
    """Return the path of a rank's file."""
    place, _, name = _NAMES[kind]
    return folder / place / name.format(rank)


def _head(state: LaunchState, folder: Path) -> dict[str, Any]:
    left_out = {"gpus", "supervisor", "nodes", "failure", "notes", "step_ids"}
    return {
        **state.model_dump(mode="json", exclude=left_out),
        "id": workload_id(folder),
        "folder": str(folder),
        "nodes": list(state.nodes[:_MOST_NODES]),
        "node_count": len(state.nodes),
        "notes": list(state.notes[-5:]),
    }


def _names(folder: Path) -> list[str]:
    try:
        return sorted(each.name for each in folder.iterdir() if each.is_file())[:_MOST_FILES]
    except OSError:
        return []
