"""Time from the command to the first all-reduce of two ranks: ``gipfel launch`` beside ``torchrun``.

Prints a row as JSON. Both run one program without a container, with gloo on CPUs and with the same Python,
in turn; the figures are medians. Ours is at most 1.3 times the peer's, and at most 3 seconds more.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BOUND, MAX_MORE_S = 1.3, 3.0
_LIMIT_S = 240
_RANKS = 2
_PROGRAM = """
import sys, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 0:
    with open(sys.argv[1], "w") as file:
        file.write(repr(time.time()))
dist.destroy_process_group()
"""


def main(rounds: int) -> int:
    """Measure; 1 where a bound does not hold."""
    peer_command = (
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={_RANKS}",
    )
    our_command = (
        sys.executable,
        "-m",
        "gipfel_extension.cli",
        "launch",
        f"--gpus-per-node={_RANKS}",
        "--wait",
        "--",
    )
    with tempfile.TemporaryDirectory(prefix="gipfel-bench-") as name:
        folder = Path(name)
        (folder / "train.py").write_text(_PROGRAM)
        pairs = [(_seconds(our_command, folder), _seconds(peer_command, folder)) for _ in range(rounds + 1)]
    # The first pair reads everything from the disk.
    ours, peer = (statistics.median(each) for each in zip(*pairs[1:], strict=True))
    holds = ours <= BOUND * peer and ours - peer <= MAX_MORE_S
    row = {"name": "launch-start", "ours": ours, "peer": peer, "unit": "s", "ratio": ours / peer}
    print(json.dumps({**row, "bound": BOUND, "holds": holds}))
    return 0 if holds else 1


def _seconds(command: tuple[str, ...], folder: Path) -> float:
    """Seconds until the ranks have met."""
    met = folder / "met"
    met.unlink(missing_ok=True)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("GIPFEL_", "SLURM_"))
    }
    environment |= {"GIPFEL_RUNS": str(folder / "runs"), "GIPFEL_SCHEDULER": "local", "OMP_NUM_THREADS": "1"}
    begin = time.time()
    argv = (*command, str(folder / "train.py"), str(met))
    done = subprocess.run(
        argv, cwd=folder, env=environment, capture_output=True, timeout=_LIMIT_S, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(argv)} failed: {done.stderr.decode(errors='replace')[-2000:]}")
    return float(met.read_text()) - begin


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5))
