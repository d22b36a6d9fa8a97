"""Layouts of parallel jobs, ``pp=4,dp=2,tp=2``: sizes of axes, from which the roles of all ranks follow."""

import math
import re
from collections.abc import Mapping

from ..telemetry.sample import SourceError
from .roles import LEVELS, Roles

#: A larger job is refused before its table is built.
_MOST_RANKS = 1 << 17
_MOST_AXES = 8
_TERM = re.compile(r"([a-z][a-z0-9_]{0,15})=([0-9]{1,8})")
_FIX = "Give sizes whose product is the number of ranks, the fastest axis last, such as pp=4,dp=2,tp=2."


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
        The text is not a layout: one line that says what and what to do.
    """
    found: dict[str, int] = {}
    for word in text.replace(",", " ").split():
        term = _TERM.fullmatch(word)
        if term is None or int(term[2]) < 1:
            raise SourceError(f"{word[:40]!r} is not the size of an axis.", _FIX)
        if term[1] in found or term[1] in (*LEVELS, "rank"):
            raise SourceError(f"{term[1]!r} can't be an axis, or is there twice.", _FIX)
        found[term[1]] = int(term[2])
    if len(found) > _MOST_AXES or math.prod(found.values()) > _MOST_RANKS:
        raise SourceError(f"{text[:40]!r} is larger than {_MOST_RANKS} ranks or {_MOST_AXES} axes.", _FIX)
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
    """Refuse a layout of another number of ranks than the job has.

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
