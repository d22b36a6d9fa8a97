"""How often the hang alarm is wrong: alarms in simulated jobs that only pause, and delays in those that hang.

A cell is a kind of job for a working day, or one that hangs somewhere. Its ranks report as real ones do:
every ten seconds, late while a C call holds the interpreter, from functions whose names show a phase or not.
Of a checkpoint its writes are seen, which begin late and stop where a file system stalls, except where it is
uploaded. Lengths of steps, stalls, checkpoints and evaluations come from families that the alarm's limits
were not set on (those were constant). An alarm before the first step says that it can't tell, and is counted
as that.
"""

import zlib
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from intervals import wilson

from gipfel_extension.training.launches.hang_watch import HangAlarm, HangLimits, RankProgress

DRAWS = 300
MEASURED = (Path(__file__).resolve().parents[2] / "extension" / "gipfel_extension" / "training" / "launches",)
_LOOK_S, _RANKS = 10.0, 4
_PHASES = ("checkpoint", "evaluation")
_DAY_S = 8 * 3600.0
#: Jobs whose phases are named as most programs name them; and others.
HEALTHY = ("cpu", "gpu", "gpu_light", "unnamed", "frozen", "uploaded", "unseen")
#: No evidence of work is left in their phases, and the alarm is known to be wrong at times.
_UNBOUNDED = ("uploaded", "gpu_light")
HANGS = ("asleep", "loop", "nccl", "start_up", "checkpoint", "evaluation", "second")
#: At most one false alarm in a thousand hours; hangs found within the time that is documented.
PER_HOUR, FOUND = 0.001, 0.95
#: Looks that dating a pause costs, of which the limit is five times, and late reports.
_SLACK_S = (5 * 2 + 3) * _LOOK_S


@dataclass(frozen=True)
class _Part:
    """Part of a job.

    Parameters
    ----------
    kind
        ``start_up``, ``steps``, ``checkpoint``, ``evaluation``, ``stall`` or ``hang``.
    phase
        The phase that the functions on the stack show.
    """

    begin_s: float
    end_s: float
    kind: str
    phase: str = ""


@dataclass
class Course:
    """A job's parts and the ends of its steps."""

    rng: np.random.Generator
    named: bool = True
    now_s: float = 0.0
    parts: list[_Part] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)

    def add(self, kind: str, seconds: float, phase: str = "") -> None:
        """Add a part in which no step ends."""
        self.parts.append(_Part(self.now_s, self.now_s + seconds, kind, phase))
        self.now_s += seconds

    def train(self, seconds: float, step_s: float, spread: float) -> None:
        """Add steps of lognormal length, of which one in two hundred takes a Pareto time."""
        count = max(1, int(seconds / step_s))
        lengths = step_s * self.rng.lognormal(0, spread, count)
        rare = self.rng.random(count) < 1 / 200
        lengths[rare] *= 1 + np.minimum(self.rng.pareto(2.0, rare.sum()), 30)
        ends = self.now_s + np.cumsum(lengths)
        self.parts.append(_Part(self.now_s, float(ends[-1]), "steps"))
        self.ends += ends.tolist()
        self.now_s = float(ends[-1])

    def phase(self, kind: str) -> None:
        """Add a checkpoint (minutes, rarely half an hour) or an evaluation."""
        middle = 45.0 if kind == "checkpoint" else 240.0
        self.add(kind, min(1700.0, middle * self.rng.lognormal(0, 0.9)), kind if self.named else "")

    @classmethod
    def draw(cls, rng: np.random.Generator, seconds: float, *, named: bool) -> "Course":
        """Draw a job that starts, trains, saves, evaluates, and waits for its file system."""
        course = cls(rng, named)
        course.add("start_up", min(1700.0, 90 * rng.lognormal(0, 1.0)))
        step_s, spread = float(np.exp(rng.uniform(np.log(0.1), np.log(90)))), rng.uniform(0.02, 0.5)
        every = rng.uniform(600, 3600)
        while course.now_s < seconds:
            course.train(every * rng.uniform(0.7, 1.3), step_s, spread)
            if rng.random() < 0.25:
                course.add("stall", min(280.0, 40 * rng.lognormal(0, 0.8)))
            course.phase("checkpoint" if rng.random() < 0.7 else "evaluation")
        return course

    def limit_s(self, where: str) -> float:
        """Return the documented limit at the end of the course: from its longest pauses."""
        if where == "start_up":
            return 1800.0
        gaps = list(zip(self.ends, self.ends[1:], strict=False))
        begins = [part.begin_s for part in self.parts if part.kind in _PHASES]
        inside = [end - begin for begin, end in gaps if _holds(begins, begin, end)]
        if where in _PHASES:
            return max(1800.0, 5 * max(inside, default=0.0))
        outside = [end - begin for begin, end in gaps if not _holds(begins, begin, end)]
        return max(300.0, 5 * max(outside, default=0.0))


