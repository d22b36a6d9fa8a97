"""Rate of reading files in random order from a mounted data set, beside the same files of a directory.

Prints one row as JSON. Before each round the kernel drops the cached content of both (not the names of the
directory's files). On a local disk the directory wins, since opening a file there costs next to nothing; the
row bounds what a mount costs.
"""

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from parts.small_files import write_files

from gipfel_extension.data.pack import PackRequest, pack

BOUND = 10.0
ROUNDS = 5
_LEFT_OUT = 77
_MOUNT_S = 30


def main(count: int) -> int:
    """Measure; 1 where the bound does not hold, 77 where nothing can be mounted."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        print("/dev/fuse can't be opened.", file=sys.stderr)
        return _LEFT_OUT
    draw = random.Random(2)
    with tempfile.TemporaryDirectory(prefix="gipfel-bench-") as name:
        folder = Path(name)
        files = [path.relative_to(folder / "files") for path in write_files(folder / "files", count, draw)]
        image = folder / "packed.sqsh"
        pack(PackRequest(folder / "files", image, environment=dict(os.environ)))
        times: dict[str, list[float]] = {"ours": [], "peer": []}
        for _ in range(ROUNDS):
            draw.shuffle(files)
            _drop_content([image])
            with _mounted(image, folder / "mount") as place:
                times["ours"].append(_read_all(place, files))
            _drop_content([folder / "files" / path for path in files])
            times["peer"].append(_read_all(folder / "files", files))
    medians = {side: 1e3 * statistics.median(each) / count for side, each in times.items()}
    ratio = medians["ours"] / medians["peer"]
    row = {"name": "random-read", **medians, "unit": "ms", "ratio": ratio, "bound": BOUND}
    print(json.dumps({**row, "holds": ratio <= BOUND}))
    return 0 if ratio <= BOUND else 1


@contextmanager
def _mounted(image: Path, place: Path) -> Iterator[Path]:
    place.mkdir(exist_ok=True)
    process = subprocess.Popen(["squashfuse", "-f", image, place])
    try:
        deadline = time.monotonic() + _MOUNT_S
        while not place.is_mount():
            if time.monotonic() > deadline or process.poll() is not None:
                raise SystemExit("squashfuse did not mount the image.")
            time.sleep(0.02)
        yield place
    finally:
        subprocess.run(["fusermount", "-u", place], check=False)
        process.wait(_MOUNT_S)


def _drop_content(paths: Sequence[Path]) -> None:
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read_all(root: Path, files: Sequence[Path]) -> float:
    start = time.monotonic()
    for path in files:
        (root / path).read_bytes()
    return time.monotonic() - start


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 500))
