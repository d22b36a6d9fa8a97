"""Score a recording: the common result behind `gipfel score`, `score.json` and the report."""

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
from ..saturation.score import CoarserScore, score_coarser_samples
from ..server.runs import newest_runs
from ..telemetry.energy import RunEnergy, energy_of
from ..telemetry.imports import Recording, open_recording
from ..telemetry.sample import SourceError
from ..training.results import (
    AdviceEffect,
    advice_effect,
    observed_of,
    program_of_run,
    rates_of_run,
    seconds_of,
    workload_of,
)

SCHEMA = 1


@dataclass(frozen=True)
class ScoredRun:
    """Recording with its score and advice, and the score of the same samples, downsampled."""

    path: Path
    recording: Recording
    settings: Settings
    job: JobScore
    advice: Sequence[Advice]
    coarser_score: CoarserScore | None
    workload: Workload = field(default_factory=Workload)
    run_fields: Mapping[str, Any] = field(
        default_factory=lambda: {"observed": {}, "rates": {}, "seconds": None}
    )
    advice_effect: AdviceEffect | None = None
    energy: RunEnergy = field(default_factory=RunEnergy)

    @classmethod
    def of(cls, path: Path, *, weights: Mapping[str, float] | None = None, gpu: str = "") -> "ScoredRun":
        """Score the recording at a path.

        Parameters
        ----------
        gpu
            The GPU model, if the recording does not name it.

        Raises
        ------
        SourceError
            The recording can't be read.
        """
        recording = open_recording(path)
        if gpu:
            named = (
                replace(d, name=d.name or gpu) if d.kind == "gpu" else d for d in recording.table.devices
            )
            recording = replace(recording, table=replace(recording.table, devices=tuple(named)))
        settings = Settings(Weights(**dict(weights or {})))
        job = score_table(recording.table, settings, ranks=recording.ranks)
        total = None if job.total is None else job.total.score
        coarser_score = score_coarser_samples(recording.table, total, settings, ranks=recording.ranks)
        work = workload_of(program_of_run(path) if path.is_dir() else None)
        advice = advise(recording.table, job, settings, workload=work)
        energy = energy_of(recording.table, recording.ranks, os.environ)
        if not path.is_dir():
            return cls(path, recording, settings, job, advice, coarser_score, work, energy=energy)
        run_fields = {
            "observed": observed_of(recording.table, job, settings),
            "rates": rates_of_run(path),
            "seconds": seconds_of(path),
        }
        scored = cls(path, recording, settings, job, advice, coarser_score, work, run_fields, energy=energy)
        return replace(scored, advice_effect=advice_effect(path, scored.document()))

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on missing data, and on effects that the sampling interval hides."""
        coarser_note = self.coarser_score.sentence if self.coarser_score else ""
        return (*self.recording.notes, *([coarser_note] if coarser_note else []))

    def document(self) -> dict[str, Any]:
        """Return the document of ``score.json`` and of ``gipfel score --json``."""
        document = document_of(self.job, self.advice, self.workload)
        weights = self.settings.weights
        utilization = self.job.utilization
        return {
            **document,
            "schema": SCHEMA,
            "run": self.recording.label,
            "source": self.recording.table.source,
            "utilization": None if utilization is None else round(utilization, 4),
            "weights": {name: weights.of(name) for name in ("compute", "memory", "interconnect")},
            "coarser_score": self.coarser_score.to_json() if self.coarser_score else None,
            "energy": self.energy.to_json(),
            "segments": self._segments(),
            **self.run_fields,
            "advice_effect": None
            if self.advice_effect is None
            else self.advice_effect.model_dump(mode="json"),
            "notes": [*self.notes, *document["notes"]],
        }

    def _segments(self) -> dict[str, int]:
        """Return the numbers of segments by state."""
        states = [segment.state for segment in self.recording.table.segments]
        return {state: states.count(state) for state in ("closed", "open", "torn", "unreadable")}


def resolve_recording(recording: str) -> Path:
    """Return the path of a recording: an existing path, else the run of this name; the newest run if empty.

    Raises
    ------
    SourceError
        ``recording`` is empty, and there is no run.
    """
    if not recording:
        return _default_run()
    path = Path(recording).expanduser()
    run = runs_root(dict(os.environ)) / recording
    return run if path.name == recording and not path.exists() and run.is_dir() else path


def _default_run() -> Path:
    """Return the run of the current job, else the user's newest one with samples."""
    own = os.environ.get("GIPFEL_RUN", "")
    if own and Path(own, "telemetry").is_dir():
        return Path(own)
    root = runs_root(dict(os.environ))
    newest = newest_runs(root)
    if not newest:
        raise SourceError(f"There is no run in {root} yet.", "Record one: gipfel record -- PROGRAM")
    return newest[0]