def _holds(times: list[float], begin: float, end: float) -> bool:
    """Return whether one of these ascending times is within an interval."""
    return bisect_left(times, end) > bisect_left(times, begin)


def watch(course: Course, kind: str, hang: str = "") -> tuple[list[float], list[float]]:
    """Let the alarm look at a job; return times of alarms, and of those that can't tell."""
    alarm, on_gpus = HangAlarm(0.0, HangLimits()), kind != "cpu"
    rng, alarms, unsure = course.rng, [], []
    begins = [part.begin_s for part in course.parts]
    late, storage = np.zeros(_RANKS), _Storage(rng)
    seen: dict[int, RankProgress] = {}
    for now in np.arange(_LOOK_S, course.now_s, _LOOK_S).tolist():
        part = course.parts[max(0, bisect_right(begins, now) - 1)]
        steps = 0 if kind == "unseen" else bisect_right(course.ends, now)
        for rank in range(_RANKS):
            # A report may be late; while a phase holds the interpreter, there is none.
            if kind == "frozen" and part.kind == "checkpoint" and now > part.begin_s + late[rank]:
                continue
            late[rank] = rng.choice([0.0, 0.0, 0.0, 12.0])
            at_s = now - rng.uniform(0, 10)
            busy = _busy(part, rank, hang, rng, on_gpus=on_gpus)
            seen[rank] = RankProgress(min(steps, bisect_right(course.ends, at_s)), part.phase, busy)
        active = part.kind in ("steps", "evaluation") and kind not in ("gpu_light", "unseen")
        writes = (
            part.kind == "checkpoint" and kind not in ("uploaded", "unseen") and storage.writes(part, now)
        )
        active = active and bool(rng.random() < 0.98)
        alarm = alarm.observe(now, seen, on_gpus=on_gpus, gpus_active=active, writes=writes)
        if alarm.event == "alarm":
            (alarms if alarm.can_tell else unsure).append(now)
    return alarms, unsure


class _Storage:
    """The writes of a checkpoint, as a look from outside sees them."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._part: _Part | None = None
        self._from_s = 0.0

    def writes(self, part: _Part, now: float) -> bool:
        """Return whether a megabyte was written since the last look."""
        if part is not self._part:
            # Tensors are copied and serialized first.
            self._part, self._from_s = part, part.begin_s + self._rng.gamma(2.0, 20.0)
        elif now >= self._from_s and self._rng.random() < 1 / 15:
            self._from_s = now + 60 * self._rng.weibull(0.9)
        return part.kind == "checkpoint" and now >= self._from_s


def _busy(part: _Part, rank: int, hang: str, rng: np.random.Generator, *, on_gpus: bool) -> float:
    """Return the CPU time per second of a rank in a part."""
    if part.kind == "hang":
        if hang == "nccl" or (on_gpus and hang != "asleep"):
            return 1.0
        return 1.0 if hang == "loop" and rank == 0 else float(rng.uniform(0.0, 0.03))
    if part.kind in _PHASES:
        # Rank 0 works, and the others wait for it.
        return float(rng.uniform(0.2, 1)) if rank == 0 else float(rng.exponential(0.01))
    if part.kind == "start_up":
        return float(rng.uniform(0, 0.3))
    return float(rng.exponential(0.01)) if part.kind == "stall" else float(rng.uniform(0.3, 1))


def cells(seed: int, draws: int) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return the measurement of each cell."""
    found = {f"healthy.{kind}": partial(_healthy, kind, seed, draws) for kind in HEALTHY}
    return found | {f"hang.{kind}": partial(_hang, kind, seed, draws) for kind in HANGS}


