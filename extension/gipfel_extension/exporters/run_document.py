"""Describe a run folder for other systems: parameters, tags, results, files, and its launches as child runs.

Everything is read from the run folder, so a run can be described at any later time. Values of options are
hidden if the option's name is that of a secret.
"""

import getpass
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from gipfel_cluster.model import GipfelError, one_line
from gipfel_cluster.workloads.directory import WorkloadState, read_state
from gipfel_cluster.workloads.run_folders import Run

from ..telemetry.files import read_object, read_record_file, read_regular, read_tail
from ..telemetry.redaction import redact_record, redact_value
from ..training.results import program_of_launch, program_of_run
from ..training.results.program import Program

Status = Literal["RUNNING", "FINISHED", "FAILED", "KILLED"]

#: A shell reports a program that was ended by a signal as 128 plus the signal's number.
_SIGNALLED = 128
_MAX_JSON_BYTES = 16 << 20
_MAX_FILE_BYTES = 64 << 20
_MAX_LOG_BYTES = 4 << 20
_MAX_PARAMETERS, _MAX_LAUNCHES, _MAX_LOGS = 500, 100, 8
#: Files of a run folder that are exported as they are.
_FILES = (
    "score.json",
    "vetting.json",
    "good_nodes.txt",
    "bad_nodes.txt",
    "roles.json",
    "notes.json",
    "metrics.jsonl",
)
_LAUNCH_FILES = ("exit.json", "notebook.ipynb")
_STATUS: Mapping[str, Status] = {
    "completed": "FINISHED",
    "stopped": "KILLED",
    "preempted": "KILLED",
    "lost": "KILLED",
}


@dataclass(frozen=True)
class ExportedFile:
    """A file of a run: its path in the export, and where its content comes from.

    Parameters
    ----------
    source
        The file in the run folder; None if `content` is given.
    is_log
        True for a log, of which only the end is exported.
    """

    path: str
    source: Path | None = None
    content: bytes = b""
    is_log: bool = False

    def read(self) -> bytes:
        """Return the content; of a log, the last 4 MiB.

        Raises
        ------
        OSError
            The file can't be read, is not a regular file, or is larger than 64 MiB.
        """
        if self.source is None:
            return self.content
        if self.is_log:
            return read_tail(self.source, _MAX_LOG_BYTES)
        return read_regular(self.source, _MAX_FILE_BYTES)


@dataclass(frozen=True)
class RunDocument:
    """A run, or one launch of it, as another system shows it.

    Parameters
    ----------
    key
        Unique among all runs of a user: ``<run>``, or ``<run>/<launch>``.
    started_ms, ended_ms
        UTC in milliseconds; None if unknown or if the run has not ended.
    results
        Numbers about the whole run by name, such as ``gipfel/score``.
    launch
        ID of the launch that is described; empty for the run, which has the user metrics outside of launches.
    """

    key: str
    title: str
    status: Status
    started_ms: int | None
    ended_ms: int | None
    parameters: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    results: Mapping[str, float] = field(default_factory=dict)
    files: tuple[ExportedFile, ...] = ()
    launch: str = ""
    children: tuple["RunDocument", ...] = ()

    @property
    def has_ended(self) -> bool:
        """Return whether the run and all its launches have ended."""
        return self.status != "RUNNING" and all(child.has_ended for child in self.children)


