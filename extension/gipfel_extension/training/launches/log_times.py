"""When what stands in the ranks' logs was written: ``times.jsonl``, since a program's lines say no time."""

import json
import os
import time
from contextlib import suppress
from pathlib import Path

from ...telemetry.files import open_log

TIMES = "times.jsonl"
_EVERY_S = 1.0
_MOST_RANKS = 256


class LogTimes:
    """Notes, at most once a second, up to where each rank's log had grown."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sizes: dict[str, int] = {}
        self._looked = 0.0

    def look(self) -> None:
        """Note what has grown."""
        now = time.monotonic()
        if now - self._looked < _EVERY_S:
            return
        self._looked = now
        grown = {}
        with suppress(OSError):
            for path in self._folder.glob("rank-*.log"):
                rank = path.stem.removeprefix("rank-")
                if rank.isdecimal() and int(rank) < _MOST_RANKS:
                    size = path.stat().st_size
                    if size != self._sizes.get(rank):
                        self._sizes[rank] = grown[rank] = size
            if grown:
                with os.fdopen(open_log(self._folder / TIMES), "a") as file:
                    file.write(json.dumps([time.time_ns(), grown], separators=(",", ":")) + "\n")
