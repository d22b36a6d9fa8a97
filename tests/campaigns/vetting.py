"""Count how often rounds of pairs find the faulty node, link or switch, and how often they fail a good node.

A cell is a fault on a fabric at a size. It is drawn until there are enough allocations, and twenty times as
many good nodes. It is compared with two one-line rules: ``median`` (a node whose median over the survey is a
tenth below the nodes' median and more than four MADs) and ``best`` (the same for its best round).

A quarter of the cells, chosen by a checksum of their names, is held out: no rule or threshold was tuned
with them, nor with seeds below 1000.
"""

import statistics
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from allocations import Allocation, FabricNoise, bimodal, episode, periodic
from intervals import wilson

from gipfel_extension.vetting.attribution.conclude import conclude
from gipfel_extension.vetting.attribution.measurements import PairMeasurement, PairState
from gipfel_extension.vetting.attribution.rounds import next_round
from gipfel_extension.vetting.model import CheckResult, Verdict

DRAWS = 1000
GOOD_PER_DRAW = 20
MEASURED = (
    Path(__file__).resolve().parents[2] / "extension" / "gipfel_extension" / "vetting" / "attribution",
)
ACCUSED, FOUND_QUIET, FOUND, NAMED, UNDECIDED = 0.002, 0.99, 0.95, 0.80, 0.10

QUIET = FabricNoise()
FABRICS: dict[str, FabricNoise] = {
    "quiet": QUIET,
    "congested-5": FabricNoise(congestion=0.05),
    "congested-10": FabricNoise(congestion=0.10),
    "busy-rounds": FabricNoise(busy=0.10),
    "noise-5": FabricNoise(noise=0.05),
    "heavy-2": FabricNoise(noise=0.02, heavy=True),
    "heavy-5": FabricNoise(noise=0.05, heavy=True),
    "heavy-8": FabricNoise(noise=0.08, heavy=True),
    "paths-3": FabricNoise(paths=0.03),
    "paths-5": FabricNoise(paths=0.05),
}
Draw = Callable[[int, np.random.Generator, FabricNoise], Allocation]


def _no_fault(size: int, rng: np.random.Generator, fabric: FabricNoise) -> Allocation:
    return Allocation(size, rng, fabric)


def _slow(below: float, count: int = 1, *, one_way: bool = False, silent: bool = False) -> Draw:
    def draw(size: int, rng: np.random.Generator, fabric: FabricNoise) -> Allocation:
        bad = frozenset(map(int, rng.choice(size, count, replace=False)))
        return Allocation(size, rng, fabric, bad=bad, remaining=1 - below, one_way=one_way, silent=silent)

    return draw


def _intermittent(remaining: Callable[[np.random.Generator], Any]) -> Draw:
    def draw(size: int, rng: np.random.Generator, fabric: FabricNoise) -> Allocation:
        return Allocation(
            size, rng, fabric, bad=frozenset({int(rng.integers(size))}), remaining_over_time=remaining(rng)
        )

    return draw


def _link(size: int, rng: np.random.Generator, fabric: FabricNoise) -> Allocation:
    ends = frozenset(map(int, rng.choice(size, 2, replace=False)))
    return Allocation(size, rng, fabric, link=ends, remaining=0.7)