def user_name() -> str:
    """Return the name of this process's user; "unknown" without an account."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def describe(run: Run) -> RunDocument:
    """Return the document of a run, with its launches as children."""
    folder = Path(run.folder)
    record = redact_record(read_record_file(folder))
    program = program_of_run(folder)
    return RunDocument(
        key=run.name,
        title=run.display_name or run.name,
        status=_status(run),
        started_ms=_milliseconds(run.started),
        ended_ms=_milliseconds(run.ended),
        parameters={**_options(record), **_parameters(program)},
        tags=_tags(run, record, program),
        results=_results(run),
        files=tuple(_files(folder, record)),
        children=tuple(_launches(folder)),
    )


def _status(run: Run) -> Status:
    if not run.ended:
        # The record of a killed run has no end, and no process uses its folder.
        return "RUNNING" if run.in_use_reason else "KILLED"
    if run.exit_status is None or run.exit_status > _SIGNALLED:
        return "KILLED"
    return "FINISHED" if run.exit_status == 0 else "FAILED"


def _milliseconds(text: str) -> int | None:
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


def _parameters(program: Program | None) -> dict[str, str]:
    options = {} if program is None else program.options
    return {
        one_line(name)[:200]: one_line(redact_value(name, value))
        for name, value in islice(options.items(), _MAX_PARAMETERS)
    }


def _options(record: Mapping[str, Any]) -> dict[str, str]:
    options = record.get("options")
    found = options.items() if isinstance(options, dict) else ()
    return {
        f"option.{one_line(str(name))[:200]}": one_line(
            value if isinstance(value, str) else json.dumps(value)
        )
        for name, value in islice(found, _MAX_PARAMETERS)
        if value not in (None, "", [], {})
    }


def _tags(run: Run, record: Mapping[str, Any], program: Program | None) -> dict[str, str]:
    image = record.get("image")
    image = image if isinstance(image, dict) else {}
    nodes = record.get("nodes")
    tags = {
        "gipfel.run": run.name,
        "gipfel.kind": run.kind,
        "gipfel.job": run.job_id,
        "gipfel.nodes": " ".join(map(str, nodes[:1000])) if isinstance(nodes, list) else "",
        "gipfel.tags": " ".join(run.tags),
        "gipfel.edf_digest": str(record.get("edf_digest") or ""),
        "gipfel.vetting": _vetting(Path(run.folder)),
        "program": "" if program is None else program.name,
        "commit": run.commit,
        "image": str(image.get("path") or ""),
        "image_digest": str(image.get("digest") or ""),
        "note": run.note,
    }
    return {name: value for name, value in tags.items() if value}


def _vetting(folder: Path) -> str:
    vetted = read_object(folder / "vetting.json", _MAX_JSON_BYTES).get("vetted")
    return {True: "pass", False: "fail"}.get(vetted, "") if isinstance(vetted, bool) else ""


def _results(run: Run) -> dict[str, float]:
    found = {
        "gipfel/score": run.score,
        "gipfel/duration_s": run.duration_s,
        "gipfel/gpu_hours": run.gpu_hours,
        "gipfel/energy_wh": run.energy_wh,
    }
    losses = read_object(Path(run.folder) / "score.json", _MAX_JSON_BYTES).get("losses")
    for name, points in (losses if isinstance(losses, dict) else {}).items():
        if isinstance(points, int | float):
            found[f"gipfel/loss/{one_line(str(name))[:40]}"] = float(points)
    return {name: float(value) for name, value in found.items() if value is not None}


def _files(folder: Path, record: Mapping[str, Any]) -> Iterator[ExportedFile]:
    yield ExportedFile("gipfel/record.json", content=json.dumps(record, indent=1, sort_keys=True).encode())
    if isinstance(record.get("edf"), dict):
        yield ExportedFile("gipfel/edf.json", content=json.dumps(record["edf"], indent=1).encode())
    for name in _FILES:
        if (folder / name).is_file():
            yield ExportedFile(f"gipfel/{name}", folder / name)


def _launches(folder: Path) -> Iterator[RunDocument]:
    try:
        numbered = [each for each in (folder / "launches").iterdir() if each.name.isdecimal()]
    except OSError:
        return
    for each in sorted(numbered, key=lambda path: int(path.name))[:_MAX_LAUNCHES]:
        try:
            state = read_state(each, WorkloadState)
        except GipfelError:
            continue
        yield _launch(folder, each, state)


def _launch(run: Path, folder: Path, state: WorkloadState) -> RunDocument:
    program = program_of_launch(folder)
    logs = sorted(folder.glob("rank-*.log"), key=lambda path: (len(path.name), path.name))[:_MAX_LOGS]
    tags = {
        "gipfel.run": f"{run.name}/{folder.name}",
        "gipfel.kind": "launch",
        "gipfel.nodes": " ".join(state.nodes),
        "gipfel.reason": state.reason,
        "program": "" if program is None else program.name,
    }
    return RunDocument(
        key=f"{run.name}/{folder.name}",
        title=f"{state.title or state.name or 'launch'} #{folder.name}",
        status=_STATUS.get(state.outcome, "FAILED") if state.ended else "RUNNING",
        started_ms=(state.started_ns or state.created_ns) // 10**6 or None,
        ended_ms=None if state.ended_ns is None else state.ended_ns // 10**6,
        parameters=_parameters(program),
        tags={name: value for name, value in tags.items() if value},
        files=(
            *(
                ExportedFile(f"gipfel/{name}", folder / name)
                for name in _LAUNCH_FILES
                if (folder / name).is_file()
            ),
            *(ExportedFile(f"gipfel/logs/{path.name}", path, is_log=True) for path in logs),
        ),
        launch=f"{run.name}/{folder.name}",
    )
