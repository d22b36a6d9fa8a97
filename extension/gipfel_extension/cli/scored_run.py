"""Score a recording, the result behind `gipfel score` and `score.json`, and collect what its report shows."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gipfel_cluster.messages import GipfelError
from gipfel_cluster.runs import runs_root
from gipfel_cluster.workloads.run_folders import named_folders, read_notes

from ..job.ranks import read_job
from ..job.roofline import roofline_figure
from ..job.rows import device_rows
from ..job.run_diagnosis import diagnose_run
from ..saturation import Advice, JobScore, Settings, Weights, Workload, advise, document_of, score_table
from ..saturation.report import ReportContent, ReportFigure, record_lines
from ..saturation.report.document import heading, recording_line, score_text
from ..saturation.result import points_over_time
from ..saturation.score import CoarserScore, score_coarser_samples
from ..server.runs import newest_runs
from ..telemetry.energy import RunEnergy, energy_of
from ..telemetry.events import Event, read_events
from ..telemetry.figures.heat import heat_figure
from ..telemetry.figures.lines import coarsened
from ..telemetry.figures.run_figures import gpu_figure, host_figure, job_figure, time_series_figure
from ..telemetry.figures.score_figures import score_figure, shares_figure
from ..telemetry.figures.stack import with_events, with_time_range
from ..telemetry.figures.static_html import Html, tag
from ..telemetry.files import edf_name, read_record_file
from ..telemetry.imports import Recording, open_recording
from ..telemetry.sample import SourceError
from ..telemetry.store.overview import Overview
from ..telemetry.user_metrics import UserMetrics, read_metrics
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
_BUCKETS = 400
_HEAT_CELLS = 120_000
_MAX_EVENTS = 200
_MAX_EVIDENCE = 8
#: Maximum number of characters in the page's first two lines; browsers wrap them.
_WIDTH = 500


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

    def lines(self, environment: str = "") -> Iterator[str]:
        """Yield the text of ``gipfel score``."""
        return score_text(
            self.job,
            self.advice,
            label=self.recording.label,
            environment=environment,
            notes=self.notes,
            advice_effect=self.advice_effect.lines if self.advice_effect else (),
            energy=self.energy.sentence,
        )

    def _segments(self) -> dict[str, int]:
        """Return the numbers of segments by state."""
        states = [segment.state for segment in self.recording.table.segments]
        return {state: states.count(state) for state in ("closed", "open", "torn", "unreadable")}


def resolve_recording(recording: str) -> Path:
    """Return the path of a recording: an existing path, else the run of this name; the newest run if empty.

    A name is that of a run folder, or the one that its user gave the run.

    Raises
    ------
    SourceError
        ``recording`` is empty, and there is no run; or several runs have this name.
    """
    if not recording:
        return _default_run()
    path = Path(recording).expanduser()
    if path.name != recording or path.exists():
        return path
    root = runs_root(dict(os.environ))
    if (root / recording).is_dir():
        return root / recording
    named = named_folders(recording, root)
    if len(named) > 1:
        names = ", ".join(each.name for each in named[:5])
        raise SourceError(f"Several runs have the name {recording[:80]!r}.", f"Give one of {names}.")
    return named[0] if named else path


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


def build_content(scored: ScoredRun) -> ReportContent:
    """Return the content of a run's report."""
    record = read_record_file(scored.path)
    events = read_events(scored.path / "telemetry")
    environment = edf_name(record)
    return ReportContent(
        heading(scored.job, environment=environment, width=_WIDTH),
        " ".join(recording_line(scored.job, scored.recording.label, width=_WIDTH)),
        scored.document(),
        tuple(_figures(scored, events)),
        record_lines(record),
        tuple(_event_rows(scored.path, events)),
        f"Made by gipfel on {datetime.now(UTC):%Y-%m-%d %H:%M} UTC.",
        _vetting(scored.path),
        name=read_notes(scored.path).display_name or scored.path.name,
        user=_owner(scored.path),
    )


def _owner(path: Path) -> str:
    with suppress(OSError, KeyError):
        return path.owner()
    return ""


def _event_rows(path: Path, events: tuple[Event, ...]) -> Iterator[tuple[str, str, str, str]]:
    """Yield the newest events, then interruptions of the steps and changes of the pace."""
    yield from ((_time(e.time_ns), e.node, e.kind, e.message) for e in events[-_MAX_EVENTS:])
    with suppress(SourceError):
        found = diagnose_run(path)
        for phase in found.phases.phases if found.phases else ():
            total_s = found.phases.total_s if found.phases else 0.0
            yield _time(phase.times_ns[0]), "", phase.kind, phase.sentence(total_s)
        for verdict in found.verdicts:
            if verdict.kind == "change" and verdict.since:
                yield _time(verdict.since), "", "change", verdict.evidence


