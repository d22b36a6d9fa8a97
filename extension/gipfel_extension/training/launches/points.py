"""The course of a launch: its steps, its losses and its pace, from the end of ``metrics.jsonl``."""

import json
import math
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from gipfel_cluster.model import Frozen

from .state import LaunchState

_TAIL_BYTES = 256 << 10
_MOST = 120
_LOSSES = ("loss", "train_loss", "train/loss")
_RATES = ("tokens_per_s", "samples_per_s", "images_per_s")
#: The pace is that of so many of the last lines.
_LATELY = 20


class Course(Frozen):
    """What a rank has logged lately: losses with their steps, steps a second, its own rate and its name."""

    losses: tuple[tuple[float, float], ...] = Field(default=())
    steps_per_s: float | None = None
    rate: float | None = None
    rate_name: str = ""


def read_course(folder: Path, state: LaunchState) -> Course:
    """Read the end of the launch's own metrics, else of its run's, of the lowest rank that logs."""
    for path in (folder / "metrics.jsonl", Path(state.run, "metrics.jsonl") if state.run else None):
        ranks: dict[int, list[tuple[int, dict[str, float]]]] = {}
        for rank, time_ns, values in _lines(path, state) if path is not None else ():
            ranks.setdefault(rank, []).append((time_ns, values))
        if ranks:
            return _course(ranks[min(ranks)])
    return Course()


def _course(said: list[tuple[int, dict[str, float]]]) -> Course:
    steps = [(time_ns, values["step"]) for time_ns, values in said if "step" in values]
    losses = []
    for number, (_, values) in enumerate(said):
        name = next((each for each in _LOSSES if each in values), None)
        if name is not None:
            losses.append((values.get("step", float(number)), values[name]))
    lately = steps[-_LATELY:]
    pace = None
    if len(lately) > 1 and lately[-1][0] > lately[0][0] and lately[-1][1] > lately[0][1]:
        pace = (lately[-1][1] - lately[0][1]) / ((lately[-1][0] - lately[0][0]) / 1e9)
    found = [(name, values[name]) for _, values in said for name in _RATES if name in values]
    rate = found[-1] if found else ("", None)
    every = max(1, -(-len(losses) // _MOST))
    return Course(losses=tuple(losses[::-every][::-1]), steps_per_s=pace, rate=rate[1], rate_name=rate[0])


def _lines(path: Path, state: LaunchState) -> Iterator[tuple[int, int, dict[str, float]]]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            content = file.read().splitlines()
    except OSError:
        return
    for line in content:
        try:
            said = json.loads(line)
            rank, time_ns = int(said.get("rank") or 0), int(said["time_ns"])
            values = {
                str(name): float(each)
                for name, each in said["values"].items()
                if isinstance(each, int | float) and math.isfinite(each)
            }
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            continue
        if (state.started_ns or 0) <= time_ns <= (state.ended_ns or time_ns):
            yield rank, time_ns, values
