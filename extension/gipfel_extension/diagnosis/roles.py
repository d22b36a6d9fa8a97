"""Roles of ranks (dp, pp, tp, …) and where they run: read from a table, laid out, and selected."""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..telemetry.files import read_regular
from ..telemetry.ranks import RankLocation
from ..telemetry.sample import SourceError
from .verdict import named

#: Kinds of hardware units that ranks may share, from large to small.
LEVELS = ("switch", "node", "nic", "gpu")
_MOST_BYTES = 64 << 20
#: A larger job is refused before its table is built.
_MOST_RANKS = 1 << 17
_MOST_AXES = 8
_TERM = re.compile(r"([a-z][a-z0-9_]{0,15})=([0-9]{1,8})")
_LAYOUT_FIX = (
    "Give sizes whose product is the number of ranks, the fastest axis last, such as pp=4,dp=2,tp=2."
)
_LONGEST = 1000
_MOST_TERMS, _MOST_VALUES = 16, 256
_RANGE = re.compile(r"([0-9]{1,8})(?:-([0-9]{1,8}))?")
_SELECTION_FIX = "Write terms such as pp=6,7 & dp=0, rank=0-7 or node=nid001."

_AXIS = re.compile(r"[a-z][a-z0-9_]{0,15}")
_LONGEST_NAME = 200
_MOST_COORDINATE = 1 << 24
_FIX = 'Give a table such as {"0": {"dp": 0, "pp": 1}, "1": {"dp": 1, "pp": 1}}.'
#: What to do where roles are unknown.
GIVE_ROLES = "Give the ranks' coordinates with --roles FILE, or as roles.json in the run folder."
#: Least size of a group of peers, including the slow rank; in smaller groups no rank is named as slow.
LEAST_PEERS = 4


