"""A run's result as its folder keeps it, and the newest one of the same program."""

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from gipfel_cluster.model import Frozen

from ...saturation.document import SCHEMA_VERSION
from ...telemetry.files import read_json, read_record_file
from .program import Program, program_of_run

MOST_BYTES = 16 << 20
#: Runs that are looked through for one of the same program, the newest first.
_MOST_RUNS = 300
_MOST_FOLDERS = 20_000
_Share = float | None


class KeptKnob(Frozen, extra="ignore"):
    """What an advice says to turn."""

    name: str = Field(max_length=200)


class KeptAdvice(Frozen, extra="ignore", allow_inf_nan=False):
    """An advice that was given, with the bounds of its gain."""

    rule: str = Field(max_length=64)
    knob: KeptKnob
    gain: float = Field(ge=0, le=100)
    speedup: tuple[float, float] | None = None


class KeptGpu(Frozen, extra="ignore"):
    """A GPU of the run."""

    name: str = Field("", max_length=200)


class KeptResult(Frozen, extra="ignore", allow_inf_nan=False):
    """What of ``score.json`` a later run is held against; see `measured` for the last three."""

    score: float | None = Field(ge=0, le=100)
    losses: dict[str, float | None]
    confidence: float | None
    simulated: bool
    interval_s: float | None = None
    weights: dict[str, float] = Field(default={})
    advice: tuple[KeptAdvice, ...] = Field(max_length=100)
    gpus: tuple[KeptGpu, ...] = Field(max_length=100_000)
    observed: dict[str, float | None] = Field(default={})
    pace: dict[str, tuple[float, float]] = Field(default={})
    seconds: float | None = Field(None, ge=0)

    @property
    def steady(self) -> float:
        """Return the share of the time after the start-up, whose length says nothing about the work."""
        return max(0.01, 1.0 - (self.losses.get("start_up") or 0.0) / 100.0)


class Result(Frozen):
    """A run's result with its program and what it ran in."""

    run: str
    started: str
    program: Program
    image: str
    kept: KeptResult


def result_of(run: Path, document: Any) -> Result | None:
    """Return the result of a run whose document is known; None where nothing says what it ran."""
    record, program = read_record_file(run), program_of_run(run)
    started = record.get("started")
    if program is None or not isinstance(started, str):
        return None
    image = record.get("image")
    digest = image.get("digest") if isinstance(image, dict) else None
    with suppress(ValidationError):
        kept = KeptResult.model_validate(document)
        return Result(run=run.name, started=started, program=program, image=str(digest or ""), kept=kept)
    return None


def earlier_result(now: Result, runs: Path) -> Result | None:
    """Return the newest scored result that an earlier run of the same program left; None without any."""
    found = [
        each
        for each in _results(runs, now.run)
        if each.started < now.started and each.program.name == now.program.name
    ]
    return max(found, key=lambda each: each.started, default=None)


def _results(runs: Path, without: str) -> Iterator[Result]:
    written = []
    with suppress(OSError):
        for folder in islice(runs.iterdir(), _MOST_FOLDERS):
            with suppress(OSError):
                if folder.name != without:
                    written.append(((folder / "score.json").lstat().st_mtime, folder))
    for _, folder in sorted(written, reverse=True)[:_MOST_RUNS]:
        with suppress(OSError, ValueError):
            document = read_json(folder / "score.json", MOST_BYTES)
            if not isinstance(document, dict) or document.get("schema_version") != SCHEMA_VERSION:
                continue
            if (result := result_of(folder, document)) is not None and result.kept.score is not None:
                yield result
