"""Selection of ranks by role or place: ``pp=6,7 & dp=0``, ``rank=0-7``, ``node=nid001``."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ..telemetry.sample import SourceError
from .roles import LEVELS, Roles

_LONGEST = 1000
_MOST_TERMS, _MOST_VALUES = 16, 256
_AXIS = re.compile(r"[a-z][a-z0-9_]{0,15}")
_RANGE = re.compile(r"([0-9]{1,8})(?:-([0-9]{1,8}))?")
_FIX = "Write terms such as pp=6,7 & dp=0, rank=0-7 or node=nid001."


@dataclass(frozen=True)
class Term:
    """One condition of a selection: an axis, ``rank`` or a level of places, and the values that it permits.

    Parameters
    ----------
    ranges
        First and last value, both included; empty for a level.
    names
        Names of units; empty for an axis.
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
        The text is not a selection: one line that says what and what to do.
    """
    if len(text) > _LONGEST:
        raise SourceError(f"The selection is longer than {_LONGEST} characters.", _FIX)
    if not text.strip():
        return RoleSelection()
    parts = text.split("&")
    if len(parts) > _MOST_TERMS:
        raise SourceError(f"The selection has more than {_MOST_TERMS} terms.", _FIX)
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
        raise SourceError(f"{text[:40]!r} is not a term.", _FIX)
    if key in LEVELS:
        return Term(key, names=frozenset(words))
    ranges = []
    for word in words:
        found = _RANGE.fullmatch(word)
        if found is None:
            raise SourceError(f"{word[:40]!r} is not a number or a range such as 0-7.", _FIX)
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first:
            raise SourceError(f"The range {word} ends before it begins.", f"Write {last}-{first}.")
        ranges.append((first, last))
    return Term(key, tuple(ranges))
