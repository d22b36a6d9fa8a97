"""The end of ``metrics.jsonl`` as far as it is a launch's own: several launches may log into one run."""

import json
import math
from pathlib import Path

from ...telemetry.files import read_tail
from .state import LaunchState

#: Rank, time since 1970 in ns, finite numbers by name.
MetricLine = tuple[int, int, dict[str, float]]


def metric_lines(path: Path, folder: Path, state: LaunchState, *, most_bytes: int) -> list[MetricLine]:
    """What a launch's ranks logged while it ran, in the file's order; nothing where it can't be read.

    Lines without the name of a launch, such as those that an older ``gipfel_widgets`` writes, count where
    there are no others.
    """
    mine: list[MetricLine] = []
    nameless: list[MetricLine] = []
    name = f"{folder.parents[1].name}/{folder.name}"
    for line in _tail(path, most_bytes):
        try:
            said = json.loads(line)
            rank, time_ns = int(said.get("rank") or 0), int(said["time_ns"])
            numbers = {
                str(key): float(each)
                for key, each in said["values"].items()
                if isinstance(each, int | float) and math.isfinite(each)
            }
            launch = said.get("launch")
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            continue
        if (state.started_ns or 0) <= time_ns <= (state.ended_ns or time_ns) and launch in (None, name):
            (nameless if launch is None else mine).append((rank, time_ns, numbers))
    return mine or nameless


def _tail(path: Path, most_bytes: int) -> list[bytes]:
    try:
        return read_tail(path, most_bytes).splitlines()
    except OSError:
        return []