def _switch(count: int) -> Draw:
    def draw(size: int, rng: np.random.Generator, fabric: FabricNoise) -> Allocation:
        switch = tuple(count * node // size for node in range(size))
        return Allocation(
            size, rng, fabric, switch=switch, slow_switch=int(rng.integers(count)), remaining=0.7
        )

    return draw


#: Fault to how it is drawn, on which fabrics, and at which sizes.
FAULTS: dict[str, tuple[Draw, tuple[str, ...], tuple[int, ...]]] = {
    "none": (_no_fault, tuple(FABRICS), (2, 3, 4, 5, 8, 16, 33, 64, 256)),
    "slow-5": (_slow(0.05), ("quiet",), (4, 8, 16, 64)),
    "slow-10": (_slow(0.10), ("quiet",), (4, 8, 16, 64)),
    "slow-15": (
        _slow(0.15),
        ("quiet", "heavy-2", "congested-5", "congested-10", "heavy-5", "heavy-8"),
        (3, 4, 8, 16, 64, 256),
    ),
    "slow-30": (_slow(0.30), ("quiet", "congested-10"), (3, 4, 8, 16, 64)),
    "two-slow-20": (_slow(0.20, 2), ("quiet", "congested-5"), (4, 5, 8, 16, 64)),
    "one-way-20": (_slow(0.20, one_way=True), ("quiet",), (4, 8, 16)),
    "two-modes": (
        _intermittent(lambda rng: bimodal(rng, 0.4, rng.uniform(0.55, 0.85))), ("quiet",), (4, 8, 16, 64)
    ),
    "half-of-7-s": (_intermittent(lambda rng: periodic(rng, 7.3, 3.6, 0.7)), ("quiet",), (4, 8, 16, 64)),
    "episode": (_intermittent(lambda rng: episode(rng, 0.75)), ("quiet",), (4, 8, 16, 64)),
    "link": (_link, ("quiet", "congested-5"), (2, 3, 4, 5, 8, 16, 64)),
    "switch-of-2-known": (_switch(2), ("quiet",), (8, 16, 32)),
    "switch-of-2-unknown": (_switch(2), ("quiet",), (8, 16, 32)),
    "switch-of-4-known": (_switch(4), ("quiet",), (16, 64)),
    "switch-of-4-unknown": (_switch(4), ("quiet",), (16, 64)),
    "silent": (_slow(0.0, silent=True), ("quiet",), (3, 4, 8, 16)),
}  # fmt: skip


def held_out(name: str) -> bool:
    """Return whether the cell is held out: rules are not tuned with it."""
    return zlib.crc32(name.encode()) % 4 == 0


def cells(seed: int, draws: int) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return the measurement of each cell, named by fault, fabric and size."""
    return {
        f"{fault}.{fabric}.{size}": partial(measure, fault, fabric, size, seed, draws)
        for fault, (_, fabrics, sizes) in FAULTS.items()
        for fabric in fabrics
        for size in sizes
    }


def measure(fault: str, fabric: str, size: int, seed: int, draws: int) -> dict[str, Any]:
    """Count the verdicts of one cell."""
    name = f"{fault}.{fabric}.{size}"
    tally: Counter[str] = Counter()
    number = 0
    while number < draws or tally["good"] < GOOD_PER_DRAW * draws:
        rng = np.random.default_rng((seed, zlib.crc32(name.encode()), number))
        allocation = FAULTS[fault][0](size, rng, FABRICS[fabric])
        results, state = vet(allocation, known_switches="unknown" not in fault)
        _count(tally, allocation, results)
        for rule, chosen in (("median", statistics.median), ("best", max)):
            failed = failed_by_rule(state, chosen)
            tally[f"{rule} good failed"] += len(failed - allocation.bad)
            tally[f"{rule} bad failed"] += len(failed & allocation.bad)
        rounds = len({each.round for each in state.measurements})
        tally["rounds"] += rounds
        tally["most rounds"] = max(tally["most rounds"], rounds)
        number += 1
    return {
        "fault": fault, "fabric": fabric, "size": size, "allocations": number, "held out": held_out(name),
        **tally,
    }  # fmt: skip


def vet(allocation: Allocation, *, known_switches: bool) -> tuple[list[CheckResult], PairState]:
    """Run all rounds of pairs; `known_switches` is whether the topology is known."""
    names = [f"n{node:04d}" for node in range(allocation.size)]
    switches = (
        {names[node]: f"s{place}" for node, place in enumerate(allocation.switch)} if known_switches else {}
    )
    state = PairState(check="network", type="collective", nodes=tuple(names), switches=switches)
    while (planned := next_round(state)) is not None:
        pairs = [(int(pair.first[1:]), int(pair.second[1:])) for pair in planned.pairs]
        nodes = [node for pair in pairs for node in pair]
        assert len(nodes) == len(set(nodes)), "the pairs of a round are disjoint"
        measured = []
        for pair, samples in zip(planned.pairs, allocation.measure(pairs, planned.number), strict=True):
            answered = not np.isnan(samples).any()
            silent = tuple(name for name in (pair.first, pair.second) if int(name[1:]) in allocation.bad)
            measured.append(
                PairMeasurement(
                    round=planned.number, first=pair.first, second=pair.second, role=pair.role,
                    samples=tuple(map(float, samples)) if answered else (),
                    error="" if answered else "No answer.", accused=() if answered else silent,
                )
            )  # fmt: skip
        state = state.with_round(tuple(measured))
    return conclude(state), state


def _count(tally: Counter[str], allocation: Allocation, results: list[CheckResult]) -> None:
    for each in results:
        if not each.node:
            named = {int(name[1:]) for name in each.subject.split("|") if name.startswith("n")}
            if each.verdict is Verdict.FAIL:
                tally["links right" if allocation.link and named == allocation.link else "links wrong"] += 1
            continue
        kind = "bad" if int(each.node[1:]) in allocation.bad else "good"
        tally[kind] += 1
        tally[f"{kind} {each.verdict}"] += 1
    owners = [each for each in results if each.node and int(each.node[1:]) not in allocation.bad]
    tally["link blamed"] += sum(
        each.verdict is Verdict.FAIL for each in owners if int(each.node[1:]) in allocation.link
    )
    tally["allocations with a good node failed"] += any(each.verdict is Verdict.FAIL for each in owners)
    on_switch = [each for each in results if "switch" in each.reason and each.verdict is not Verdict.PASS]
    tally["switch named"] += bool(on_switch)


def failed_by_rule(state: PairState, chosen: Callable[[list[float]], float]) -> set[int]:
    """Return the nodes that a one-line rule fails; `chosen` reduces a node's medians to one number."""
    medians: dict[int, list[float]] = {}
    for each in state.measurements:
        if each.role == "survey" and each.samples:
            for name in (each.first, each.second):
                medians.setdefault(int(name[1:]), []).append(statistics.median(each.samples))
    measured = {node: chosen(own) for node, own in medians.items()}
    if not measured:
        return set()
    middle = statistics.median(measured.values())
    mad = statistics.median(abs(value - middle) for value in measured.values())
    return {node for node, value in measured.items() if value < 0.9 * middle and middle - value > 4 * mad}


def line(document: Mapping[str, Any]) -> str:
    """Return a cell's counts as one line."""
    good, bad = document["good"], document.get("bad", 0)
    failed = document.get("good fail", 0)
    text = (
        f"good failed {failed}/{good} ({wilson(failed, good)[1]:.2%})"
        f" inc {document.get('good inconclusive', 0) / max(1, good):.1%}"
        f" rounds {document['rounds'] / document['allocations']:.1f}/{document['most rounds']}"
    )
    if bad:
        verdicts = ("fail", "degraded", "inconclusive", "pass")
        text += " · bad " + " ".join(
            f"{each} {document.get(f'bad {each}', 0) / bad:.1%}" for each in verdicts
        )
    links = document.get("links right", 0), document.get("links wrong", 0)
    if any(links):
        right, wrong = (count / document["allocations"] for count in links)
        text += f" · links right {right:.1%} wrong {wrong:.2%}"
    if document.get("switch named"):
        text += f" · switch named {document['switch named'] / document['allocations']:.1%}"
    rules = (f"{rule} {document[f'{rule} good failed'] / max(1, good):.2%}" for rule in ("median", "best"))
    return f"{text} · rules fail good {' '.join(rules)}"


def summary(documents: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each cell and each bound."""
    rows = []
    for name, each in documents.items():
        rows += [row | {"held out": each["held out"]} for row in _rows(name, each)]
    return rows


def _rows(name: str, each: Mapping[str, Any]) -> list[dict[str, Any]]:
    fault, size, good, bad = each["fault"], each["size"], each["good"], each.get("bad", 0)
    fabric = FABRICS[each["fabric"]]
    rounds = round(each["rounds"] / each["allocations"], 1)
    failed = each.get("good fail", 0)
    rows = []

    def row(title: str, count: int, of: int, peer: int, bound: float | None, *, enough: bool) -> None:
        interval, share = wilson(count, of), count / of
        # Cells without a bound are shown too.
        bound = (0.0 if enough else 1.0) if bound is None else bound
        holds = share >= bound if enough else share <= bound
        if bound == ACCUSED:
            holds = interval[1] <= bound
        rows.append(
            {
                "name": f"vetting: {title}, {name}", "ours": share, "peer": peer / of, "unit": "share",
                "ratio": share * of / peer if peer else 0.0, "bound": bound, "holds": holds,
                "at least": enough, "interval": interval, "of": of, "rounds": rounds,
            }
        )  # fmt: skip

    calm = fault == "none" and fabric.paths <= 0.01
    row("good nodes failed", failed, good, each["best good failed"], ACCUSED if calm else None, enough=False)
    noise = fabric.noise <= 0.05 and fabric.congestion <= 0.05 and size >= 4 and calm
    undecided = each.get("good inconclusive", 0)
    row("good nodes inconclusive", undecided, good, 0, UNDECIDED if noise else None, enough=False)
    if bad:
        bound = None
        if fault == "slow-15" and fabric.noise <= 0.02 and not fabric.congestion and size >= 4:
            bound = FOUND_QUIET
        elif fault == "slow-15" and fabric.congestion <= 0.05 and fabric.noise <= 0.05 and size >= 8:
            bound = FOUND
        row("bad nodes failed", each.get("bad fail", 0), bad, each["best bad failed"], bound, enough=True)
    if fault == "link":
        named, of = each.get("links right", 0), each["allocations"]
        row("links named", named, of, 0, NAMED if 4 <= size <= 16 else None, enough=True)
        row("ends of a slow link failed", each.get("link blamed", 0), 2 * of, 0, 0.0, enough=False)
    return rows
