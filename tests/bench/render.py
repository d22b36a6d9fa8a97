"""``gipfel edf render`` as a whole process, beside a Python that only imports pydantic.

Prints a row as JSON. Its bound is in seconds, not a ratio, and the median must keep it.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

BOUND = 0.5  # seconds
_PEER = (sys.executable, "-c", "from pydantic import BaseModel")


def main(rounds: int) -> int:
    """Measure; 1 where the bound does not hold."""
    with tempfile.TemporaryDirectory(prefix="gipfel-bench-") as name:
        edf = Path(name) / "bench.toml"
        edf.write_text(f'image = "{name}"\nmounts = ["/usr:/usr:ro"]\n[env]\nA = "${{HOME}}"\n')
        render = (
            *(str(Path(sys.executable).with_name("gipfel")), "edf", "render", str(edf)),
            *("--engine", "bubblewrap", "--json", "--", "python", "train.py"),
        )
        # In turns, after one round to warm up.
        seconds = [(_seconds(render), _seconds(_PEER)) for _ in range(rounds + 1)][1:]
    ours, peer = (statistics.median(each) for each in zip(*seconds, strict=True))
    row = {"name": "render", "ours": ours, "peer": peer, "unit": "s", "ratio": ours / peer, "bound": BOUND}
    print(json.dumps({**row, "holds": ours < BOUND, "slowest": max(each[0] for each in seconds)}))
    return 0 if ours < BOUND else 1


def _seconds(argv: Sequence[str]) -> float:
    start = time.perf_counter()
    subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True)
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20))
