"""The course of a launch: its steps, its losses and its pace, from the end of ``metrics.jsonl``."""

import math
from pathlib import Path

from pydantic import Field

from gipfel_cluster.model import Frozen

from .metric_lines import metric_lines
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
        lines = metric_lines(path, folder, state, most_bytes=_TAIL_BYTES) if path is not None else []
        for rank, time_ns, values in lines:
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
        # The difference of two numbers may be larger than any.
        pace = pace if math.isfinite(pace) else None
    found = [(name, values[name]) for _, values in said for name in _RATES if name in values]
    rate = found[-1] if found else ("", None)
    every = max(1, -(-len(losses) // _MOST))
    return Course(losses=tuple(losses[::-every][::-1]), steps_per_s=pace, rate=rate[1], rate_name=rate[0])
