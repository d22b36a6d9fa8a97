"""Score of a launch's samples, and the effect of the advice given after its program's previous launch.

`launch_score` and `scored_launch` score the samples from the start of the first rank to the end of the last.
`launch_advice_effect` compares a launch with the newest earlier launch of the same program.
"""

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from gipfel_cluster.model import GipfelError
from gipfel_cluster.runs import write_atomically

from ...saturation import Advice, JobScore, Settings, Workload, advise, document_of, score_table
from ...saturation.report.document import SCHEMA_VERSION
from ...telemetry.files import read_object
from ...telemetry.ranks import gpu_uuids_by_rank, read_ranks
from ...telemetry.sample import SampleTable
from ...telemetry.store.fine import read_finest
from ..record import LaunchState, known_folders, read_state
from ..results import observed_of, program_of_launch, rates_of_run, workload_of
from ..results.advice_effect import AdviceEffect, compare_results
from ..results.result import MAX_BYTES, Result, SavedResult

#: Longest time range in ns that is scored: the last hour of a launch.
_MAX_NS = 3600 * 10**9
SCORE = "score.json"
#: Largest number of launches that are searched, the newest first.
_MAX_LAUNCHES = 300
#: Time after the end of a launch by which recorders have written all samples.
_SETTLED_NS = 60 * 10**9


class ScoredLaunch(NamedTuple):
    """Samples of a launch, their score, and the advice."""

    table: SampleTable
    job: JobScore
    advice: tuple[Advice, ...]
    workload: Workload

    def document(self) -> dict[str, Any]:
        """Return the document of ``gipfel score --json``."""
        return document_of(self.job, self.advice, self.workload)


def launch_score(state: LaunchState, folder: Path | None = None) -> dict[str, Any] | None:
    """Return the document of ``gipfel score --json``; None if its ranks had no real GPU.

    Parameters
    ----------
    folder
        Directory of the launch, whose plan describes its workload.
    """
    scored = scored_launch(state, folder)
    return None if scored is None else scored.document()


def scored_launch(state: LaunchState, folder: Path | None = None) -> ScoredLaunch | None:
    """Score the samples of a launch; None if its ranks had no real GPU or the samples can't be read."""
    telemetry = Path(state.run, "telemetry")
    if not state.run or state.started_ns is None or not telemetry.is_dir():
        return None
    end = state.ended_ns or state.updated_ns
    try:
        table = read_finest(
            telemetry,
            since_ns=max(state.started_ns, end - _MAX_NS),
            until_ns=state.ended_ns,
            # Samples of a simulated source do not belong to the launch.
            simulated=False,
        )
        if not table.gpus:
            return None
        places = read_ranks(telemetry)
        ranks = gpu_uuids_by_rank(places)
        if not state.gpus and places and not ranks:
            return None  # the ranks run on CPUs, and the GPUs do other work
        job = score_table(table, ranks=ranks)
        workload = workload_of(None if folder is None else program_of_launch(folder))
        return ScoredLaunch(table, job, advise(table, job, workload=workload), workload)
    except (OSError, ValueError):
        return None


def ended_score(folder: Path) -> float | None:
    """Return the score of an ended launch, 0 to 100; None if it has none or has not ended.

    It is computed from the samples unless the launch's directory has it already.
    """
    with suppress(GipfelError):
        state = read_state(folder)
        document = _document(folder, state) if state.ended else None
        score = (document or {}).get("score")
        return float(score) if isinstance(score, int | float) else None
    return None


def launch_advice_effect(folder: Path, environment: Mapping[str, str]) -> AdviceEffect | None:
    """Compare an ended launch with the newest earlier one of the same program; None if there is none.

    Raises
    ------
    GipfelError
        The launch's state can't be read.
    """
    now = _result(folder, read_state(folder))
    if now is None:
        return None
    for other in reversed(known_folders(environment, all_runs=True)[-_MAX_LAUNCHES:]):
        with suppress(GipfelError):
            state, program = read_state(other), program_of_launch(other)
            if program is None or program.name != now.program.name or other == folder.resolve():
                continue
            if _started(state) < now.started and state.ended:
                before = _result(other, state)
                if before is not None and before.saved.score is not None:
                    return compare_results(before, now)
    return None


def _result(folder: Path, state: LaunchState) -> Result | None:
    program = program_of_launch(folder)
    document = None if program is None or not state.ended else _document(folder, state)
    if program is None or document is None:
        return None
    name = f"{folder.parents[1].name}/{folder.name}" if state.run else folder.name
    with suppress(ValidationError):
        saved = SavedResult.model_validate(document)
        return Result(run=name, started=_started(state), program=program, image="", saved=saved)
    return None


def _document(folder: Path, state: LaunchState) -> dict[str, Any] | None:
    """Return the result of a launch, and save it in the launch's directory once all samples are written."""
    saved = read_object(folder / SCORE, MAX_BYTES)
    if saved.get("schema_version") == SCHEMA_VERSION:
        return saved
    scored = scored_launch(state, folder)
    if scored is None:
        return None
    document = {
        **scored.document(),
        "observed": observed_of(scored.table, scored.job, Settings()),
        "rates": rates_of_run(
            Path(state.run),
            f"{folder.parents[1].name}/{folder.name}",
            state.started_ns or 0,
            state.ended_ns or 2**63 - 1,
        ),
        "seconds": _seconds(state),
    }
    if state.ended_ns is not None and time.time_ns() - state.ended_ns > _SETTLED_NS:
        with suppress(OSError):
            write_atomically(folder / SCORE, json.dumps(document, indent=2) + "\n")
    return document


def _seconds(state: LaunchState) -> float | None:
    if state.outcome != "completed" or state.restarts or state.started_ns is None or state.ended_ns is None:
        return None
    return (state.ended_ns - state.started_ns) / 1e9


def _started(state: LaunchState) -> str:
    """Return the start time as ISO 8601 in UTC, which sorts by time; empty if the launch has not started."""
    if state.started_ns is None:
        return ""
    with suppress(OverflowError, ValueError, OSError):
        return datetime.fromtimestamp(state.started_ns / 1e9, UTC).isoformat(timespec="microseconds")
    return ""
