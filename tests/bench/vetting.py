"""Simulated allocations with bad nodes: found, accused, rounds; beside one all-reduce with a fixed threshold.

The peer is vetnode's way: every rank of a collective gets the same figure, so that a bad node takes all
others along. A node is bad that is at least 10 % below healthy ones, or has two modes, in most of the test;
nodes 4 to 10 % below are counted apart. Prints rows as JSON. The seeds here were not used to choose any
constant.
"""

import json
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "extension"), str(ROOT / "extension"), str(ROOT / "spawner")]

from vetting_simulator import HEALTHY, Allocation  # noqa: E402 - found through the path above

#: Thresholds in circulation are half of what healthy nodes reach; here nine tenths, in the peer's favour.
PEER_THRESHOLD = 0.9 * HEALTHY
#: Nodes and how many allocations of them are drawn.
SIZES = ((8, 150), (16, 80), (32, 60), (64, 40), (128, 30), (256, 60), (512, 6), (1024, 3))
SHARES = (0.0, 0.01, 0.02, 0.05)
FIRST_SEED = 7_000_000
FOUND, ACCUSED, MOST_ROUNDS = 0.99, 0.001, 20.0


def main() -> int:
    """Simulate; 1 where a bound does not hold."""
    holds = True
    for size, count in SIZES:
        tally = _tally(size, count)
        bad, good = tally["bad"], tally["good"]
        found, accused = tally["bad fail"] / bad, tally["good fail"] / good
        peer_found, peer_accused = tally["peer found"] / bad, tally["peer accused"] / good
        apart = {
            "allocations": tally["allocations"], "bad": bad, "good": good,
            "not vetted of bad": _unvetted(tally, "bad"), "not vetted of good": _unvetted(tally, "good"),
            "between": tally["between"],
            "between fail": tally["between fail"], "most rounds": tally["most rounds"],
            "links": tally["links"],
        }  # fmt: skip
        # The bounds are for 256 nodes; a few nodes can't tell a busy moment from each other.
        free, rounds = size != 256, tally["rounds"] / tally["allocations"]
        rows = [
            _row(f"found of {size}", found, peer_found, FOUND, free or found >= FOUND) | apart,
            _row(f"accused of {size}", accused, peer_accused, ACCUSED, free or accused <= ACCUSED),
            _row(f"rounds for {size}", rounds, 1.0, MOST_ROUNDS, tally["most rounds"] <= MOST_ROUNDS)
            | {"unit": "rounds"},
        ]
        for row in rows:
            print(json.dumps(row), flush=True)
            holds = holds and bool(row["holds"])
    return 0 if holds else 1


def _tally(size: int, count: int) -> Counter[str]:
    tally: Counter[str] = Counter()
    for share in SHARES:
        for number in range(count // len(SHARES) + 1):
            seed = FIRST_SEED + 100_000 * SHARES.index(share) + 1_000 * number + size
            made = Allocation(seed, size, share)
            results = made.vet()
            # One figure for everybody: below the threshold, all of them are bad.
            peer_fails = made.all_reduce() < PEER_THRESHOLD
            for result in results:
                if not result.node:
                    tally["links"] += 1
                    continue
                truth = made.truth(result.node)
                tally[truth] += 1
                tally[f"{truth} {result.verdict}"] += 1
                if peer_fails:
                    tally["peer found"] += truth == "bad"
                    tally["peer accused"] += truth == "good"
            tally["allocations"] += 1
            tally["rounds"] += made.rounds
            tally["most rounds"] = max(tally["most rounds"], made.rounds)
    return tally


def _unvetted(tally: Counter[str], truth: str) -> float:
    """Share that does not pass, for whatever reason."""
    return round(1.0 - tally[f"{truth} pass"] / max(1, tally[truth]), 5)


def _row(name: str, ours: float, peer: float, bound: float, holds: bool) -> dict[str, object]:
    ratio = ours / peer if peer else 0.0
    return {
        "name": f"vetting: {name}",
        "ours": ours,
        "peer": peer,
        "unit": "share",
        "ratio": ratio,
        "bound": bound,
        "holds": holds,
    }


if __name__ == "__main__":
    sys.exit(main())
