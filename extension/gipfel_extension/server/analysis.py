"""Score, losses and advice of what pages show, at a pace that leaves room for everything else.

`judged` scores a table, `SaturationAnalysis` does so on a thread, `Sharing` is the user's consent to show
the score to administrators.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gipfel_cluster.model import Frozen
from gipfel_cluster.runs import make_private, runs_root, write_atomically

from ..saturation import Advice, advise, document_of, score_table
from ..saturation.advice.steady import HOLD_S, SteadyAdvice
from ..telemetry.events import Event, read_events
from ..telemetry.files import read_regular
from ..telemetry.ranks import gpus_by_rank, read_ranks
from ..telemetry.sample import SampleTable
from ..training.results import program_of_run, workload_of

_SHORTEST_PAUSE_S = 5.0
#: Scoring takes at most this share of a core.
_SHARE = 0.1
_GLANCE_S = 0.5
#: The source of a table of means.
MEANS = "summaries"
#: The rules' advice on a table.
Find = Callable[[SampleTable], tuple[Advice, ...]]
#: Takes a table, the rules, and what they found in it; returns what of it is shown.
Settle = Callable[[SampleTable, Find, tuple[Advice, ...]], tuple[Advice, ...]]
_FILE = "sharing.json"
_WINDOW_S = 600.0
_MOST_BYTES = 64 << 10


@dataclass(frozen=True)
class Analysed:
    """Score of a window as its document, and the run's events."""

    window: float
    document: Mapping[str, Any]
    events: tuple[Event, ...]


def judged(table: SampleTable, telemetry: Path, settle: Settle | None = None) -> dict[str, Any]:
    """Return the document of ``gipfel score --json`` for a table of a run.

    ``means_s`` says over how many seconds its values are means, None where they are the samples.
    """
    ranks = gpus_by_rank(read_ranks(telemetry))
    work = workload_of(program_of_run(telemetry.parent))

    def find(part: SampleTable) -> tuple[Advice, ...]:
        return advise(part, score_table(part, ranks=ranks), workload=work)

    job = score_table(table, ranks=ranks)
    advice = advise(table, job, workload=work)
    document = document_of(job, advice if settle is None else settle(table, find, advice), work)
    if table.source != MEANS:
        return {**document, "means_s": None}
    note = f"Scored by means over {table.interval:g} s, since this is a long time; a shorter one shows more."
    if job.finest < table.interval:
        note = (
            f"The score is of samples every {job.finest:g} s; causes are found from means over "
            f"{table.interval:g} s, since this is a long time."
        )
    return {**document, "means_s": round(table.interval, 3), "notes": [note, *document["notes"]]}


class SaturationAnalysis:
    """A thread that scores while there are pages to show it.

    Parameters
    ----------
    table
        The samples of the last so many seconds; called on the thread.
    telemetry
        The run folder's ``telemetry``.
    wanted
        The windows, in seconds, that pages look at now.
    publish
        Takes what was found; called on the thread.
    hold_s
        Seconds that evidence must hold before an advice appears, and be gone before it disappears.
    """

    def __init__(
        self,
        table: Callable[[float], SampleTable],
        telemetry: Path,
        wanted: Callable[[], set[float]],
        publish: Callable[[Analysed], None],
        log: logging.Logger,
        *,
        hold_s: float = HOLD_S,
    ) -> None:
        self._steady = SteadyAdvice(hold_s)
        self._table = table
        self._telemetry = telemetry
        self._wanted = wanted
        self._publish = publish
        self._log = log
        self._closing = threading.Event()
        self._asked = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gipfel-score", daemon=True)
        self._thread.start()

    def ask(self) -> None:
        """Score soon: a page shows something else."""
        self._asked.set()

    def close(self, limit_s: float) -> None:
        """End the thread."""
        self._closing.set()
        self._asked.set()
        self._thread.join(limit_s)

    def _run(self) -> None:
        failing = False
        while not self._closing.is_set():
            wanted = self._wanted()
            self._asked.clear()
            started = time.thread_time()
            try:
                events = read_events(self._telemetry) if wanted else ()
                self._steady.keep(wanted)
                for window in sorted(wanted):
                    settle = partial(self._settle, window)
                    document = judged(self._table(window), self._telemetry, settle)
                    self._publish(Analysed(window, document, events))
                failing = False
            except Exception:  # noqa: BLE001 - a thread that ended would leave every page with an old score
                if not failing:
                    self._log.exception("This run can't be scored; trying again.")
                failing = True
            spent = time.thread_time() - started
            self._rest(max(_SHORTEST_PAUSE_S, spent / _SHARE) if wanted else _SHORTEST_PAUSE_S, spent)

    def _settle(
        self,
        window: float,
        table: SampleTable,
        find: Find,
        advice: tuple[Advice, ...],
    ) -> tuple[Advice, ...]:
        return self._steady.shown(window, table, find, advice, time.monotonic())

    def _rest(self, pause_s: float, spent_s: float) -> None:
        """Wait for the next turn or the next request; frequent requests wait as long as scoring takes."""
        end = time.monotonic() + pause_s
        soonest = time.monotonic() + min(pause_s, max(_GLANCE_S, 2 * spent_s))
        while not self._closing.is_set() and (left := end - time.monotonic()) > 0:
            if self._asked.wait(left):
                self._closing.wait(max(0.0, soonest - time.monotonic()))
                return


class Sharing(Frozen):
    """Consent of the user for all of the user's servers, until it is withdrawn."""

    saturation: bool = False


def read_sharing(environment: Mapping[str, str]) -> Sharing:
    """Return the saved consent; none where the file is missing or damaged."""
    try:
        return Sharing.model_validate_json(read_regular(_file(environment), _MOST_BYTES))
    except (OSError, ValueError):
        return Sharing()


def write_sharing(environment: Mapping[str, str], sharing: Sharing) -> None:
    """Save the consent, for this user alone.

    Raises
    ------
    OSError
        It can't be written.
    """
    path = _file(environment)
    make_private(path.parent)
    write_atomically(path, json.dumps(sharing.model_dump()) + "\n")


def shared_of(document: Mapping[str, Any], seconds: float = _WINDOW_S) -> dict[str, Any]:
    """Return the part of a score for administrators: no names, no samples, no advice."""
    return {
        "shared": True,
        "score": document["score"],
        "bottleneck": document["bottleneck"],
        "gpus": len(document["gpus"]),
        "seconds": seconds,
        "simulated": document["simulated"],
    }


def _file(environment: Mapping[str, str]) -> Path:
    return runs_root(dict(environment)).parent / _FILE
