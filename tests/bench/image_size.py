"""Start time of a ``.sqsh`` of 2 GB beside one of 100 MB: it must not grow with the image.

Prints one row as JSON. The images hold files of 100 kB of random bytes, and are removed afterwards.
"""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

from parts.containers import make_root, medians, pack, rendered

BOUND = 1.2
SMALL, LARGE = 1_000, 20_000  # files
_BYTES = 100_000
_IN_FOLDER = 500


def main(rounds: int) -> int:
    """Measure; 1 where the bound does not hold."""
    with tempfile.TemporaryDirectory(prefix="gipfel-bench-") as name:
        folder = Path(name)
        images = {count: _image(folder, count) for count in (LARGE, SMALL)}
        starts = []
        for count in (LARGE, SMALL):
            scratch = folder / f"scratch-{count}"
            scratch.mkdir()
            invocation, _ = rendered(images[count], scratch, sys.executable)
            starts.append((invocation.argv, invocation.environment))
        ours, peer = medians(starts[0], starts[1], rounds)
        sizes = [Path(images[count]).stat().st_size for count in (LARGE, SMALL)]
    if sizes[0] < 2e9 or sizes[1] > 1.2e8:
        raise SystemExit("The images are not as large as they should be.")
    ratio = ours / peer
    row = {"name": "start-2GB-100MB", "ours": ours, "peer": peer, "unit": "s", "ratio": ratio, "bound": BOUND}
    print(json.dumps({**row, "holds": ratio <= BOUND}))
    return 0 if ratio <= BOUND else 1


def _image(folder: Path, count: int) -> str:
    root = folder / f"root-{count}"
    make_root(root)
    for number in range(count):
        file = root / f"data/{number // _IN_FOLDER}/{number}"
        if number % _IN_FOLDER == 0:
            file.parent.mkdir(parents=True)
        file.write_bytes(os.urandom(_BYTES))
    image = pack(root, folder / f"{count}.sqsh")
    shutil.rmtree(root)
    return image


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 40))
