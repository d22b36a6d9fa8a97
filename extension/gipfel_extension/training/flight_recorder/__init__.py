"""PyTorch's flight recorder: its dumps read without torch, and the ranks that keep the others waiting."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

from gipfel_cluster.model import GipfelError

from ..record import read_rank_records
from .analyse import analyse
from .dump import Call, Dump
from .read import check_one_job, has_dumps, read_dump, read_dumps
from .report import FaultyRank, FlightReport, Mismatch, RankLocation, Side, Straggler

if TYPE_CHECKING:
    from ...diagnosis.roles import Roles

__all__ = [
    "Call",
    "Dump",
    "FaultyRank",
    "FlightReport",
    "Mismatch",
    "RankLocation",
    "Side",
    "Straggler",
    "analyse",
    "has_dumps",
    "read_dump",
    "read_dumps",
    "report_of",
]


def report_of(folder: Path, *, limit_s: float = math.inf, roles: "Roles | None" = None) -> FlightReport:
    """Return the report of a launch's directory, or of any directory that holds dumps; see `read_dumps`.

    Late ranks are compared with ranks of equal role, if `roles` are known.

    Raises
    ------
    GipfelError
        The directory can't be read, has no dump, or has dumps of several jobs.
    """
    inside = folder / "flight_recorder"
    source = inside if inside.is_dir() else folder
    try:
        found = read_dumps(source, limit_s=limit_s)
    except OSError as error:
        raise GipfelError(
            f"{source} can't be read: {error.strerror}.", "Name a directory with dumps."
        ) from error
    if not found.dumps:
        why = f" ({'; '.join(found.unreadable[:3])})" if found.unreadable else ""
        raise GipfelError(
            f"{source} has no dump of a flight recorder{why}.",
            "Name the directory of TORCH_FR_DUMP_TEMP_FILE, whose files end in the rank, or a launch.",
        )
    check_one_job(source, found.dumps)
    records = read_rank_records(folder)
    locations = {
        rank: RankLocation(rank=rank, node=note.node, gpu=note.gpu) for rank, note in records.items()
    }
    return analyse(found.dumps, locations, found.unreadable, found.damaged, roles)
