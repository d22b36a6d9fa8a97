"""How far a launch is, by what its program logs with ``gipfel_widgets.log``."""

from pathlib import Path

from pydantic import Field

from gipfel_cluster.model import Frozen

from .metric_lines import metric_lines
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
        found = _last(path, folder, state) if path is not None else None
        if found is not None:
            return found
    return Progress()


def _last(path: Path, folder: Path, state: LaunchState) -> Progress | None:
    best: tuple[int, int] | None = None
    values: dict[str, float] = {}
    for rank, time_ns, numbers in metric_lines(path, folder, state, most_bytes=_TAIL_BYTES):
        if best is None or rank <= best[0]:
            values = numbers if best is None or rank < best[0] else values | numbers
            best = (rank, time_ns)
    if best is None:
        return None
    total = next((values[name] for name in _TOTALS if name in values), None)
    return Progress(values=values, step=values.get("step"), total=total, time_ns=best[1])
