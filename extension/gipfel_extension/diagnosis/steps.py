"""Steps of a job as a table: one row per rank, one column per step."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..telemetry.sample import SourceError
from ..telemetry.user_metrics import UserMetrics
from .robust import Floats, median

#: More cells than a run of 100 000 steps of 1 024 ranks are not a table of steps.
_MOST_CELLS = 110_000_000
#: Steps that fewer ranks than this share reported are left out.
_LEAST_SHARE = 0.5

Rows = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], Floats, Floats]


@dataclass(frozen=True)
class StepTable:
    """Durations of the steps of each rank; missing is NaN.

    Parameters
    ----------
    ranks, steps
        Numbers of the ranks and steps, ascending; shapes (n,) and (m,).
    time_ns
        UTC nanoseconds at which the first rank reported each step, shape (m,).
    step_s
        Seconds of the whole step, shape (n, m).
    work_s
        Seconds of the step that the rank did not wait for others, shape (n, m).
    """

    ranks: NDArray[np.int64]
    steps: NDArray[np.int64]
    time_ns: NDArray[np.int64]
    step_s: Floats
    work_s: Floats

    @classmethod
    def of_rows(cls, rows: Rows) -> "StepTable":
        """Return the table of loose rows: rank, step, time_ns, step_s and work_s, columns of one length.

        Of a step that a rank reported twice, as after a restart from a checkpoint, the last is taken.

        Raises
        ------
        SourceError
            There is no row, or hardly any step was reported by more than a few ranks.
        """
        rank, step, time_ns, step_s, work_s = rows
        if not len(rank):
            raise SourceError("There is no step.", "Log them: log(step=…, step_s=…, work_s=…).")
        order = np.lexsort((time_ns, rank, step))
        # The last of equal pairs.
        last = np.append((np.diff(step[order]) != 0) | (np.diff(rank[order]) != 0), True)
        order = order[last]
        ranks, row = np.unique(rank[order], return_inverse=True)
        steps, column, count = np.unique(step[order], return_inverse=True, return_counts=True)
        kept = count >= max(1.0, _LEAST_SHARE * min(len(ranks), int(count.max())))
        if len(ranks) * int(kept.sum()) > min(_MOST_CELLS, 1000 + 4 * len(order)):
            raise SourceError(
                f"{len(order)} rows of {len(ranks)} ranks and {len(steps)} steps are not one job's steps: "
                "most ranks lack most steps.",
                "Give the steps of one job.",
            )
        place = np.cumsum(kept) - 1
        chosen = kept[column]
        row, column, order = row[chosen], place[column[chosen]], order[chosen]
        shape = len(ranks), int(kept.sum())
        matrices = []
        for values in (step_s, work_s):
            matrix = np.full(shape, np.nan)
            matrix[row, column] = values[order]
            matrices.append(matrix)
        first = np.full(shape[1], np.iinfo(np.int64).max)
        np.minimum.at(first, column, time_ns[order])
        return cls(ranks, steps[kept], first, matrices[0], matrices[1])

    def part(self, first: int, last: int | None = None) -> "StepTable":
        """Return the columns from a first to before a last."""
        columns = slice(first, last)
        return replace(
            self,
            steps=self.steps[columns],
            time_ns=self.time_ns[columns],
            step_s=self.step_s[:, columns],
            work_s=self.work_s[:, columns],
        )

    def chosen(self, columns: NDArray[np.bool_]) -> "StepTable":
        """Return some of the columns."""
        return replace(
            self,
            steps=self.steps[columns],
            time_ns=self.time_ns[columns],
            step_s=self.step_s[:, columns],
            work_s=self.work_s[:, columns],
        )

    @property
    def pace(self) -> Floats:
        """Seconds of each step of the job, the median of its ranks; from the times where none was said."""
        found = median(self.step_s, axis=0)
        if np.isnan(found).all() and len(self.steps) > 1:
            gaps = np.diff(self.time_ns) / 1e9 / np.maximum(1, np.diff(self.steps))
            # Times that don't rise with the steps say nothing.
            return np.append(np.nan, np.where(gaps > 0, gaps, np.nan))
        return found


def steps_of_metrics(metrics: UserMetrics, launch: str | None = None) -> StepTable | None:
    """Return the steps that a run's ranks logged as ``step``, ``step_s`` and ``work_s``.

    Parameters
    ----------
    launch
        ``RUN/N``; by default the newest that logged either duration.

    None where nothing was logged. A rank that named itself none is rank 0; without ``step``, a rank's values
    are counted from 0 on.
    """
    names = ("step_s", "work_s")
    known = [each for each in metrics.series if each.name in names and len(each.time_ns)]
    if launch is None and known:
        launch = max(known, key=lambda each: int(each.time_ns[-1])).launch
    known = [each for each in known if each.launch == launch]
    numbers = {
        (each.rank, each.node): each
        for each in metrics.series
        if each.name == "step" and each.launch == launch
    }
    parts: list[Rows] = []
    for rank, node in sorted({(each.rank, each.node) for each in known}, key=str):
        own = {each.name: each for each in known if (each.rank, each.node) == (rank, node)}
        times = np.unique(np.concatenate([each.time_ns for each in own.values()]))
        columns = []
        for name in names:
            values = np.full(len(times), np.nan)
            if name in own:
                values[np.searchsorted(times, own[name].time_ns)] = own[name].values
            columns.append(values)
        counted = numbers.get((rank, node))
        step = np.arange(len(times), dtype=np.int64)
        if counted is not None:
            at = np.searchsorted(counted.time_ns, times).clip(0, len(counted.time_ns) - 1)
            there = (counted.time_ns[at] == times) & (np.abs(counted.values[at]) < 2**53)
            times, columns = times[there], [each[there] for each in columns]
            step = counted.values[at][there].astype(np.int64)
        parts.append((np.full(len(times), rank or 0, np.int64), step, times, columns[0], columns[1]))
    rows = [np.concatenate(each) for each in zip(*parts, strict=True)]
    if not rows or not len(rows[0]):
        return None
    return StepTable.of_rows((rows[0], rows[1], rows[2], positive(rows[3]), positive(rows[4])))


def positive(values: Floats) -> Floats:
    """Return durations; what is not a positive number is NaN."""
    return np.where((values > 0) & (values < 1e9), values, np.nan)
