"""A run or file, scored: what `gipfel score`, `score.json` and the report all show."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gipfel_cluster.runs import runs_root

from ..saturation import (
    Advice,
    JobScore,
    Settings,
    Weights,
    Workload,
    advise,
    document_of,
    score_table,
)
from ..saturation.sampling import Coarser, coarser_score
from ..server.runs import newest_runs
from ..telemetry.imports import Recording, open_recording
from ..telemetry.sample import SourceError
from ..training.results import (
    Since,
    observed_of,
    pace_of_run,
    program_of_run,
    seconds_of,
    since_of,
    workload_of,
)

SCHEMA = 1


@dataclass(frozen=True)
class ScoredRun:
    """A recording with its score, its advice, and what a longer interval would have shown."""

    path: Path
    recording: Recording
    settings: Settings
    job: JobScore
    advice: Sequence[Advice]
    coarser: Coarser | None
    workload: Workload = field(default_factory=Workload)
    kept: Mapping[str, Any] = field(default_factory=lambda: {"observed": {}, "pace": {}, "seconds": None})
    since: Since | None = None

    @classmethod
    def of(cls, path: Path, *, weights: Mapping[str, float] | None = None, gpu: str = "") -> "ScoredRun":
        """Score what is at a path.

        Parameters
        ----------
        gpu
            The model of GPUs whose recording doesn't name it.

        Raises
        ------
        SourceError
            It can't be read.
        """
        found = open_recording(path)
        if gpu:
            named = (replace(d, name=d.name or gpu) if d.kind == "gpu" else d for d in found.table.devices)
            found = replace(found, table=replace(found.table, devices=tuple(named)))
        settings = Settings(Weights(**dict(weights or {})))
        job = score_table(found.table, settings, ranks=found.ranks)
        total = None if job.total is None else job.total.score
        coarser = coarser_score(found.table, total, settings, ranks=found.ranks)
        work = workload_of(program_of_run(path) if path.is_dir() else None)
        advice = advise(found.table, job, settings, workload=work)
        if not path.is_dir():
            return cls(path, found, settings, job, advice, coarser, work)
        kept = {
            "observed": observed_of(found.table, job, settings),
            "pace": pace_of_run(path),
            "seconds": seconds_of(path),
        }
        scored = cls(path, found, settings, job, advice, coarser, work, kept)
        return replace(scored, since=since_of(path, scored.document()))

    @property
    def notes(self) -> tuple[str, ...]:
        """What the recording lacks, and what its interval hides."""
        hidden = self.coarser.sentence if self.coarser else ""
        return (*self.recording.notes, *([hidden] if hidden else []))

    def document(self) -> dict[str, Any]:
        """The document of ``score.json`` and of ``gipfel score --json``."""
        document = document_of(self.job, self.advice, self.workload)
        weights = self.settings.weights
        used = self.job.utilization
        return {
            **document,
            "schema": SCHEMA,
            "run": self.recording.label,
            "source": self.recording.table.source,
            "utilization": None if used is None else round(used, 4),
            "weights": {name: weights.of(name) for name in ("compute", "memory", "interconnect")},
            "coarser": self.coarser.to_json() if self.coarser else None,
            "segments": self._segments(),
            **self.kept,
            "since": None if self.since is None else self.since.model_dump(mode="json"),
            "notes": [*self.notes, *document["notes"]],
        }

    def _segments(self) -> dict[str, int]:
        """How many segments were closed, open, torn and unreadable."""
        states = [segment.state for segment in self.recording.table.segments]
        return {state: states.count(state) for state in ("closed", "open", "torn", "unreadable")}


def path_of(recording: str) -> Path:
    """Return a path as it is; a bare name that is none here is that of a run, and an empty one the newest.

    Raises
    ------
    SourceError
        The newest was asked for, and there is none.
    """
    if not recording:
        return _present_run()
    path = Path(recording).expanduser()
    run = runs_root(dict(os.environ)) / recording
    return run if path.name == recording and not path.exists() and run.is_dir() else path


def _present_run() -> Path:
    """Return the run of the job that this is typed in, else the user's newest with samples."""
    own = os.environ.get("GIPFEL_RUN", "")
    if own and Path(own, "telemetry").is_dir():
        return Path(own)
    root = runs_root(dict(os.environ))
    newest = newest_runs(root)
    if not newest:
        raise SourceError(f"There is no run in {root} yet.", "Record one: gipfel record -- PROGRAM")
    return newest[0]
