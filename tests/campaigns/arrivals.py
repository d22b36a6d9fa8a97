"""Count how often ranks that call collectives late are named, with clocks that differ and drift.

A cell is a fault in one family of noise; jobs have 8 to 64 ranks on 2 to 16 nodes, alone or with
tensor-parallel pairs, and 24 to 200 steps. Each step's work varies; a collective ends when all ranks have
called, and each process sees the end after the delay of its observer, by the clock of its node. The limits
were set before any of it was run; `HELD_OUT` were first run after the code was final, and no limit
was changed after any result.

Right is the rank with the fault, or all ranks of the node ("part": some of them); "cannot tell" or nobody is
a miss; a name of any other rank is wrong. Of a healthy job every name is wrong.
"""

import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from intervals import wilson

from gipfel_extension.diagnosis.arrivals import GroupArrivals, find_late_ranks
from gipfel_extension.diagnosis.roles import Roles

DRAWS = 200
MEASURED = (Path(__file__).resolve().parents[2] / "extension" / "gipfel_extension" / "diagnosis",)
TRIED = ("polled", "lasting")
HELD_OUT = ("plain", "watchdog", "bursts")
#: Faults that must not name a rank, and those that must.
HEALTHY = ("nothing", "clock_step", "late_observer", "uneven_samples")
FAULTS = ("rank_10", "rank_20", "node_20")
WRONG = 0.001


def cells(seed: int, draws: int) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return the measurement of each cell."""
    return {
        f"{'held-out' if family in HELD_OUT else 'tried'}.{family}.{fault}": partial(
            measure, family, fault, seed=seed, draws=draws
        )
        for family in (*TRIED, *HELD_OUT)
        for fault in (*HEALTHY, *FAULTS)
    }


def measure(family: str, fault: str, *, seed: int, draws: int) -> dict[str, Any]:
    """Return the answers on random jobs, counted."""
    tally: Counter[str] = Counter()
    for draw in range(draws):
        rng = np.random.default_rng((seed, zlib.crc32(f"{family} {fault}".encode()), draw))
        groups, nodes, roles, truth = make_job(rng, family, fault)
        found = find_late_ranks(groups, nodes, roles)
        named = {each.rank for each in found.late}
        if named:
            tally["right" if named == truth else "part" if named < truth else "wrong"] += 1
        else:
            tally["cannot_tell" if found.reasons else "nobody"] += 1
    return {"family": family, "fault": fault, **tally}


def make_job(
    rng: np.random.Generator, family: str, fault: str
) -> tuple[list[GroupArrivals], dict[int, str], Roles, set[int]]:
    """Return the groups, the node of each rank, their roles, and the ranks that call late."""
    per_node, tp = int(rng.choice([1, 2, 4, 8])), int(rng.choice([1, 2]))
    count = int(rng.choice([3, 4, 8, 16])) if fault == "node_20" else int(rng.choice([2, 4, 8]))
    ranks = min(64, max(8, count * per_node))
    node = np.arange(ranks) // per_node
    steps, step_s = int(rng.integers(24, 200)), float(rng.uniform(0.2, 2.0))
    noise = float(rng.uniform(0.01, 0.05))
    work = step_s * (1 + noise * _noise(rng, family, steps, ranks))
    truth: set[int] = set()
    if fault.startswith("rank"):
        slow = int(rng.integers(ranks))
        work[:, slow] += step_s * float(fault[5:]) / 100
        truth = {slow}
    elif fault == "node_20":
        slow = int(rng.integers(node[-1] + 1))
        work[:, node == slow] += 0.2 * step_s
        truth = {int(rank) for rank in np.flatnonzero(node == slow)}
    elif fault == "uneven_samples":
        work *= rng.lognormal(0, 0.15, work.shape)
    # Tensor-parallel pairs wait for each other before all ranks meet in the groups of data parallelism.
    created_tp = np.empty_like(work)
    created_dp = np.empty_like(work)
    ended_tp, ended_dp = np.empty_like(work), np.empty_like(work)
    now = 0.0
    for step in range(steps):
        created_tp[step] = now + work[step] * 0.5
        met = created_tp[step].reshape(-1, tp).max(axis=1).repeat(tp) + 0.001 if tp > 1 else created_tp[step]
        ended_tp[step] = met
        created_dp[step] = met + work[step] * 0.5
        now = float(created_dp[step].max()) + float(rng.uniform(0.005, 0.05))
        ended_dp[step] = now
    seen = [each + _observed(rng, family, fault, each.shape, node) for each in (ended_tp, ended_dp)]
    offset, drift = rng.normal(0, rng.choice([0.002, 0.1, 5.0]), ranks), rng.normal(0, 2e-5, ranks)
    made = []
    for times in (created_tp, seen[0], created_dp, seen[1]):
        own = times + offset[node] + drift[node] * times
        if fault == "clock_step":
            own = own + 0.2 * ((node == 0) & (times > now / 2))
        made.append(own + 1.8e9)
    everybody = np.arange(ranks)
    groups = []
    if tp > 1:
        for first in range(0, ranks, tp):
            own = everybody[first : first + tp]
            groups.append(GroupArrivals("tp", _ints(own), made[0][:, own], made[1][:, own]))
    for part in range(tp):
        own = everybody[part::tp]
        groups.append(GroupArrivals("dp", _ints(own), made[2][:, own], made[3][:, own], tp == 1))
    roles = Roles({rank: {"dp": rank // tp, "tp": rank % tp} for rank in range(ranks)}, {})
    return groups, {rank: f"n{node[rank]}" for rank in range(ranks)}, roles, truth


def _ints(values: Any) -> tuple[int, ...]:
    return tuple(int(each) for each in values)


def _noise(rng: np.random.Generator, family: str, steps: int, ranks: int) -> Any:
    if family == "lasting":
        found = rng.normal(0, 1, (steps, ranks))
        for step in range(1, steps):
            found[step] = 0.7 * found[step - 1] + 0.714 * found[step]
        return found
    if family == "bursts":
        # Each rank is disturbed for a while, a few times in a run: garbage collection, other users.
        found = rng.gumbel(0, 0.6, (steps, ranks))
        for rank in range(ranks):
            for begin in rng.integers(0, steps, rng.poisson(1.0)):
                found[begin : begin + int(rng.geometric(0.2)), rank] += rng.exponential(4.0)
        return found
    if family == "watchdog":
        return rng.standard_t(3, (steps, ranks)) * 0.6
    return rng.normal(0, 1, (steps, ranks))


def _observed(rng: np.random.Generator, family: str, fault: str, shape: tuple[int, int], node: Any) -> Any:
    """Return the delays with which processes see the ends; NCCL's watchdog looks every 100 ms."""
    if family in ("polled", "watchdog"):
        delay = rng.uniform(0, 0.1, shape)
        if family == "watchdog":
            # It is scheduled late at times.
            delay += rng.exponential(0.02, shape) * (rng.random(shape) < 0.3)
    else:
        delay = rng.exponential(0.002, shape)
    if fault == "late_observer":
        delay = delay + 0.08 * (node == node[-1])
    return delay


