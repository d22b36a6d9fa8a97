"""Files of 10 to 100 kB whose content is about as compressible as text."""

import random
from pathlib import Path

_WORDS = 4_000
_IN_FOLDER = 500


def write_files(root: Path, count: int, draw: random.Random) -> list[Path]:
    """Write files below a new directory, 500 in each subdirectory; the same for the same seed."""
    words = ["".join(draw.choices("etaoinshrdlu", k=draw.randint(2, 10))) for _ in range(_WORDS)]
    text = " ".join(draw.choices(words, k=400_000)).encode()
    files = []
    for number in range(count):
        path = root / f"{number // _IN_FOLDER}/{number:06}"
        if number % _IN_FOLDER == 0:
            path.parent.mkdir(parents=True)
        size = draw.randint(10_000, 100_000)
        start = draw.randrange(len(text) - size)
        # The number makes each file different from the others.
        path.write_bytes(f"{number} ".encode() + text[start : start + size])
        files.append(path)
    return files
