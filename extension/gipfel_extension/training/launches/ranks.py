"""Where the ranks of a launch run, as each of them says in ``ranks/<rank>.json``."""

from itertools import islice
from pathlib import Path

from pydantic import ValidationError

from gipfel_cluster.model import Frozen

from ...telemetry.files import read_regular

_MOST_BYTES = 64 << 10
_MOST_RANKS = 100_000


class RankNote(Frozen, extra="ignore"):
    """One rank: its node and process there, its CUDA_VISIBLE_DEVICES, which start of it this is."""

    rank: int
    local_rank: int = 0
    node: str = ""
    pid: int = 0
    gpus: str | None = None
    attempt: int = 0
    restart: int = 0
    world: int = 0
    started_ns: int | None = None
    ended_ns: int | None = None
    status: int | None = None

    @property
    def gpu(self) -> str:
        """The GPU that a rank takes by its LOCAL_RANK; empty without GPUs."""
        seen = [each for each in (self.gpus or "").split(",") if each]
        return seen[self.local_rank] if self.local_rank < len(seen) else ""


def read_notes(folder: Path) -> dict[int, RankNote]:
    """What each rank said last."""
    found = {}
    for path in islice((folder / "ranks").glob("*.json"), _MOST_RANKS):
        try:
            note = RankNote.model_validate_json(read_regular(path, _MOST_BYTES))
        except (OSError, ValidationError):
            continue
        found[note.rank] = note
    return dict(sorted(found.items()))


def newest_restart(folder: Path, attempt: int) -> int:
    """How often the ranks of an attempt were started again by their launcher."""
    return max((each.restart for each in read_notes(folder).values() if each.attempt == attempt), default=0)
