"""Roles of ranks (dp, pp, tp, …) and where they run, from a table that a launch or a person wrote.

The table is JSON: ``{"0": {"dp": 0, "pp": 1, "node": "nid001", "gpu": "GPU-…"}}``. Whole numbers are
coordinates in the job's parallel layout; ``switch``, ``node``, ``nic`` and ``gpu`` are names of what the rank
runs on. Both are optional, but all ranks have the same ones.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..telemetry.files import read_regular
from ..telemetry.ranks import RankLocation
from ..telemetry.sample import SourceError
from .verdict import named

#: What ranks may share, from large to small.
LEVELS = ("switch", "node", "nic", "gpu")
_MOST_BYTES = 64 << 20
_AXIS = re.compile(r"[a-z][a-z0-9_]{0,15}")
_LONGEST_NAME = 200
_MOST_COORDINATE = 1 << 24
_FIX = 'Give a table such as {"0": {"dp": 0, "pp": 1}, "1": {"dp": 1, "pp": 1}}.'
#: What to do where roles are unknown.
GIVE_ROLES = "Give the ranks' coordinates with --roles FILE, or as roles.json in the run folder."
#: Ranks that a slow one is compared with, itself included; of fewer nobody is accused.
LEAST_PEERS = 4


@dataclass(frozen=True)
class Roles:
    """Coordinates and places of ranks.

    Parameters
    ----------
    coordinates
        Rank to its coordinate by axis; empty where the layout is unknown.
    places
        Rank to the names of what it runs on, by level of :data:`LEVELS`.
    """

    coordinates: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    places: Mapping[int, Mapping[str, str]] = field(default_factory=dict)

    @property
    def known(self) -> bool:
        """Return whether the parallel layout is known."""
        return bool(self.coordinates)

    def stage(self, rank: int) -> int | None:
        """Return the pipeline stage of a rank; None where there are none."""
        return self.coordinates.get(rank, {}).get("pp")

    def stages(self, ranks: Iterable[int]) -> dict[int, list[int]]:
        """Return the ranks of each pipeline stage."""
        found: dict[int, list[int]] = {}
        for rank in ranks:
            stage = self.stage(rank)
            if stage is not None:
                found.setdefault(stage, []).append(rank)
        return found

    def groups(self, ranks: Sequence[int]) -> list[list[int]]:
        """Return ranks in groups of equal role: all coordinates but dp's are the same.

        Where these are too small to compare, tensor-parallel ranks, which compute the same too, are put
        together.
        """
        fine = self._grouped(ranks, without=("dp",))
        if max(map(len, fine), default=0) < LEAST_PEERS:
            fine = self._grouped(ranks, without=("dp", "tp"))
        return fine

    def _grouped(self, ranks: Sequence[int], *, without: tuple[str, ...]) -> list[list[int]]:
        found: dict[tuple[tuple[str, int], ...], list[int]] = {}
        for rank in ranks:
            own = self.coordinates.get(rank, {})
            key = tuple(sorted((axis, value) for axis, value in own.items() if axis not in without))
            found.setdefault(key, []).append(rank)
        return list(found.values())

    def units(self, level: str, ranks: Iterable[int]) -> dict[str, list[int]]:
        """Return the ranks on each unit of a level; ranks whose unit is unknown are left out."""
        found: dict[str, list[int]] = {}
        for rank in ranks:
            name = self.places.get(rank, {}).get(level)
            if name:
                found.setdefault(name, []).append(rank)
        return found

    def missing(self, ranks: Iterable[int]) -> tuple[int, ...]:
        """Return the ranks of the table that are not among those given."""
        return tuple(sorted({*self.coordinates, *self.places} - set(ranks)))

    def check(self, ranks: Iterable[int]) -> None:
        """Refuse a table that is not about these ranks.

        Raises
        ------
        SourceError
            A rank that has steps has no role.
        """
        lacking = tuple(sorted(set(ranks) - set(self.coordinates))) if self.known else ()
        if lacking:
            raise SourceError(
                f"The table of roles does not fit: it names {len(self.coordinates)} ranks, and "
                f"{named(lacking)} with steps {'is' if len(lacking) == 1 else 'are'} not among them.",
                "Give the roles of every rank of this job.",
            )

    def with_places(self, locations: Iterable[RankLocation]) -> "Roles":
        """Return these roles with the nodes and GPUs that a recorder found; those of the table go first."""
        found: dict[int, dict[str, str]] = {}
        for each in locations:
            own = {"node": each.node} | ({"gpu": each.gpu_uuid} if each.gpu_uuid else {})
            found.setdefault(each.rank, own)
        for rank, named_units in self.places.items():
            found[rank] = {**found.get(rank, {}), **named_units}
        return Roles(self.coordinates, found)

    def shared_gpus(self) -> dict[str, list[int]]:
        """Return the GPUs that several ranks claim."""
        return {gpu: own for gpu, own in self.units("gpu", sorted(self.places)).items() if len(own) > 1}


def read_roles(path: Path, *, follow: bool = True) -> Roles:
    """Return the roles of a file.

    Raises
    ------
    SourceError
        It can't be read, is not such a table, or contradicts itself: one line that says what and what to do.
    """
    try:
        content = json.loads(read_regular(path, _MOST_BYTES, follow=follow), object_pairs_hook=_once)
    except OSError as error:
        raise SourceError(f"{path} can't be read: {error.strerror or error}.", _FIX) from error
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise SourceError(f"{path} is not a table of roles: {reason}.", _FIX) from error
    try:
        return roles_of(content)
    except ValueError as error:
        raise SourceError(f"{path} is not a table of roles: {error}.", _FIX) from error


def roles_of(content: Any) -> Roles:
    """Return the roles of a table as JSON gives it.

    Raises
    ------
    ValueError
        It is not such a table, or contradicts itself.
    """
    if not isinstance(content, dict) or not content:
        raise ValueError("it names no rank")
    coordinates: dict[int, dict[str, int]] = {}
    places: dict[int, dict[str, str]] = {}
    for key, own in content.items():
        if not key.isascii() or not key.isdecimal() or len(key) > 8:
            raise ValueError(f"{key[:40]!r} is not a rank")
        if not isinstance(own, dict):
            raise ValueError(f"the role of rank {key} is not an object")  # noqa: TRY004 - of a file
        for name, value in own.items():
            if name in LEVELS and isinstance(value, str) and 0 < len(value) <= _LONGEST_NAME:
                places.setdefault(int(key), {})[name] = value
            elif name not in LEVELS and _AXIS.fullmatch(name) and _is_coordinate(value):
                coordinates.setdefault(int(key), {})[name] = value
            else:
                raise ValueError(f"rank {key} has {name[:40]!r}: {str(value)[:40]!r}")
    roles = Roles(coordinates, places)
    _check_whole(roles, len(content))
    return roles


def _check_whole(roles: Roles, ranks: int) -> None:
    axes = {tuple(sorted(own)) for own in roles.coordinates.values()}
    if len(axes) > 1 or (axes and len(roles.coordinates) < ranks):
        shown = " and ".join(sorted(",".join(each) for each in axes)[:2])
        raise ValueError(f"not all ranks have the same coordinates ({shown})")
    for gpu, own in roles.shared_gpus().items():
        raise ValueError(f"{named(tuple(own))} claim one GPU, {gpu}")


def _is_coordinate(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MOST_COORDINATE


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is there twice")
    return found
