"""From slow ranks upward: the GPU, NIC, node or switch that they share."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from .robust import Floats, median
from .roles import LEVELS, Roles
from .slow_periods import Rule, SlowPeriod, find_slow

#: A unit is at fault where so many of its ranks are slow, and at most so many of the others.
_INSIDE, _OUTSIDE = 0.8, 0.1
#: A unit that holds this share of a group of peers moves the group's median.
_LARGE_SHARE = 0.25


@dataclass(frozen=True)
class Shared:
    """Slow ranks and what they share.

    Parameters
    ----------
    unit
        As ``"node nid001"``; None where they share nothing that is known.
    """

    ranks: tuple[int, ...]
    unit: str | None


def shared_units(slow: Collection[int], judged: Collection[int], roles: Roles) -> list[Shared]:
    """Return slow ranks by the largest unit that explains them, then those that stand alone.

    A unit explains its ranks where there are several units of its level, it holds several ranks, at least
    80 % of them are slow, and at most 10 % of the ranks outside such units are.
    """
    left, found = set(slow), []
    for level in LEVELS[:-1]:
        units = roles.units(level, judged)
        if len(units) < 2:
            continue
        full = {
            name: own
            for name, own in units.items()
            if len(own) > 1 and len(left.intersection(own)) >= _INSIDE * len(own)
        }
        inside = {rank for own in full.values() for rank in own}
        outside = set(judged) - inside
        if len(left & outside) > _OUTSIDE * len(outside) or not outside:
            continue
        for name, own in sorted(full.items()):
            # A switch of one node, as far as this job goes, is not told from the node.
            if level == "switch" and len(roles.units("node", own)) == 1:
                continue
            found.append(Shared(tuple(sorted(left.intersection(own))), f"{level} {name}"))
            left -= set(own)
    alone = [Shared((rank,), _own_unit(rank, judged, roles)) for rank in sorted(left)]
    return [*found, *alone]


def _own_unit(rank: int, judged: Collection[int], roles: Roles) -> str | None:
    """Return the smallest known unit that is this rank's alone."""
    places = roles.places.get(rank, {})
    for level in ("gpu", "nic", "node"):
        if level in places and roles.units(level, judged)[places[level]] == [rank]:
            return f"{level} {places[level]}"
    return None


@dataclass(frozen=True)
class SlowUnit:
    """A unit whose ranks are slow beside their peers elsewhere."""

    unit: str
    ranks: tuple[int, ...]
    period: SlowPeriod


def find_slow_units(log_work: Floats, ranks: Sequence[int], roles: Roles, rule: Rule) -> list[SlowUnit]:
    """Return units that are slow as a whole, among those that hold a large part of a group of peers.

    Where half of a group is on one slow node, the group's median lies between both halves and nobody stands
    out; so the ranks of such a unit are compared with their peers on other units alone.
    """
    row = {rank: index for index, rank in enumerate(ranks)}
    groups = [set(group) for group in roles.groups(ranks)]
    for level in ("switch", "node"):
        units = roles.units(level, ranks)
        large = {
            name: own
            for name, own in units.items()
            if len(own) > 1
            and len(units) > 1
            and any(len(group.intersection(own)) >= _LARGE_SHARE * len(group) for group in groups)
            and not (level == "switch" and len(roles.units("node", own)) == 1)
        }
        names, rows, by_rank = [], [], []
        for name, own in sorted(large.items()):
            excess = _beside_others(log_work, own, groups, row)
            if excess is not None:
                names.append(name)
                rows.append(median(excess, axis=0))
                by_rank.append(excess)
        if not rows:
            continue
        found = []
        for period in find_slow(np.array(rows), rule, alike=False).periods:
            part = by_rank[period.row][:, period.first : period.last + 1]
            if (np.expm1(median(part, axis=1)) > period.excess / 2).mean() >= _INSIDE:
                name = names[period.row]
                found.append(SlowUnit(f"{level} {name}", tuple(sorted(large[name])), period))
        if found:
            return found
    return []


def _beside_others(
    log_work: Floats, own: Sequence[int], groups: Sequence[set[int]], row: dict[int, int]
) -> Floats | None:
    """Return the excess of a unit's ranks over their peers on other units; None without enough of these."""
    parts = []
    for group in groups:
        inside, outside = group.intersection(own), group.difference(own)
        if inside and len(outside) >= 2:
            usual = median(log_work[[row[rank] for rank in outside]], axis=0)
            parts.append(log_work[[row[rank] for rank in sorted(inside)]] - usual)
    return np.concatenate(parts) if parts else None