def _figures(scored: ScoredRun, events: tuple[Event, ...]) -> Iterator[ReportFigure]:
    table = replace(scored.recording.table, segments=())
    overview = Overview.from_table(table, _BUCKETS)
    metrics = _metrics(scored.path)
    yield ReportFigure(
        "Score and losses",
        "The losses that separate the score from 100.",
        score_figure(scored.document()),
    )
    shares = points_over_time(scored.job)
    yield ReportFigure(
        "Shares over time",
        "Compute, memory and interconnect add up to the score, the losses to 100.",
        shares_figure(shares.time_ns, shares.points, simulated=scored.job.simulated, title=""),
    )
    if table.gpus:
        columns = max(20, min(_BUCKETS, _HEAT_CELLS // len(table.gpus)))
        yield ReportFigure(
            "GPUs over time",
            "SM activity: one row per GPU, one column per time range. Blank cells have no sample.",
            heat_figure(coarsened(overview, columns), "SM_ACTIVE"),
        )
        yield _roofline(scored, overview)
        yield ReportFigure(
            "Activity", "Every metric of every GPU.", with_events(time_series_figure(overview), events)
        )
    yield ReportFigure(
        "Job",
        "Means over the GPUs, and the metrics that the job logged.",
        with_events(job_figure(overview, metrics=metrics), events),
    )
    if table.hosts:
        yield ReportFigure("Hosts", "CPU, memory, input and output.", host_figure(overview))
    yield from _evidence(scored, overview)


def _roofline(scored: ScoredRun, overview: Overview) -> ReportFigure:
    figure = roofline_figure(overview, device_rows(read_job(scored.path), overview))
    about = "Arithmetic rate against operations for each byte of GPU memory, by GPU and over time."
    sources = figure["layout"].get("meta", {}).get("sources", ())
    return ReportFigure("Roofline", " ".join((about, *(f"{each}." for each in sources))), figure)


def _evidence(scored: ScoredRun, overview: Overview) -> Iterator[ReportFigure]:
    """Yield a figure for the first evidence of each advice, highlighted on the figure of its GPU or host."""
    devices = {device.uuid: device for device in overview.devices}
    for number, advice in enumerate(scored.advice[:_MAX_EVIDENCE]):
        for each in advice.evidence[:1]:
            device = devices.get(each.device)
            if device is None:
                continue
            figure = host_figure(overview)
            if device.kind == "gpu":
                figure = gpu_figure(overview, device, further_metrics=each.metrics)
            device_name = device.name if device.index is None else f"GPU {device.index}"
            yield ReportFigure(
                f"Evidence for {advice.rule}",
                f"{device_name} of {device.node or 'the job'}, "
                f"{_time(each.start_ns)} to {_time(each.end_ns)} UTC: "
                f"{', '.join(_plotted_metrics(figure, each.metrics))}.",
                with_time_range(figure, each.start_ns, each.end_ns),
                number,
            )


def _plotted_metrics(figure: Mapping[str, Any], metrics: Sequence[str]) -> list[str]:
    """Return the metrics that a figure has lines for, keyed by the names in its legend."""
    lines = {
        str(trace.get("uid", "")).rpartition("/")[2]: str(trace.get("name", "")) for trace in figure["data"]
    }
    return [lines[metric] or metric for metric in metrics if metric in lines]


def _metrics(path: Path) -> UserMetrics | None:
    with suppress(OSError, ValueError):
        return read_metrics(path)
    return None


def _vetting(path: Path) -> Html:
    """Return the vetting grid as HTML; empty if the run's nodes were not vetted."""
    if not (path / "vetting.json").is_file():
        return Html()
    from ..vetting.grid import grid_html, make_grid  # noqa: PLC0415
    from ..vetting.report import read_report  # noqa: PLC0415

    try:
        return grid_html(make_grid(read_report(path)))
    except GipfelError as error:
        return tag("p", error)


def _time(time_ns: int) -> str:
    with suppress(OverflowError, ValueError, OSError):
        return f"{datetime.fromtimestamp(time_ns / 1e9, UTC):%Y-%m-%d %H:%M:%S}"
    return str(time_ns)
