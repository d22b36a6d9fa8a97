"""Broken and hostile files for the scanner: none may raise, hang, run, or be called clean if cut off.

Each draw damages a real file (a model, a package database, an image, a file of dependencies): bytes are
changed, cut, repeated, or replaced by NULs and invalid UTF-8; then it goes through the code that users run.
"""

import random
import time
from collections.abc import Iterator
from pathlib import Path

from gipfel_extension.gate.scan.targets import scan_targets

#: Seconds that one small file may take, on a machine that is busy with other tests.
LONGEST_S = 30.0
_PIECES = (
    b"\0" * 64,
    b"\xff\xfe\xed\xa0\x80",
    b"\xff" * 8,
    b"PK\x05\x06",
    b"\n\n",
    b"9" * 40,
    b"../../../../etc/passwd",
)


def damaged(content: bytes, draw: random.Random) -> bytes:
    """Return a file with one to four damages."""
    changed = bytearray(content)
    for _ in range(draw.randrange(1, 5)):
        at = draw.randrange(len(changed) + 1)
        kind = draw.randrange(5)
        if kind == 0:
            del changed[at:]
        elif kind == 1:
            changed[at : at + 4] = draw.randbytes(4)
        elif kind == 2:
            changed[at:at] = draw.choice(_PIECES)
        elif kind == 3:
            changed[at : at + 8] = (draw.choice((0, 1, 1 << 31, 1 << 63)) & (1 << 64) - 1).to_bytes(
                8, "little"
            )
        else:
            changed[at:at] = changed[max(0, at - 200) : at] * draw.randrange(1, 20)
    return bytes(changed)


def scan_damaged(
    files: dict[str, bytes], folder: Path, *, seed: int, draws: int, advisories: Path | None = None
) -> Iterator[tuple[str, str]]:
    """Yield name and what went wrong of each scan that raised or took too long.

    Parameters
    ----------
    files
        Good files by the path that each has below a scanned directory; a path without a directory is scanned
        as a target of its own.
    """
    draw = random.Random(seed)
    names = sorted(files)
    for number in range(draws):
        name = draw.choice(names)
        root = folder / str(number)
        path = root / name
        path.parent.mkdir(parents=True)
        path.write_bytes(damaged(files[name], draw))
        started = time.monotonic()
        try:
            target = root if "/" in name else path
            document = scan_targets([target], advisories=advisories, max_age_s=1e9)
            document.model_dump_json()
        except Exception as error:
            yield f"{number} {name}", f"{type(error).__name__}: {error}"
        if time.monotonic() - started > LONGEST_S:
            yield f"{number} {name}", f"took {time.monotonic() - started:.0f} s"