def _draws(name: str, seed: int, draws: int) -> list[np.random.Generator]:
    return [np.random.default_rng((seed, zlib.crc32(name.encode()), number)) for number in range(draws)]


def _healthy(kind: str, seed: int, draws: int) -> dict[str, Any]:
    tally, hours = Counter[str](), 0.0
    for rng in _draws(kind, seed, draws):
        course = Course.draw(rng, _DAY_S, named=kind not in ("unnamed", "uploaded"))
        alarms, unsure = watch(course, kind)
        hours += course.now_s / 3600
        tally["false"] += len(alarms)
        tally["cannot tell"] += len(unsure)
        tally["jobs with one"] += bool(alarms)
    return {"cell": "healthy", "kind": kind, "jobs": draws, "hours": round(hours, 1), **tally}


def _hang(kind: str, seed: int, draws: int) -> dict[str, Any]:
    tally, delays = Counter[str](), []
    for rng in _draws(kind, seed, draws):
        where = kind if kind in ("start_up", *_PHASES) else "steps"
        if where == "start_up":
            course = Course(rng)
        else:
            course = Course.draw(rng, rng.uniform(1, 4) * 3600, named=True)
            course.train(600, 2.0, 0.2)
            if kind == "second":
                # It was a hang for the alarm already, and then went on.
                course.add("stall", 400.0)
                course.train(1200, 2.0, 0.2)
        limit, begin = course.limit_s(where), course.now_s
        course.add("hang", 3 * limit, where if where in _PHASES else "")
        alarms, unsure = watch(course, "gpu" if kind in ("nccl", "evaluation") else "cpu", kind)
        after = [each - begin for each in (*alarms, *unsure) if each >= begin]
        tally["false"] += max(0, len(alarms) - len(after) - (kind == "second"))
        tally["found"] += bool(after)
        tally["in time"] += bool(after) and after[0] <= limit + _SLACK_S
        tally["cannot tell"] += bool(unsure)
        delays += after[:1]
    middle = round(float(np.median(delays))) if delays else None
    return {"cell": "hang", "kind": kind, "jobs": draws, "median delay": middle, **tally}


def line(document: Mapping[str, Any]) -> str:
    """Return one cell in a line."""
    return " ".join(f"{key} {value}" for key, value in document.items() if key not in ("cell", "kind"))


def summary(documents: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each kind of job: false alarms per hour, and the share of hangs found in time."""
    rows = []
    for each in documents.values():
        title = f"{each['cell']} {each['kind']}"
        if each["cell"] == "healthy":
            # Alarms are rare: their share of hours is their rate.
            count, of = each.get("false", 0), round(each["hours"])
            bound = 1.0 if each["kind"] in _UNBOUNDED else PER_HOUR
            rows.append(_row(f"{title}, false per hour", count, of, bound, most=True))
        else:
            rows.append(_row(f"{title}, in time", each.get("in time", 0), each["jobs"], FOUND, most=False))
    return rows


def _row(title: str, count: int, of: int, bound: float, *, most: bool) -> dict[str, Any]:
    rate = count / of
    return {
        "name": f"alarms: {title}", "ours": rate, "peer": None, "unit": "share", "ratio": None,
        "bound": bound, "holds": rate <= bound if most else rate >= bound, "at least": not most,
        "interval": wilson(min(count, of), of), "of": of,
    }  # fmt: skip
