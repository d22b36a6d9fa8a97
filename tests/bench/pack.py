"""Time and size of ``gipfel data pack`` for small text-like files, beside ``mksquashfs`` with its defaults.

Prints two rows as JSON. Both write beside the same files, in turns; the median time of each counts. Ours also
hashes every file and the image.
"""

import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from parts.small_files import write_files

BOUND = 1.0
ROUNDS = 3


def main(count: int) -> int:
    """Measure; 1 where a bound does not hold."""
    with tempfile.TemporaryDirectory(prefix="gipfel-bench-") as name:
        folder = Path(name)
        write_files(folder / "files", count, random.Random(1))
        images = {"ours": folder / "ours.sqsh", "peer": folder / "peer.sqsh"}
        gipfel = Path(sys.executable).with_name("gipfel")
        commands = {
            "ours": [gipfel, "data", "pack", folder / "files", images["ours"], "--replace"],
            "peer": ["mksquashfs", folder / "files", images["peer"], "-noappend", "-quiet", "-no-progress"],
        }
        times: dict[str, list[float]] = {"ours": [], "peer": []}
        for _ in range(ROUNDS):
            for side, command in commands.items():
                start = time.monotonic()
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                times[side].append(time.monotonic() - start)
        sizes = {side: image.stat().st_size / 1e6 for side, image in images.items()}
    medians = {side: statistics.median(each) for side, each in times.items()}
    rows = [_row("pack-time", medians, "s"), _row("pack-size", sizes, "MB")]
    for row in rows:
        print(json.dumps(row))
    return 0 if all(row["holds"] for row in rows) else 1


def _row(name: str, sides: dict[str, float], unit: str) -> dict[str, object]:
    ratio = sides["ours"] / sides["peer"]
    return {"name": name, **sides, "unit": unit, "ratio": ratio, "bound": BOUND, "holds": ratio <= BOUND}


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000))
