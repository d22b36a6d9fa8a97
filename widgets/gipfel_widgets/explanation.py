"""Explanation of a run, from its run folder alone: its record, use of its GPUs, and what to try next."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from gipfel_cluster.model import GipfelError
from gipfel_extension.cli.scored_run import ScoredRun, build_content, resolve_recording
from gipfel_extension.saturation import JobScore, Settings, Workload, advise, score_table
from gipfel_extension.saturation.report import ReportContent
from gipfel_extension.telemetry.figures.static_html import fragment, table, tag
from gipfel_extension.telemetry.imports import Recording
from gipfel_extension.telemetry.ranks import gpu_uuids_by_rank, read_ranks
from gipfel_extension.telemetry.sample import SampleTable
from gipfel_extension.telemetry.store.fine import read_finest
from gipfel_extension.telemetry.store.segments import read_samples
from gipfel_extension.training.launch import Launch
from gipfel_extension.training.launch_summary import status_message
from gipfel_extension.training.results import program_of_launch, workload_of

from .displays import bundle, on_white
from .launch_static import LaunchList
from .measurement import Measurement

__all__ = ["Explanation", "FactTable", "FigureView", "explain"]

_FAILED = "read its traceback first"
#: Seconds that a recorder buffers samples, with a margin for a slow file system.
_FLUSH_S = 8.0


@dataclass(frozen=True)
class FigureView:
    """A figure with a title and a caption; it shows itself as plotly, as an image and as text."""

    title: str
    caption: str
    figure: dict[str, Any]

    def _repr_mimebundle_(self, **_: object) -> dict[str, Any]:
        return bundle(self.figure, repr(self))

    def __repr__(self) -> str:
        return f"{self.title}: {self.caption}"


@dataclass(frozen=True)
class FactTable:
    """Rows of text with column heads; without rows, the sentence `empty` is shown.

    If all heads are empty, the first cell of each row is its head.
    """

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    empty: str

    def __repr__(self) -> str:
        return "\n".join("  ".join(row) for row in self.rows) or self.empty

    def _repr_html_(self) -> str:
        if not self.rows:
            return fragment(tag("p", self.empty))
        return fragment(
            table(self.heads if any(self.heads) else (), self.rows, row_heads=not any(self.heads))
        )


class Explanation:
    """The parts of an explanation, each of which shows itself in a notebook. Created by :func:`explain`."""

    def __init__(self, scored: ScoredRun) -> None:
        self.scored = scored
        self.path = scored.path

    @cached_property
    def _content(self) -> ReportContent:
        return build_content(self.scored)

    @property
    def score(self) -> float | None:
        """Score from 0 to 100; None where no GPU was recorded."""
        return None if self.scored.job.total is None else self.scored.job.total.score

    @property
    def losses(self) -> dict[str, float]:
        """Points lost to each cause, which add up to 100 with the score; empty if there is no score."""
        total = self.scored.job.total
        return {} if total is None else dict(total.losses)

    @property
    def record(self) -> FactTable:
        """Record of the run: job, nodes, environment, versions."""
        return FactTable(("", ""), tuple(self._content.record), "There is no record of this run.")

    @property
    def events(self) -> FactTable:
        """Events recorded with the samples: XIDs, throttling, a full disk, a lost node."""
        heads = ("time (UTC)", "node", "event", "")
        return FactTable(heads, tuple(self._content.events), "The recorder noted no events.")

    @property
    def launches(self) -> LaunchList:
        """Launches of this run, the newest first."""
        folders = (self.path / "launches").glob("[0-9]*/state.json")
        found = sorted((path.parent for path in folders), key=lambda each: int(each.name), reverse=True)
        return LaunchList([Launch(each) for each in found])

    @property
    def text(self) -> str:
        """Score, losses and advice as `gipfel score` prints them."""
        return "\n".join(self.scored.lines())

    @property
    def figures(self) -> tuple[FigureView, ...]:
        """Score and losses, shares over time, heat map, metrics, logged metrics, hosts, evidence."""
        return tuple(
            FigureView(each.title, each.caption, on_white(dict(each.figure)))
            for each in self._content.figures
            if each.figure.get("data")
        )

    @property
    def next_steps(self) -> FactTable:
        """Advice, that for the largest loss first."""
        rows = [(each.action, each.gain_text, each.knob.name) for each in self.scored.advice]
        failed = [each for each in self.launches if each.state.outcome in {"failed", "lost", "timeout"}]
        rows[:0] = [
            (f"Launch {each.folder.name}: {status_message(each)}", _FAILED, "") for each in failed[:3]
        ]
        empty = (
            "Nothing remarkable." if self.score is not None else "No GPU was recorded, so there is no advice."
        )
        return FactTable(("try", "gain", "by"), tuple(rows), empty)

    def show(self, figures: Iterable[str] = ()) -> None:
        """Display score and advice, then the figures of these titles, or all, as outputs of this cell."""
        from IPython import display as shown  # noqa: PLC0415 - only where there is a notebook

        display: Any = shown.display
        wanted = tuple(figures)
        display({"text/plain": self.text}, raw=True)
        for each in self.figures:
            if not wanted or each.title in wanted:
                display(each)

    def __repr__(self) -> str:
        return self.text


def explain(which: Launch | Measurement | Path | str | None = None) -> Explanation:
    """Explain a run, a launch or a measurement; by default this kernel's run, else the newest.

    Raises
    ------
    GipfelError
        There is no such run, or nothing was recorded.
    """
    if isinstance(which, Measurement):
        return _explained(which.run.path, which.table(), which.run.path.name)
    if isinstance(which, Launch):
        return _of_launch(which)
    return Explanation(ScoredRun.of(_path(which)))


def _path(which: Path | str | None) -> Path:
    path = resolve_recording(str(which or ""))
    if not path.exists():
        raise GipfelError(
            f"There is no run {which}.", "`gipfel launch list --all` and ~/.gipfel/runs name them."
        )
    return path


def _of_launch(launch: Launch) -> Explanation:
    """Explain the part of its run in which a launch ran."""
    state = launch.state
    if not state.run or state.started_ns is None:
        raise GipfelError(
            f"Launch {launch.folder.name} has not run.", status_message(launch) or "Wait for it."
        )
    path, ended = Path(state.run), state.ended_ns
    due = time.monotonic() + (_FLUSH_S if ended is not None else 0)
    while True:
        table = read_finest(path / "telemetry", since_ns=state.started_ns, until_ns=ended)
        whole = read_samples(path / "telemetry", since_ns=ended) if ended is not None else table
        # A sample after the launch's end shows that all earlier ones were written; an ended job has none.
        if whole.rows or time.monotonic() > due or not any(each.state == "open" for each in table.segments):
            break
        time.sleep(0.5)
    if not table.rows:
        raise GipfelError(
            f"Nothing was recorded of launch {launch.folder.name}.", "Its job records by default."
        )
    label = f"launch {launch.folder.name} of {path.name}"
    return _explained(path, table, label, workload_of(program_of_launch(launch.folder)))


def _explained(path: Path, table: SampleTable, label: str, work: Workload | None = None) -> Explanation:
    settings, work = Settings(), work or Workload()
    recording = Recording(table, label, (), gpu_uuids_by_rank(read_ranks(path / "telemetry")))
    job: JobScore = score_table(table, settings, ranks=recording.ranks)
    advice = advise(table, job, settings, workload=work)
    return Explanation(ScoredRun(path, recording, settings, job, advice, None, work))
