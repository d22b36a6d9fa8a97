"""The saturation score of a launch: of its run's samples, from its first rank to its last."""

from pathlib import Path
from typing import Any, NamedTuple

from ...saturation import Advice, JobScore, Workload, advise, document_of, score_table
from ...telemetry.ranks import gpus_by_rank, read_ranks
from ...telemetry.sample import SampleTable
from ...telemetry.store.fine import read_finest
from ..results import program_of_launch, workload_of
from .state import LaunchState

#: What is scored of a launch that has run for long: its last hour.
_MOST_NS = 3600 * 10**9


class ScoredLaunch(NamedTuple):
    """The samples of a launch, their score, and what is advised."""

    table: SampleTable
    job: JobScore
    advice: tuple[Advice, ...]
    workload: Workload

    def document(self) -> dict[str, Any]:
        """Return the document of ``gipfel score --json``."""
        return document_of(self.job, self.advice, self.workload)


def launch_score(state: LaunchState, folder: Path | None = None) -> dict[str, Any] | None:
    """Return the document of ``gipfel score --json``; None where its ranks had no real GPU.

    Parameters
    ----------
    folder
        The launch's, whose plan says what it computes.
    """
    scored = scored_launch(state, folder)
    return None if scored is None else scored.document()


def scored_launch(state: LaunchState, folder: Path | None = None) -> ScoredLaunch | None:
    """Score the samples of a launch; None where its ranks had no real GPU, or they can't be read."""
    telemetry = Path(state.run, "telemetry")
    if not state.run or state.started_ns is None or not telemetry.is_dir():
        return None
    end = state.ended_ns or state.updated_ns
    try:
        table = read_finest(
            telemetry,
            since_ns=max(state.started_ns, end - _MOST_NS),
            until_ns=state.ended_ns,
            # A simulated source that plays beside a launch says nothing about it.
            simulated=False,
        )
        if not table.gpus:
            return None
        places = read_ranks(telemetry)
        ranks = gpus_by_rank(places)
        if not state.gpus and places and not ranks:
            return None  # its ranks compute on CPUs, beside GPUs that do something else
        job = score_table(table, ranks=ranks)
        work = workload_of(None if folder is None else program_of_launch(folder))
        return ScoredLaunch(table, job, advise(table, job, workload=work), work)
    except (OSError, ValueError):
        return None
