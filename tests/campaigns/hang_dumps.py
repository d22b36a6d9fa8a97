"""Made dumps of NCCL's flight recorder: a simulated job whose hang has a known cause.

Nothing here was recorded on a GPU. Ranks run a program of collectives and point-to-point calls for each step
(forward and backward over pipeline stages, gradients, a barrier over all). A rank's host runs ahead of its
GPU by a few calls; a GPU executes its calls in order, and a call ends when all members execute it. A fault
stops one host, one GPU or one call. Entries have the form of torch 2.13 (version 2.10 of the dump).
"""

import random
from dataclasses import dataclass, field
from typing import Any

FAULTS = ("host", "device", "late-gpu", "missing", "mismatch", "shifted", "network", "nothing")
_START_NS = 1_800_000_000 * 10**9
_DTYPES = ("Float", "BFloat16", "Int")


@dataclass(frozen=True)
class Layout:
    """Ranks as a grid of data, pipeline and tensor parallelism; tensor-parallel ranks are neighbours."""

    dp: int
    pp: int
    tp: int

    @property
    def ranks(self) -> int:
        """Return the number of ranks."""
        return self.dp * self.pp * self.tp

    def groups(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return description and members of each group by its name; names are counted over the whole job."""
        found = {"0": ("default_pg", tuple(range(self.ranks)))}

        def rank(d: int, p: int, t: int) -> int:
            return (d * self.pp + p) * self.tp + t

        def add(label: str, members: list[int]) -> None:
            if len(members) > 1:
                found[str(len(found))] = (label, tuple(members))

        for d in range(self.dp):
            for p in range(self.pp):
                add("tp", [rank(d, p, t) for t in range(self.tp)])
        for p in range(self.pp):
            for t in range(self.tp):
                add("dp", [rank(d, p, t) for d in range(self.dp)])
        for d in range(self.dp):
            for t in range(self.tp):
                add("pp", [rank(d, p, t) for p in range(self.pp)])
        return found


@dataclass
class Op:
    """One call of a rank: `group`, `name`, and for point-to-point calls the peer."""

    group: str
    name: str
    size: int = 4
    dtype: str = "Float"
    peer: int = -1
    sequence: int = 0
    state: str = "scheduled"


@dataclass
class Hang:
    """Made dumps, the fault, and the ranks that caused it; `ready` is False where dumps can't tell."""

    dumps: dict[int, dict[str, Any]]
    fault: str
    truth: tuple[int, ...]
    side: str = ""
    ready: bool = True


@dataclass
class _Rank:
    program: list[Op]
    #: Calls made, and calls that the GPU has finished; a host stops before `stop`, a GPU in `hold`.
    made: int = 0
    done: int = 0
    stop: int = 1 << 30
    hold: int = 1 << 30
    times: list[int] = field(default_factory=list)


def programs(layout: Layout, steps: int) -> dict[int, list[Op]]:
    """Return what each rank calls, with numbers as NCCL counts them."""
    groups = layout.groups()
    own: dict[int, dict[str, str]] = {rank: {} for rank in range(layout.ranks)}
    for name, (label, members) in groups.items():
        for rank in members:
            own[rank][label] = name
    found: dict[int, list[Op]] = {}
    for rank, named in own.items():
        stage = rank // layout.tp % layout.pp
        ops: list[Op] = []
        for step in range(steps):
            ops += _pass(named, stage, layout.pp, forward=True) + _pass(
                named, stage, layout.pp, forward=False
            )
            if "dp" in named:
                ops.append(Op(named["dp"], "_reduce_scatter_base", 64))
                ops.append(Op(named["dp"], "_allgather_base", 64))
            ops.append(Op("0", "all_reduce", 1 + step % 2))
        counts: dict[tuple[str, bool], int] = {}
        for op in ops:
            key = op.group, op.peer >= 0
            op.sequence = counts[key] = counts.get(key, 0) + 1
        found[rank] = ops
    return found


def _pass(named: dict[str, str], stage: int, stages: int, *, forward: bool) -> list[Op]:
    before, after = (stage - 1, stage + 1) if forward else (stage + 1, stage - 1)
    ops = []
    if "pp" in named and 0 <= before < stages:
        ops.append(Op(named["pp"], "recv", 16, peer=before))
    if "tp" in named:
        ops.append(Op(named["tp"], "all_reduce", 32))
    if "pp" in named and 0 <= after < stages:
        ops.append(Op(named["pp"], "send", 16, peer=after))
    return ops


class Simulation:
    """A job up to its hang."""

    def __init__(self, layout: Layout, rng: random.Random, *, steps: int = 6, fault: str = "nothing") -> None:
        self.fault = fault
        self.groups = layout.groups()
        self.ranks = {rank: _Rank(ops) for rank, ops in programs(layout, steps).items()}
        self.ahead = rng.choice((1, 2, 4))
        self.rank = rng.randrange(layout.ranks)
        self.truth: tuple[int, ...] = ()
        #: A call that no member finishes, and one that all but a rank finish.
        self.blocked: tuple[str, int] | None = None
        self.late: tuple[str, int] | None = None
        self._clock = _START_NS
        self._inject(rng)
        self._run()

    def _inject(self, rng: random.Random) -> None:
        victim = self.ranks[self.rank]
        at = rng.randrange(len(victim.program) // 3, len(victim.program))
        collectives = [i for i, op in enumerate(victim.program) if op.peer < 0 and i >= at]
        at = collectives[0] if collectives and self.fault not in ("host", "missing") else at
        op = victim.program[at]
        key = op.group, op.sequence
        if self.fault in ("host", "missing"):
            victim.stop, self.truth = at, (self.rank,)
        elif self.fault == "device":
            victim.hold, self.truth = at, (self.rank,)
        elif self.fault == "late-gpu":
            self.late, self.truth = key, (self.rank,)
        elif self.fault == "network":
            self.blocked = key
        elif self.fault == "mismatch":
            self.blocked = key
            self._change(op, rng)
        elif self.fault == "shifted":
            # One call is left out: the next one of the group takes its number.
            del victim.program[at]
            for later in victim.program[at:]:
                if later.group == op.group and later.peer < 0:
                    later.sequence -= 1
            self.truth = (self.rank,)

    def _change(self, op: Op, rng: random.Random) -> None:
        others = self.groups[op.group][1]
        self.truth = (self.rank,) if len(others) > 2 else ()
        what = rng.choice(("name", "size", "dtype"))
        if what == "name":
            op.name = "broadcast" if op.name == "all_reduce" else "all_reduce"
        elif what == "size":
            op.size += 1
        else:
            op.dtype = rng.choice(_DTYPES[1:])

    def _run(self) -> None:
        while self._make_calls() | self._finish_calls():
            pass

    def _make_calls(self) -> bool:
        moved = False
        for rank in self.ranks.values():
            while rank.made < min(len(rank.program), rank.stop, rank.done + self.ahead):
                rank.made += 1
                self._clock += 1_000_000
                rank.times.append(self._clock)
                moved = True
        return moved

    def _finish_calls(self) -> bool:
        heads: dict[tuple[str, int], list[int]] = {}
        moved = False
        for number, rank in self.ranks.items():
            if rank.done < min(rank.made, rank.hold):
                op = rank.program[rank.done]
                peer = self.groups[op.group][1][op.peer] if op.peer >= 0 else -1
                if peer >= 0:
                    moved |= self._exchange(number, peer)
                else:
                    heads.setdefault((op.group, op.sequence), []).append(number)
        for key, found in heads.items():
            if len(found) < len(self.groups[key[0]][1]) or key == self.blocked:
                continue
            names = {self.ranks[each].program[self.ranks[each].done].name for each in found}
            sizes = {self.ranks[each].program[self.ranks[each].done].size for each in found}
            if len(names) > 1 or len(sizes) > 1:
                continue
            for each in found:
                if key != self.late or each != self.rank:
                    self._finish(each)
                    moved = True
        return moved

    def _exchange(self, number: int, peer: int) -> bool:
        one, other = self.ranks[number], self.ranks[peer]
        if other.done >= min(other.made, other.hold):
            return False
        first, second = one.program[one.done], other.program[other.done]
        if (
            second.peer < 0
            or self.groups[second.group][1][second.peer] != number
            or first.name == second.name
        ):
            return False
        self._finish(number)
        self._finish(peer)
        return True

    def _finish(self, number: int) -> None:
        rank = self.ranks[number]
        rank.program[rank.done].state = "completed"
        rank.done += 1

    def hang(self, *, buffer: int = 2000, timing: bool = False) -> Hang:
        """Return the dumps; with `timing`, torch knows which calls a GPU has begun."""
        dumps = {}
        for number, rank in self.ranks.items():
            if self.fault == "missing" and number in self.truth:
                continue
            dumps[number] = self._dump(number, rank, buffer, timing=timing)
        side = "device" if self.fault in ("device", "late-gpu") else "host"
        is_told = self.fault != "network" and (self.fault != "device" or timing)
        return Hang(dumps, self.fault, self.truth, side if self.truth else "", is_told)

    def _dump(self, number: int, rank: _Rank, buffer: int, *, timing: bool) -> dict[str, Any]:
        own = [name for name, (_, members) in self.groups.items() if number in members]
        local = {name: index for index, name in enumerate(own)}
        status = {str(index): [0, 0] for index in local.values()}
        entries = []
        for index, op in enumerate(rank.program[: rank.made]):
            counters = status[str(local[op.group])]
            counters[0] = op.sequence
            counters[1] = op.sequence if op.state == "completed" else counters[1]
            is_begun = timing and index == rank.done and index < rank.hold
            state = "started" if is_begun else op.state
            entries.append(self._entry(number, op, index, local[op.group], rank.times[index], state))
        return {
            "version": "2.10",
            "pg_config": {
                name: {"name": name, "desc": self.groups[name][0], "ranks": str(list(self.groups[name][1]))}
                for name in own
            },
            "pg_status": {
                key: {
                    "last_enqueued_collective": enqueued,
                    "last_started_collective": -1,
                    "last_completed_collective": completed,
                }
                for key, (enqueued, completed) in status.items()
            },
            "entries": entries[-buffer:],
        }

    def _entry(self, number: int, op: Op, index: int, local: int, at: int, state: str) -> dict[str, Any]:
        is_p2p = op.peer >= 0
        name = op.name
        if is_p2p:
            own = self.groups[op.group][1].index(number)
            name = f"{op.name} {own}{'->' if op.name == 'send' else '<-'}{op.peer}"
        return {
            "frames": [
                {"name": op.name, "filename": "/x/torch/distributed/distributed_c10d.py", "line": 10},
                {"name": "train_step", "filename": "train.py", "line": 100 + index % 7},
            ],
            "record_id": index, "pg_id": local, "process_group": (op.group, self.groups[op.group][0]),
            "collective_seq_id": 0 if is_p2p else op.sequence, "p2p_seq_id": op.sequence if is_p2p else 0,
            "op_id": index, "profiling_name": f"nccl:{name}", "time_created_ns": at,
            "input_sizes": [[op.size]], "input_dtypes": [op.dtype],
            "output_sizes": [[op.size]], "output_dtypes": [op.dtype],
            "state": state, "time_discovered_started_ns": None,
            "time_discovered_completed_ns": at + 10**6 if state == "completed" else None,
            "retired": state == "completed", "timeout_ms": 600_000, "is_p2p": is_p2p,
        }  # fmt: skip


def make_hang(
    layout: Layout, seed: object, fault: str, *, buffer: int = 2000, timing: bool = False, steps: int = 6
) -> Hang:
    """Return the dumps of one simulated job."""
    rng = random.Random(repr(seed))
    return Simulation(layout, rng, steps=steps, fault=fault).hang(buffer=buffer, timing=timing)
