"""Score, losses and advice of the samples that pages show, within a CPU budget.

`score_document` scores a table, `SaturationAnalysis` does so on a thread, `Sharing` is the user's consent to
show the score to administrators.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gipfel_cluster.model import Frozen
from gipfel_cluster.runs import make_private, runs_root, write_atomically

from ..saturation import Advice, advise, document_of, score_table
from ..saturation.advice import HOLD_S, DebouncedAdvice
from ..telemetry.energy import energy_of
from ..telemetry.events import Event, read_events
from ..telemetry.files import read_regular
from ..telemetry.gpu_processes import read_gpu_processes
from ..telemetry.live.paced_thread import PacedThread
from ..telemetry.ranks import gpu_uuids_by_rank, read_ranks
from ..telemetry.sample import SampleTable
from ..training.results import program_of_run, workload_of

#: Largest share of a core that scoring uses.
_SHARE = 0.1
#: Source of a table whose values are means.
MEANS = "summaries"
#: Function that returns the advice of the rules for a table.
AdviseTable = Callable[[SampleTable], tuple[Advice, ...]]
#: Function that takes a table, the rules and their advice, and returns the advice to show.
DebounceAdvice = Callable[[SampleTable, AdviseTable, tuple[Advice, ...]], tuple[Advice, ...]]
_FILE = "sharing.json"
_WINDOW_S = 600.0
_MAX_BYTES = 64 << 10


@dataclass(frozen=True)
class AnalysisResult:
    """Score document of the last ``window`` seconds, and the events of the run."""

    window: float
    document: Mapping[str, Any]
    events: tuple[Event, ...]


def score_document(
    table: SampleTable, telemetry: Path, debounce: DebounceAdvice | None = None
) -> dict[str, Any]:
    """Return the document of ``gipfel score --json`` for a table of a run.

    ``means_s`` is the number of seconds over which the scored values are means, None if they are samples.
    ``energy`` is the energy of that time in one line, empty if it is unknown or the values are means.
    """
    ranks = gpu_uuids_by_rank(read_ranks(telemetry))
    workload = workload_of(program_of_run(telemetry.parent))

    def advise_table(part: SampleTable) -> tuple[Advice, ...]:
        return advise(part, score_table(part, ranks=ranks), workload=workload)

    job = score_table(table, ranks=ranks)
    advice = advise(table, job, workload=workload)
    document = document_of(
        job, advice if debounce is None else debounce(table, advise_table, advice), workload
    )
    if table.source != MEANS:
        return {**document, "means_s": None, "energy": energy_of(table, ranks, os.environ).sentence}
    note = (
        f"The time range is long, so the score uses means over {table.interval:g} s. "
        "Select a shorter range for more detail."
    )
    if job.scored_interval < table.interval:
        note = (
            f"The score uses samples every {job.scored_interval:g} s. The time range is long, so causes are "
            f"found from means over {table.interval:g} s."
        )
    return {**document, "means_s": round(table.interval, 3), "notes": [note, *document["notes"]]}


class SaturationAnalysis:
    """Thread that scores samples while pages show the score.

    Parameters
    ----------
    table
        Function that returns the samples of the last given seconds; called on the thread.
    telemetry
        The directory ``telemetry`` of the run folder.
    windows
        Function that returns the time windows, in seconds, that pages show now.
    publish
        Function that takes each result; called on the thread.
    hold_s
        Seconds for which evidence must be present before an advice appears, and absent before it disappears.
    """

    def __init__(
        self,
        table: Callable[[float], SampleTable],
        telemetry: Path,
        windows: Callable[[], set[float]],
        publish: Callable[[AnalysisResult], None],
        log: logging.Logger,
        *,
        hold_s: float = HOLD_S,
    ) -> None:
        self._debouncer = DebouncedAdvice(hold_s)
        self._table = table
        self._telemetry = telemetry
        self._windows = windows
        self._publish = publish
        self._log = log
        self._failing = False
        self._thread = PacedThread("gipfel-score", self._score, _SHARE)
        #: Score soon, because a page has changed its view.
        self.request = self._thread.request
        #: End the thread, and wait for its end for some seconds.
        self.close = self._thread.close

    def _score(self) -> bool:
        windows = self._windows()
        try:
            events = read_events(self._telemetry) if windows else ()
            processes = read_gpu_processes(self._telemetry) if windows else ()
            self._debouncer.keep(windows)
            for window in sorted(windows):
                debounce = partial(self._debounce, window)
                document = score_document(self._table(window), self._telemetry, debounce)
                document["gpu_processes"] = [asdict(each) for each in processes]
                self._publish(AnalysisResult(window, document, events))
            self._failing = False
        except Exception:  # noqa: BLE001 - if the thread ended, every page would keep an old score
            if not self._failing:
                self._log.exception("This run can't be scored. Gipfel retries.")
            self._failing = True
        return True

    def _debounce(
        self,
        window: float,
        table: SampleTable,
        advise_table: AdviseTable,
        advice: tuple[Advice, ...],
    ) -> tuple[Advice, ...]:
        return self._debouncer.displayed(window, table, advise_table, advice, time.monotonic())


class Sharing(Frozen):
    """Consent of the user to share the score; valid for all servers of the user until it is withdrawn."""

    saturation: bool = False


def read_sharing(environment: Mapping[str, str]) -> Sharing:
    """Return the saved consent; no consent if the file is missing or damaged."""
    try:
        return Sharing.model_validate_json(read_regular(_file(environment), _MAX_BYTES))
    except (OSError, ValueError):
        return Sharing()


def write_sharing(environment: Mapping[str, str], sharing: Sharing) -> None:
    """Save the consent in a file that only this user can read.

    Raises
    ------
    OSError
        The file can't be written.
    """
    path = _file(environment)
    make_private(path.parent)
    write_atomically(path, json.dumps(sharing.model_dump()) + "\n")


def mean_activity(table: SampleTable, seconds: float = _WINDOW_S, parts: int = 30) -> list[float | None]:
    """Return the mean SM activity of all GPUs, 0 to 1, in equal parts of the last ``seconds``, oldest first.

    A part without a sample is None; without any sample the list is empty. Values have three decimals.
    """
    end_ns = table.last_ns
    columns = [table[gpu.uuid] for gpu in table.gpus if gpu.uuid in table and "SM_ACTIVE" in table[gpu.uuid]]
    if end_ns is None or not columns:
        return []
    start_ns, width_ns = end_ns - seconds * 1e9, seconds * 1e9 / parts
    times = np.concatenate([np.asarray(each["time_ns"], dtype=np.float64) for each in columns])
    values = np.concatenate([np.asarray(each["SM_ACTIVE"], dtype=np.float64) for each in columns])
    kept = np.isfinite(values) & (times > start_ns)
    part = np.minimum(((times[kept] - start_ns) / width_ns).astype(int), parts - 1)
    counts = np.bincount(part, minlength=parts)
    sums = np.bincount(part, weights=np.clip(values[kept], 0.0, 1.0), minlength=parts)
    if not counts.any():
        return []
    return [
        round(float(total / count), 3) if count else None for total, count in zip(sums, counts, strict=True)
    ]


def shared_score(
    document: Mapping[str, Any], seconds: float = _WINDOW_S, activity: Sequence[float | None] = ()
) -> dict[str, Any]:
    """Return the part of a score that the hub's pages show: no names, no samples, no advice.

    ``activity`` is the result of `mean_activity`.
    """
    return {
        "shared": True,
        "score": document["score"],
        "bottleneck": document["bottleneck"],
        "gpus": len(document["gpus"]),
        "seconds": seconds,
        "simulated": document["simulated"],
        "activity": list(activity),
    }


def _file(environment: Mapping[str, str]) -> Path:
    return runs_root(dict(environment)).parent / _FILE
