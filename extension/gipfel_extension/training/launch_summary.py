"""Views of a launch: its JSON document, the files of its ranks, and launches as a kind of workload.

`summarize` returns the document that the panel, a notebook cell and a report show. `rank_file` finds profiler
traces and flight recorder dumps. `LaunchKind` is for ``gipfel ps``, ``logs``, ``stop`` and ``rerun``.
"""

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from gipfel_cluster.model import GipfelError
from gipfel_cluster.workloads.directory import workload_id
from gipfel_cluster.workloads.kinds import DirectoryKind, Report, Workload
from gipfel_cluster.workloads.logs import LogFiles

from .launch import Launch, launch
from .launches.logs import Progress, TrainingCurve, launch_logs, read_training_curve
from .preflight import CheckOutcome
from .record import LAUNCHES, LaunchState

RankFileKind = Literal["trace", "dump"]
#: Viewer for Chrome's trace format, which torch's profiler writes.
TRACE_VIEWER = "https://ui.perfetto.dev"
TRACE_HELP = (
    "Choose Open trace file there: the file stays in the browser. Chrome's chrome://tracing works, too."
)
_NAMES: dict[str, tuple[str, re.Pattern[str], str]] = {
    "trace": ("profile", re.compile(r"rank-(0|[1-9][0-9]{0,6})\.json"), "rank-{}.json"),
    "dump": ("flight_recorder", re.compile(r"rank_(0|[1-9][0-9]{0,6})"), "rank_{}"),
}
_MAX_FILES = 64
_MAX_CHARACTERS = 20_000
_MAX_NODES = 64
#: Time limit for reading dumps, because a page waits for the result.
_FLIGHT_RECORDER_S = 20.0


def summarize(launch: Launch) -> dict[str, Any]:
    """Return everything about a launch except its logs, as a JSON document; reads only small files.

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
        "status": "silent" if silent else state.outcome or state.phase,
        "message": status_message(launch),
        "failure": state.failure.model_dump(exclude={"traceback"}) if state.failure else None,
        "traceback": state.failure.traceback[-_MAX_CHARACTERS:] if state.failure else "",
        "progress": launch.progress.model_dump(),
        "training_curve": course.model_dump(),
        "preflight": [each.model_dump() for each in launch.preflight],
        "command": "",
        "notebook": (folder / "notebook.ipynb").is_file(),
        "traces": list(ranks_with(folder, "trace")[:_MAX_FILES]),
        "dumps": list(ranks_with(folder, "dump")[:_MAX_FILES]),
        "flight_recorder": [],
    }
    with contextlib.suppress(OSError):
        document["command"] = launch.command[:_MAX_CHARACTERS]
    with contextlib.suppress(GipfelError, OSError, ValueError):
        spec = launch.spec
        document["kind"], document["vetting"] = spec.kind, spec.vetting
        document["nodes_requested"] = [spec.nodes_min or spec.nodes, spec.nodes]
    return document


def summarize_or_report(launch: Launch) -> dict[str, Any]:
    """Return the document of `summarize`; if that fails, a document with the reason."""
    try:
        return summarize(launch)
    except GipfelError as error:
        problem = str(error)
    state = LaunchState(phase="ended", number=int(launch.folder.name), name="unreadable", reason=problem)
    return {
        **_head(state, launch.folder),
        "status": "unreadable",
        "message": problem,
        "failure": None,
        "traceback": "",
        "progress": Progress().model_dump(),
        "training_curve": TrainingCurve().model_dump(),
        "preflight": [],
        "command": "",
        "notebook": False,
        "traces": [],
        "dumps": [],
        "flight_recorder": [],
    }


def status_message(launch: Launch) -> str:
    """Return the reason why a launch failed or waits, as one sentence; empty if there is none."""
    state = launch.state
    if state.failure is not None and state.outcome == "failed":
        return str(state.failure)
    if launch.silent:
        return "The launch has not reported recently: its job may have ended, or its node may be down."
    return state.reason


def flight_recorder_lines(folder: Path) -> list[str]:
    """Return the flight recorder's report of a launch as lines; empty without dumps."""
    from .flight_recorder import has_dumps, report_of  # noqa: PLC0415 - it reads ranks/, which is beside this

    if not has_dumps(folder / "flight_recorder"):
        return []
    try:
        return [line[:_MAX_CHARACTERS] for line in report_of(folder, limit_s=_FLIGHT_RECORDER_S).lines[:50]]
    except (OSError, ValueError, GipfelError) as error:
        return [f"The dumps can't be read: {error}"]


def ranks_with(folder: Path, kind: RankFileKind) -> tuple[int, ...]:
    """Return the ranks that have a file of this kind in a launch's directory."""
    subdirectory, pattern, _ = _NAMES[kind]
    try:
        found = list((folder / subdirectory).iterdir())
        names = [each.name for each in found if each.is_file() and not each.is_symlink()]
    except OSError:
        return ()
    return tuple(sorted(int(match[1]) for name in names if (match := pattern.fullmatch(name))))


def rank_file(folder: Path, kind: RankFileKind, rank: int) -> Path:
    """Return the path of a rank's file."""
    subdirectory, _, name = _NAMES[kind]
    return folder / subdirectory / name.format(rank)


def _head(state: LaunchState, folder: Path) -> dict[str, Any]:
    excluded = {"gpus", "supervisor", "nodes", "failure"}
    return {
        **state.model_dump(mode="json", exclude=excluded),
        "id": workload_id(folder),
        "folder": str(folder),
        "nodes": list(state.nodes[:_MAX_NODES]),
        "node_count": len(state.nodes),
    }


class LaunchKind(DirectoryKind):
    """Training launches as workloads; the scheduler is queried for queued ones."""

    name = "launch"
    directory = LAUNCHES

    def logs(self, workload: Workload) -> LogFiles:
        """Return the logs of its ranks."""
        return launch_logs(Path(workload.folder))

    def stop(self, workload: Workload, environment: Mapping[str, str]) -> None:  # noqa: ARG002 - the Protocol's
        """Stop its ranks; cancel the job of a queued launch."""
        Launch.open(workload.folder).stop()

    def rerun(
        self,
        workload: Workload,
        environment: Mapping[str, str],
        *,
        directory: Path,
        report: Report,
        kill_holders: bool = False,
    ) -> Workload:
        """Start a launch that a failed pre-flight check held back; else start the same spec as a new launch.

        Raises
        ------
        GipfelError
            The launch has not ended, or can't be started.
        """
        earlier = Launch.open(workload.folder)
        if not earlier.settle().ended:
            raise GipfelError(
                f"The launch {workload.id} has not ended.", f"Stop it with `gipfel stop {workload.id}`."
            )

        def on_outcome(outcome: CheckOutcome) -> None:
            report(outcome.line)

        held = earlier.folder if earlier.held_back else None
        started = launch(
            earlier.resumed_spec,
            environment,
            directory=directory,
            on_outcome=on_outcome,
            kill_holders=kill_holders,
            held_folder=held,
        )
        return self._workload(Path(started.folder))

    def _workload(self, folder: Path) -> Workload:
        return Workload.of(self.name, folder, Launch(folder).settle())