def line(document: Mapping[str, Any]) -> str:
    """Return one cell in a line."""
    return " ".join(f"{key} {value}" for key, value in document.items())


def summary(documents: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the share of wrong names over all cells, and of named ranks for each fault."""
    rows = []
    for which in ("tried", "held-out"):
        cells_of = [each for name, each in documents.items() if name.startswith(which)]
        total = sum(each.get(key, 0) for each in cells_of for key in _ANSWERS)
        wrong = sum(each.get("wrong", 0) for each in cells_of)
        if total:
            rows.append(_row(f"arrivals.{which}.wrong", wrong, total, WRONG, holds=wrong <= WRONG * total))
        for fault in FAULTS:
            own = [each for each in cells_of if each["fault"] == fault]
            total = sum(each.get(key, 0) for each in own for key in _ANSWERS)
            right = sum(each.get("right", 0) for each in own)
            if total:
                rows.append(_row(f"arrivals.{which}.{fault}.named", right, total, None, holds=True))
    return rows


_ANSWERS = ("right", "part", "wrong", "cannot_tell", "nobody")


def _row(name: str, count: int, total: int, bound: float | None, *, holds: bool) -> dict[str, Any]:
    return {
        "name": name,
        "ours": count / total,
        "peer": None,
        "unit": "share",
        "count": count,
        "of": total,
        "interval": list(wilson(count, total)),
        "bound": bound,
        "holds": holds,
    }
