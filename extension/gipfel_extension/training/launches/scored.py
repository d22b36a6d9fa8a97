"""The saturation score of a launch: of its run's samples, from its first rank to its last."""

from pathlib import Path
from typing import Any

from ...saturation import advise, document_of, score_table
from ...telemetry.ranks import gpus_by_rank, read_ranks
from ...telemetry.store.fine import read_finest
from ..results import program_of_launch, workload_of
from .state import LaunchState

#: What is scored of a launch that has run for long: its last hour.
_MOST_NS = 3600 * 10**9


def launch_score(state: LaunchState, folder: Path | None = None) -> dict[str, Any] | None:
    """Return the document of ``gipfel score --json``; None where its ranks had no real GPU.

    Parameters
    ----------
    folder
        The launch's, whose plan says what it computes.
    """
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
        return document_of(job, advise(table, job, workload=work), work)
    except (OSError, ValueError):
        return None
