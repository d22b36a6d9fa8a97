"""Cost of a checkpoint: ``gipfel_widgets.Checkpoints`` beside ``torch.save`` with fsync, on one rank.

Prints two rows as JSON: the seconds for which training stands still, and the CPU seconds of the whole process
until the checkpoint is on disk. The asynchronous one copies the state, and hashes it twice in the background:
as it was written, and as it is read back. Medians of rounds in turns.
"""

import json
import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gipfel_widgets.checkpoints import Checkpoints

ROUNDS = 5
BOUNDS = {"checkpoint-stall": 1.0, "checkpoint-cpu": 10.0}


def main(megabytes: int) -> int:
    """Measure; 1 where a bound does not hold."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="gipfel-bench-", dir=os.environ.get("GIPFEL_BENCH_DIR")) as name:
        folder = Path(name)
        dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)
        state = {f"layer-{each}": torch.randn(megabytes * 1_000_000 // 4 // 8) for each in range(8)}
        checkpoints = Checkpoints(folder / "ours", keep=1, every=1)
        numbers = iter(range(1, ROUNDS + 2))

        def ours() -> float:
            return checkpoints.save(next(numbers), state)

        def peer() -> float:
            return _torch_save(folder / "peer.pt", state)

        found: dict[str, list[tuple[float, float]]] = {"ours": [], "peer": []}
        for _ in range(ROUNDS + 1):
            for side, save in (("ours", ours), ("peer", peer)):
                start = time.process_time()
                stalled = save()
                checkpoints.wait()
                found[side].append((stalled, time.process_time() - start))
        checkpoints.close()
        dist.destroy_process_group()
    rows = [
        _row(name, {side: _median(rounds, column) for side, rounds in found.items()}, bound)
        for column, (name, bound) in enumerate(BOUNDS.items())
    ]
    for row in rows:
        print(json.dumps(row))
    return 0 if all(row["holds"] for row in rows) else 1


def _median(rounds: list[tuple[float, float]], column: int) -> float:
    """Return the median of a column; the first round is for warming up."""
    return statistics.median(each[column] for each in rounds[1:])


def _torch_save(path: Path, state: dict[str, Any]) -> float:
    start = time.monotonic()
    with path.with_suffix(".new").open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    path.with_suffix(".new").replace(path)
    return time.monotonic() - start


def _row(name: str, sides: dict[str, float], bound: float) -> dict[str, Any]:
    ratio = sides["ours"] / sides["peer"]
    return {"name": name, **sides, "unit": "s", "ratio": ratio, "bound": bound, "holds": ratio <= bound}


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100))
