"""Late ranks from the times at which ranks call collectives, with the clocks of nodes corrected.

All members of a synchronizing collective end it at the same time, so the difference between the recorded end
times on two nodes is the difference between their clocks, plus delays of the observers that record the ends.
Offset and drift of each clock are fitted to these differences over many collectives, and subtracted from the
times of the calls. A rank is late if it then calls after its peers in most of the collectives.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .roles import Roles
from .verdict import named

Times = npt.NDArray[np.float64]

#: Fewest collectives, and fewest members of a group.
LEAST_CALLS, LEAST_RANKS = 20, 4
#: Smallest delay that is reported, in seconds.
_LEAST_S = 0.005
#: Standard errors; chosen on simulations (`tests/campaigns/arrivals.py`), with noise that lasts for several
#: steps.
_ERRORS = 6.0
#: Least share of the collectives in which a late rank is behind its peers, and the largest share of ranks
#: that can be called late.
_MOST_CALLS, _MOST_LATE = 0.8, 0.2
_NORMAL = 1.4826
_QUARTERS = 4


@dataclass(frozen=True)
class GroupArrivals:
    """Times of one process group's synchronizing collectives in seconds, one row for each collective.

    Parameters
    ----------
    created
        When each rank called, by its own clock.
    ended
        When each rank's process saw the end, by its own clock; NaN if not recorded.
    is_default
        Whether it is the group of all ranks, whatever their roles.
    """

    label: str
    ranks: tuple[int, ...]
    created: Times
    ended: Times
    is_default: bool = False


@dataclass(frozen=True)
class LateRank:
    """A rank that calls after its peers: median delay in seconds over `calls` collectives of a group."""

    rank: int
    late_s: float
    calls: int
    group: str
    unit: str | None = None


@dataclass(frozen=True)
class LateRanks:
    """Late ranks, or the reasons why they can't be told; both are empty if no rank is late."""

    late: tuple[LateRank, ...] = ()
    reasons: tuple[str, ...] = ()


@dataclass
class _Measured:
    """Delays of one group: a row for each collective, and the standard error of each rank's median."""

    group: GroupArrivals
    clocks: tuple[str, ...]
    delays: Times
    errors: Times
    medians: Times = field(init=False)

    def __post_init__(self) -> None:
        self.medians = np.median(self.delays, axis=0)

    def of(self, rank: int) -> float:
        return float(self.medians[self.group.ranks.index(rank)])


def find_late_ranks(
    groups: Sequence[GroupArrivals],
    nodes: Mapping[int, str],
    roles: Roles | None = None,
    *,
    has_p2p: bool = False,
) -> LateRanks:
    """Return the ranks that call after their peers in most collectives of a group.

    Parameters
    ----------
    nodes
        Node of each rank. Ranks whose node is unknown are taken to have clocks of their own.
    roles
        If known, only ranks of equal role are compared. Otherwise only groups that are the job's only one.
    has_p2p
        Whether ranks also wait for each other in point-to-point calls, which pass delays on.
    """
    reasons: list[str] = []
    measured: list[_Measured] = []
    for group in groups:
        measured += _comparable(group, nodes, reasons)
    peers = [each for each in measured if _are_peers(each.group, groups, roles)]
    late: dict[int, LateRank] = {}
    for each in peers:
        if len(each.group.ranks) < LEAST_RANKS:
            continue
        found, reason = _late_in(each)
        if reason:
            reasons.append(reason)
        for rank in found:
            if not _is_excused(rank.rank, each, measured):
                late.setdefault(rank.rank, rank)
    if has_p2p and len(late) > 1:
        ranks = named(tuple(sorted(late)))
        reasons.append(f"{ranks} call late, and one may wait for another in point-to-point calls")
        late = {}
    if not late and not reasons and not any(len(each.group.ranks) >= LEAST_RANKS for each in peers):
        reasons.append(_no_group(groups, measured))
    ordered = sorted(late.values(), key=lambda each: -each.late_s)
    return LateRanks(tuple(ordered), () if late else tuple(dict.fromkeys(reasons)))


