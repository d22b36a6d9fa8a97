"""Hangs in other layouts, with further faults, and with noise of the dumps.

Layouts are of any number of ranks, and programs of other lengths; two hosts may stop, a rank may never begin
or leave a step early, and a link between two stages may fail. Noise is what a directory of a real job has:
clocks that differ, ring buffers of all sizes, files that were lost, calls without stacks, and dumps of
releases without ``pg_status``.

After twelve draws of each noise in `SEEN_NOISE`, two rules were changed: several ranks without a dump, and
ranks with open calls beside a GPU that is behind. `NOISE` was written after that, and no rule was changed by
what it shows.
"""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hang_dumps import FAULTS, Hang, Layout, Simulation

LATER_FAULTS = (*FAULTS, "two", "never-began", "short", "link")
_MAX_LOST = 0.15


class LaterSimulation(Simulation):
    """A job with one of the further faults; `link` is the pair of ranks whose calls never end."""

    def _inject(self, rng: random.Random) -> None:
        self.link: frozenset[int] = frozenset()
        program = self.ranks[self.rank].program
        if self.fault == "two":
            for rank in rng.sample(sorted(self.ranks), 2):
                own = self.ranks[rank]
                own.stop = rng.randrange(len(own.program) // 4, len(own.program))
        elif self.fault == "never-began":
            self.ranks[self.rank].stop = 0
            self.truth = (self.rank,)
        elif self.fault == "short":
            ends = [at + 1 for at, op in enumerate(program) if op.group == "0"]
            self.ranks[self.rank].stop = rng.choice(ends[:-1])
            self.truth = (self.rank,)
        elif self.fault == "link":
            peers = [self.groups[op.group][1][op.peer] for op in program[len(program) // 3 :] if op.peer >= 0]
            self.link = frozenset((self.rank, rng.choice(peers))) if peers else frozenset()
        else:
            super()._inject(rng)

    def _run(self) -> None:
        super()._run()
        if self.fault == "two":
            # A rank that others hold before its own stop is none of the causes.
            self.truth = tuple(sorted(rank for rank, own in self.ranks.items() if own.made == own.stop))

    def _exchange(self, number: int, peer: int) -> bool:
        late = self.ranks[number].done >= len(self.ranks[number].program) // 3
        if late and {number, peer} == self.link:
            return False
        return super()._exchange(number, peer)

    def hang(self, *, buffer: int = 2000, timing: bool = False) -> Hang:
        """Return the dumps; a link that fails, or was never used, can't be told from them."""
        found = super().hang(buffer=buffer, timing=timing)
        if self.fault == "link":
            found.fault = "network" if self.link else "nothing"
            found.ready = False
        return found


def draw_layout(rng: random.Random) -> Layout:
    """Return a layout of 3 to 60 ranks, powers of two or not."""
    while True:
        layout = Layout(rng.randint(1, 6), rng.randint(1, 4), rng.randint(1, 4))
        if 3 <= layout.ranks <= 60:
            return layout


def plain(hang: Hang, rng: random.Random) -> Hang:
    """Dumps as they were written."""
    return hang


def clocks(hang: Hang, rng: random.Random) -> Hang:
    """Clocks of ranks are up to 0.4 s apart, and calls have no stacks."""
    for raw in hang.dumps.values():
        shift = int(rng.uniform(-0.2, 0.2) * 1e9)
        for entry in raw["entries"]:
            entry["frames"] = []
            entry["time_created_ns"] += shift
    return hang


def rings(hang: Hang, rng: random.Random) -> Hang:
    """Ring buffers hold 10 to 60 calls, another number on each rank, and there is no ``pg_status``."""
    for raw in hang.dumps.values():
        raw["entries"] = raw["entries"][-rng.randint(10, 60) :]
        del raw["pg_status"]
    return hang


def lost(hang: Hang, rng: random.Random) -> Hang:
    """Files of up to 15 % of the ranks that caused nothing were lost, at least one."""
    innocent = sorted(set(hang.dumps) - set(hang.truth))
    count = min(len(innocent) - 1, max(1, int(len(hang.dumps) * rng.uniform(0, _MAX_LOST))))
    gone = set(rng.sample(innocent, max(count, 0)))
    return replace(hang, dumps={rank: raw for rank, raw in hang.dumps.items() if rank not in gone})


def busy(hang: Hang, rng: random.Random) -> Hang:
    """Ranks have made other numbers of calls in a group of their own, between the others."""
    for rank, raw in hang.dumps.items():
        label = f"solo{rank}"
        name = str(1000 + rank)
        raw["pg_config"][name] = {"name": name, "desc": label, "ranks": f"[{rank}]"}
        found: list[dict[str, Any]] = []
        number = 0
        for entry in raw["entries"]:
            if rng.random() < 0.3:
                number += 1
                own = {"process_group": (name, label), "pg_id": 99, "collective_seq_id": number}
                state = {"state": "completed", "retired": True, "is_p2p": False}
                found.append({**entry, **own, **state, "p2p_seq_id": 0, "profiling_name": "nccl:all_reduce"})
            found.append(entry)
        raw["entries"] = [{**entry, "record_id": at} for at, entry in enumerate(found)]
        counters = {"last_enqueued_collective": number, "last_completed_collective": number}
        raw["pg_status"]["99"] = {**counters, "last_started_collective": -1}
    return hang


def as_json(hang: Hang, rng: random.Random) -> Hang:
    """Half of the dumps went through JSON, and their entries lack times, stacks or a timeout."""
    for rank, raw in hang.dumps.items():
        if rng.random() < 0.5:
            dropped = rng.choice(("time_created_ns", "frames", "timeout_ms"))
            raw["entries"] = [{k: v for k, v in each.items() if k != dropped} for each in raw["entries"]]
            hang.dumps[rank] = json.loads(json.dumps(raw))
    return hang


SEEN_NOISE: dict[str, Callable[[Hang, random.Random], Hang]] = {
    "plain": plain, "clocks": clocks, "rings": rings, "lost": lost,
}  # fmt: skip
NOISE: dict[str, Callable[[Hang, random.Random], Hang]] = {"busy": busy, "json": as_json}


def make_later_hang(seed: object, fault: str, noise: str) -> Hang:
    """Return the noisy dumps of one simulated job, as one draw of `seed`."""
    rng = random.Random(repr(seed))
    simulation = LaterSimulation(draw_layout(rng), rng, steps=rng.randint(3, 9), fault=fault)
    hang: Any = simulation.hang(buffer=2000, timing=rng.random() < 0.5)
    return (SEEN_NOISE | NOISE)[noise](hang, rng)
