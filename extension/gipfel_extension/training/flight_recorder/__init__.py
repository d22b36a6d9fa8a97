"""PyTorch's flight recorder: its dumps read without torch, and who is missing at which collective."""

import math
from pathlib import Path

from ..launches.ranks import read_notes
from .analyse import analyse
from .model import Dump, Entry, Finding, FlightReport, RankPlace, Straggler
from .read import read_dump, read_dumps

__all__ = [
    "Dump",
    "Entry",
    "Finding",
    "FlightReport",
    "RankPlace",
    "Straggler",
    "analyse",
    "read_dump",
    "read_dumps",
    "report_of",
]


def report_of(folder: Path, *, limit_s: float = math.inf) -> FlightReport:
    """Return the report of a launch's folder, or of any folder that holds dumps; see `read_dumps`."""
    inside = folder / "flight_recorder"
    dumps, unreadable = read_dumps(inside if inside.is_dir() else folder, limit_s=limit_s)
    notes = read_notes(folder)
    places = {
        rank: RankPlace(rank=rank, node=note.node, gpu=note.gpu, pid=note.pid) for rank, note in notes.items()
    }
    return analyse(dumps, places, unreadable)
