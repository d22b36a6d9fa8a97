"""How far a launch is, by what its program logs with ``gipfel_widgets.log``."""

import json
import math
from pathlib import Path

from pydantic import Field

from gipfel_cluster.model import Frozen

from .state import LaunchState

_TAIL_BYTES = 64 << 10
_TOTALS = ("total_steps", "max_steps", "steps")


class Progress(Frozen):
    """The last metrics of rank 0, or of the lowest rank that says any."""

    values: dict[str, float] = Field(default={})
    step: float | None = None
    total: float | None = None
    time_ns: int | None = None

    @property
    def fraction(self) -> float | None:
        """How much is done, from 0 to 1."""
        if self.step is None or not self.total:
            return None
        return max(0.0, min(1.0, self.step / self.total))


def read_progress(folder: Path, state: LaunchState) -> Progress:
    """Read the end of the launch's own metrics, else of those that its run has since it started."""
    for path in (folder / "metrics.jsonl", Path(state.run, "metrics.jsonl") if state.run else None):
        found = _last(path, state) if path is not None else None
        if found is not None:
            return found
    return Progress()


def _last(path: Path, state: LaunchState) -> Progress | None:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return None
    best: tuple[int, int] | None = None
    values: dict[str, float] = {}
    for line in lines:
        try:
            said = json.loads(line)
            rank, time_ns = int(said.get("rank") or 0), int(said["time_ns"])
            numbers = {
                name: float(each)
                for name, each in said["values"].items()
                if isinstance(each, int | float) and math.isfinite(each)
            }
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
        if time_ns < (state.started_ns or 0) or time_ns > (state.ended_ns or time_ns):
            continue
        if best is None or rank <= best[0]:
            values = numbers if best is None or rank < best[0] else values | numbers
            best = (rank, time_ns)
    if best is None:
        return None
    total = next((values[name] for name in _TOTALS if name in values), None)
    return Progress(values=values, step=values.get("step"), total=total, time_ns=best[1])
