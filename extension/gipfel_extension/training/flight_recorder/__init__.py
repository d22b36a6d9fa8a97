"""PyTorch's flight recorder: its dumps read without torch, and the ranks missing at a collective."""

import math
from pathlib import Path

from ..record.state import read_rank_records
from .analyse import Dump, Entry, Finding, FlightReport, RankLocation, Straggler, analyse
from .read import read_dump, read_dumps

__all__ = [
    "Dump",
    "Entry",
    "Finding",
    "FlightReport",
    "RankLocation",
    "Straggler",
    "analyse",
    "read_dump",
    "read_dumps",
    "report_of",
]


def report_of(folder: Path, *, limit_s: float = math.inf) -> FlightReport:
    """Return the report of a launch's directory, or of any directory that holds dumps; see `read_dumps`."""
    inside = folder / "flight_recorder"
    dumps, unreadable = read_dumps(inside if inside.is_dir() else folder, limit_s=limit_s)
    notes = read_rank_records(folder)
    locations = {
        rank: RankLocation(rank=rank, node=note.node, gpu=note.gpu, pid=note.pid)
        for rank, note in notes.items()
    }
    return analyse(dumps, locations, unreadable)
