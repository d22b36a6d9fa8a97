"""Which process is which rank, and on which GPU it computes: ``telemetry/<node>-<recorder>.ranks.json``."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .events import file_name
from .files import read_json

#: Ending of the files that hold places of ranks.
SUFFIX = ".ranks.json"
_MOST_BYTES = 16 << 20


@dataclass(frozen=True)
class RankPlace:
    """One rank of the job on one GPU.

    Parameters
    ----------
    pid
        Of the process, on its node.
    gpu_uuid
        The GPU, or MIG instance, that the process holds; None where it holds none.
    name
        The process's name.
    """

    rank: int
    node: str
    pid: int
    gpu_uuid: str | None
    name: str

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "RankPlace":
        """A place as a dictionary; keys of a later version are left out.

        Raises
        ------
        ValueError
            It is none.
        """
        try:
            gpu = content["gpu_uuid"]
            return cls(
                int(content["rank"]),
                str(content["node"]),
                int(content["pid"]),
                None if gpu is None else str(gpu),
                str(content["name"]),
            )
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"not a rank's place: {error!r}") from error


def ranks_file(telemetry: Path, node: str, recorder: str) -> Path:
    """Where a recorder writes the places of its node's ranks."""
    return telemetry / f"{file_name(node) or 'node'}-{file_name(recorder)}{SUFFIX}"


def ranks_text(places: Iterable[RankPlace]) -> str:
    """The content of such a file."""
    return json.dumps([asdict(place) for place in places]) + "\n"


def read_ranks(telemetry: Path) -> tuple[RankPlace, ...]:
    """The places of a run's ranks, by rank and GPU; files that are damaged are left out."""
    found: dict[tuple[int, str, str | None], RankPlace] = {}
    for path in sorted(telemetry.glob(f"*{SUFFIX}")):
        try:
            places = [RankPlace.from_json(each) for each in read_json(path, _MOST_BYTES)]
        except (OSError, ValueError, TypeError):
            continue
        for place in places:
            found.setdefault((place.rank, place.node, place.gpu_uuid), place)
    return tuple(sorted(found.values(), key=lambda place: (place.rank, place.node, place.gpu_uuid or "")))


def gpus_by_rank(places: Iterable[RankPlace]) -> dict[int, list[str]]:
    """Rank to the UUIDs of its GPUs, as the score takes them; ranks without a GPU are left out."""
    found: dict[int, list[str]] = {}
    for place in places:
        if place.gpu_uuid is not None:
            found.setdefault(place.rank, []).append(place.gpu_uuid)
    return found