@dataclass(frozen=True)
class Roles:
    """Coordinates of ranks in the parallel layout, and the hardware units that they run on.

    Parameters
    ----------
    coordinates
        For each rank, its coordinate by axis; empty if the layout is unknown.
    places
        For each rank, the names of its hardware units by level (:data:`LEVELS`).
    """

    coordinates: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    places: Mapping[int, Mapping[str, str]] = field(default_factory=dict)

    @property
    def known(self) -> bool:
        """Return whether the parallel layout is known."""
        return bool(self.coordinates)

    def stage(self, rank: int) -> int | None:
        """Return the pipeline stage of a rank; None if the job has no stages or the rank has no role."""
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
        """Return groups of ranks of equal role, whose coordinates differ only in dp.

        If these groups are too small to compare, tensor-parallel ranks, which also compute the same, are put
        into one group.
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
        """Raise if the roles are not those of these ranks.

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
        """Return these roles with nodes and GPUs that a recorder found; the table takes precedence."""
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
        The file can't be read, is not such a table, or contradicts itself; the message has problem and fix.
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
    """Return the roles in a table that was parsed from JSON.

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


def parse_layout(text: str) -> dict[str, int]:
    """Return the size of each axis of a layout, in its order; empty for an empty text.

    Parameters
    ----------
    text
        Axes and sizes, separated by commas or spaces. The last axis changes fastest from rank to rank, as in
        torch's ``init_device_mesh``.

    Raises
    ------
    SourceError
        The text is not a layout; the message has problem and fix.
    """
    found: dict[str, int] = {}
    for word in text.replace(",", " ").split():
        term = _TERM.fullmatch(word)
        if term is None or int(term[2]) < 1:
            raise SourceError(f"{word[:40]!r} is not the size of an axis.", _LAYOUT_FIX)
        if term[1] in found or term[1] in (*LEVELS, "rank"):
            raise SourceError(f"{term[1]!r} can't be an axis, or is there twice.", _LAYOUT_FIX)
        found[term[1]] = int(term[2])
    if len(found) > _MOST_AXES or math.prod(found.values()) > _MOST_RANKS:
        raise SourceError(
            f"{text[:40]!r} is larger than {_MOST_RANKS} ranks or {_MOST_AXES} axes.", _LAYOUT_FIX
        )
    return found


def roles_of_layout(sizes: Mapping[str, int]) -> Roles:
    """Return the roles of all ranks of a layout; the last axis changes fastest."""
    if not sizes:
        return Roles()
    found = {}
    for rank in range(math.prod(sizes.values())):
        rest, own = rank, {}
        for axis in reversed(list(sizes)):
            rest, own[axis] = divmod(rest, sizes[axis])
        found[rank] = {axis: own[axis] for axis in sizes}
    return Roles(found)


def check_size(sizes: Mapping[str, int], world_size: int) -> None:
    """Raise if a layout has another number of ranks than the job.

    Raises
    ------
    SourceError
        The product of the sizes is not the world size.
    """
    ranks = math.prod(sizes.values())
    if sizes and ranks != world_size:
        shown = ",".join(f"{axis}={size}" for axis, size in sizes.items())
        raise SourceError(
            f"The layout {shown} is for {ranks} rank{'' if ranks == 1 else 's'}, and the job has "
            f"{world_size}.",
            f"Change the sizes so that their product is {world_size}.",
        )


@dataclass(frozen=True)
class Term:
    """One condition of a selection: an axis, ``rank`` or a level of places, and the values that it permits.

    Parameters
    ----------
    ranges
        Pairs of first and last value, both included; empty for a level of hardware units.
    names
        Names of hardware units; empty for an axis or ``rank``.
    """

    key: str
    ranges: tuple[tuple[int, int], ...] = ()
    names: frozenset[str] = frozenset()

    def holds(self, rank: int, roles: Roles) -> bool:
        """Return whether a rank meets the condition."""
        if self.names:
            return roles.places.get(rank, {}).get(self.key) in self.names
        value = rank if self.key == "rank" else roles.coordinates.get(rank, {}).get(self.key)
        return value is not None and any(first <= value <= last for first, last in self.ranges)


@dataclass(frozen=True)
class RoleSelection:
    """Ranks that meet all terms; without terms all ranks."""

    terms: tuple[Term, ...] = ()

    def ranks(self, ranks: Iterable[int], roles: Roles) -> tuple[int, ...]:
        """Return the ranks that are selected, in their order.

        Raises
        ------
        SourceError
            A term names an axis that the job does not have.
        """
        axes = sorted({axis for own in roles.coordinates.values() for axis in own})
        for term in self.terms:
            if term.key != "rank" and term.key not in LEVELS and term.key not in axes:
                known = f"it has {', '.join(axes)}" if axes else "its roles are unknown"
                raise SourceError(
                    f"The job has no axis {term.key!r}: {known}.",
                    "Select by rank or node, or give the layout of the job, such as pp=4,dp=2.",
                )
        return tuple(rank for rank in ranks if all(term.holds(rank, roles) for term in self.terms))


def parse_selection(text: str) -> RoleSelection:
    """Return the selection that a text describes; all ranks for an empty text.

    Raises
    ------
    SourceError
        The text is not a selection; the message has problem and fix.
    """
    if len(text) > _LONGEST:
        raise SourceError(f"The selection is longer than {_LONGEST} characters.", _SELECTION_FIX)
    if not text.strip():
        return RoleSelection()
    parts = text.split("&")
    if len(parts) > _MOST_TERMS:
        raise SourceError(f"The selection has more than {_MOST_TERMS} terms.", _SELECTION_FIX)
    terms = tuple(_term(part.strip()) for part in parts)
    keys = [term.key for term in terms]
    for key in keys:
        if keys.count(key) > 1:
            raise SourceError(f"{key!r} is there twice.", f"Write its values together: {key}=0,1.")
    return RoleSelection(terms)


def _term(text: str) -> Term:
    key, equals, values = (part.strip() for part in text.partition("="))
    key = key.lower()
    words = [word.strip() for word in values.split(",")]
    if not equals or not _AXIS.fullmatch(key) or not all(words) or len(words) > _MOST_VALUES:
        raise SourceError(f"{text[:40]!r} is not a term.", _SELECTION_FIX)
    if key in LEVELS:
        return Term(key, names=frozenset(words))
    ranges = []
    for word in words:
        found = _RANGE.fullmatch(word)
        if found is None:
            raise SourceError(f"{word[:40]!r} is not a number or a range such as 0-7.", _SELECTION_FIX)
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first:
            raise SourceError(f"The range {word} ends before it begins.", f"Write {last}-{first}.")
        ranges.append((first, last))
    return Term(key, tuple(ranges))
