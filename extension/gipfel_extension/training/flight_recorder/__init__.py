"""PyTorch's flight recorder: its dumps read without torch, and who is missing at which collective."""

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


def report_of(folder: Path) -> FlightReport:
    """The report of a launch's folder, or of any folder that holds dumps."""
    inside = folder / "flight_recorder"
    dumps, unreadable = read_dumps(inside if inside.is_dir() else folder)
    notes = read_notes(folder)
    places = {
        rank: RankPlace(rank=rank, node=note.node, gpu=note.gpu, pid=note.pid) for rank, note in notes.items()
    }
    return analyse(dumps, places, unreadable)
