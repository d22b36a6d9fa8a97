"""Time to verify a checkpoint of four ranks, cached, beside ``sha256sum`` of the same files.

Prints a row as JSON: median seconds of rounds in turns.
"""

import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gipfel_extension.data.checkpoints import MANIFEST_NAME, METADATA_NAME, find_checkpoints, hash_file

BOUND = 1.2
ROUNDS = 5
_RANKS = 4


def main(megabytes: int) -> int:
    """Measure; 1 where the bound does not hold."""
    draw = random.Random(3)
    with tempfile.TemporaryDirectory(prefix="gipfel-bench-") as name:
        path = Path(name) / "step-1"
        path.mkdir()
        for rank in range(_RANKS):
            (path / f"__{rank}_0.distcp").write_bytes(draw.randbytes(megabytes * 1_000_000 // _RANKS))
        (path / METADATA_NAME).write_bytes(b"metadata")
        files = sorted(path.iterdir())
        manifest = {"version": 1, "step": 1, "time_ns": 0, "world_size": _RANKS, "stall_s": 0, "write_s": 0}
        hashes = {each.name: hash_file(each) for each in files}
        (path / MANIFEST_NAME).write_text(json.dumps({**manifest, "files": hashes}))
        times: dict[str, list[float]] = {"ours": [], "peer": []}
        for _ in range(ROUNDS):
            start = time.monotonic()
            (found,) = find_checkpoints(Path(name), verify=True)
            times["ours"].append(time.monotonic() - start)
            if found.state != "verified":
                raise SystemExit(f"The checkpoint {found.problem}.")
            start = time.monotonic()
            subprocess.run(["sha256sum", *files], check=True, stdout=subprocess.DEVNULL)
            times["peer"].append(time.monotonic() - start)
    medians = {side: statistics.median(each) for side, each in times.items()}
    ratio = medians["ours"] / medians["peer"]
    row = {"name": "checkpoint-verify", **medians, "unit": "s", "ratio": ratio, "bound": BOUND}
    print(json.dumps({**row, "holds": ratio <= BOUND}))
    return 0 if ratio <= BOUND else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200))