def _no_group(groups: Sequence[GroupArrivals], measured: Sequence[_Measured]) -> str:
    most = max((len(each.created) for each in groups), default=0)
    if most < LEAST_CALLS:
        return f"at most {most} collectives of a group were recorded by all members; {LEAST_CALLS} are needed"
    if max((len(each.group.ranks) for each in measured), default=0) < LEAST_RANKS:
        return f"no group of {LEAST_RANKS} ranks has clocks that can be compared"
    return "the roles of ranks are unknown, and a stage with more work looks the same"


def _are_peers(group: GroupArrivals, groups: Sequence[GroupArrivals], roles: Roles | None) -> bool:
    """Return whether the members of a group have equal roles."""
    if roles is not None and roles.known:
        own = [roles.coordinates.get(rank) for rank in group.ranks]
        if any(each is None for each in own):
            return False
        shared = [{axis: n for axis, n in each.items() if axis not in ("dp", "tp")} for each in own if each]
        return all(each == shared[0] for each in shared)
    return group.is_default and all(each.is_default for each in groups)


def _comparable(group: GroupArrivals, nodes: Mapping[int, str], reasons: list[str]) -> list[_Measured]:
    """Return the delays of a group; those within each node where clocks can't be compared."""
    if len(group.created) < LEAST_CALLS or len(group.ranks) < 2:
        return []
    clocks = tuple(nodes.get(rank) or f"rank {rank}" for rank in group.ranks)
    if len(set(clocks)) == 1:
        return [_measure(group, clocks, group.created, 0.0)]
    ended = np.isfinite(group.ended).all(axis=1)
    if ended.sum() >= LEAST_CALLS:
        created, errors = _correct_clocks(group.created[ended], group.ended[ended], clocks)
        return [_measure(group, clocks, created, errors)]
    found = []
    for clock in dict.fromkeys(clocks):
        own = [column for column, each in enumerate(clocks) if each == clock]
        if len(own) >= LEAST_RANKS:
            ranks = tuple(group.ranks[column] for column in own)
            created = group.created[:, own]
            part = GroupArrivals(group.label, ranks, created, group.ended[:, own], group.is_default)
            found.append(_measure(part, (clock,) * len(own), created, 0.0))
    if not found:
        reasons.append("the times at which collectives end, which correct the clocks, are not recorded")
    return found


def _correct_clocks(created: Times, ended: Times, clocks: Sequence[str]) -> tuple[Times, Times]:
    """Return the call times by a common clock, and the standard error of each rank's clock."""
    names = list(dict.fromkeys(clocks))
    column = np.array([names.index(each) for each in clocks])
    start = float(ended.min())
    ends = ended - start
    by_clock = np.column_stack([np.median(ends[:, column == n], axis=1) for n in range(len(names))])
    when = by_clock[:, 0] - by_clock[0, 0]
    offsets = np.zeros_like(by_clock)
    # The first clock is the reference at first, then the median of all corrected clocks.
    reference = by_clock[:, 0]
    for _ in range(3):
        offsets = np.column_stack([_line(when, by_clock[:, n] - reference) for n in range(len(names))])
        reference = np.median(by_clock - offsets, axis=1)
    rest = by_clock - offsets - reference[:, None]
    errors = 1.2533 * _scale(rest) / np.sqrt(len(rest))
    return created - start - offsets[:, column], errors[column]


def _line(when: Times, values: Times) -> Times:
    """Return a robust line through values, of which half may be wrong: Siegel's, by halves of the calls."""
    half = len(when) // 2
    steps = when[half:] - when[: len(when) - half]
    rises = values[half:] - values[: len(values) - half]
    usable = steps > 0
    slope = float(np.median(rises[usable] / steps[usable])) if usable.any() else 0.0
    flat = values - slope * when
    return slope * when + float(np.median(flat))


def _scale(values: Times) -> Times:
    middle = np.median(values, axis=0)
    found: Times = _NORMAL * np.median(np.abs(values - middle), axis=0)
    return found


def _measure(
    group: GroupArrivals, clocks: tuple[str, ...], created: Times, clock_errors: Times | float
) -> _Measured:
    delays = np.empty_like(created)
    count = created.shape[1]
    if count <= 64:
        for column in range(count):
            delays[:, column] = created[:, column] - np.median(np.delete(created, column, axis=1), axis=1)
    else:
        delays = created - np.median(created, axis=1)[:, None]
    scale = _scale(delays)
    # Noise that lasts: neighbouring collectives hold less information than separate ones.
    middle = delays - np.median(delays, axis=0)
    clipped = np.clip(middle, -3 * scale, 3 * scale)
    power = (clipped**2).mean(axis=0)
    lag = np.divide((clipped[1:] * clipped[:-1]).mean(axis=0), power, out=np.zeros(count), where=power > 0)
    lag = np.clip(np.maximum(lag, np.median(lag)), 0.0, 0.9)
    own = np.maximum(scale, np.median(scale)) * 1.2533 / np.sqrt(len(delays)) * np.sqrt((1 + lag) / (1 - lag))
    return _Measured(group, clocks, delays, np.sqrt(own**2 + np.square(clock_errors)))


def _late_in(each: _Measured) -> tuple[list[LateRank], str]:
    """Return the late ranks of one group, or why they can't be told."""
    medians, ranks, clocks = each.medians, each.group.ranks, each.clocks
    spread = np.array([_scale(np.delete(medians, column)) for column in range(len(ranks))])
    limit = np.maximum(_LEAST_S, _ERRORS * np.sqrt(each.errors**2 + np.square(spread)))
    behind = (each.delays > 0).mean(axis=0) >= _MOST_CALLS
    quarters = np.array([np.median(part, axis=0) for part in np.array_split(each.delays, _QUARTERS)])
    lasting = (quarters > medians / 2).all(axis=0)
    late = np.flatnonzero((medians > limit) & behind & lasting)
    if not len(late):
        return [], ""
    least = float(medians[late].min())
    others = np.delete(np.arange(len(ranks)), late)
    names = named(tuple(ranks[column] for column in late))
    group = each.group.label
    if not len(others) or float(np.abs(medians[others]).max()) > least / 2:
        return [], f"{names} call late in {group}, and others that are not as late differ by half as much"
    unit, reason = _unit(late, clocks)
    if reason:
        return [], f"{names} call late in {group}, and {reason}"
    if unit is None and len(late) > max(1, int(_MOST_LATE * len(ranks))):
        return [], f"{names}, many of {len(ranks)} ranks, call late in {group}"
    return [
        LateRank(ranks[column], float(medians[column]), len(each.delays), group, unit) for column in late
    ], ""


def _unit(late: npt.NDArray[np.intp], clocks: Sequence[str]) -> tuple[str | None, str]:
    """Return the node that the late ranks share, or why their clock may be wrong instead."""
    all_of = {clock: [n for n, each in enumerate(clocks) if each == clock] for clock in set(clocks)}
    whole = [clock for clock, members in all_of.items() if set(members) <= set(late)]
    if not whole:
        return None, ""
    if len(all_of) - len(whole) < (2 if any(len(all_of[each]) > 1 for each in whole) else 3):
        return None, "too few other nodes show whether their clock is wrong instead"
    is_node = len(whole) == 1 and len(all_of[whole[0]]) > 1 and len(all_of[whole[0]]) == len(late)
    return (f"node {whole[0]}" if is_node else None), ""


def _is_excused(rank: int, each: _Measured, measured: Sequence[_Measured]) -> bool:
    """Return whether the rank waited in another group for a rank that called later there."""
    late_s = each.of(rank)
    for other in measured:
        if other is each or rank not in other.group.ranks or set(other.group.ranks) == set(each.group.ranks):
            continue
        if float(other.medians.max()) - other.of(rank) > late_s / 2:
            return True
    return False
