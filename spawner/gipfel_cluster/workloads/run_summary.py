"""Facts about a run from its record and its score: duration, largest loss, GPU hours, energy, commit.

The files may come from other versions or other users: a value of another type than expected is unknown.
"""

import math
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ..model import Frozen, one_line

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_MAX_LOSSES = 64


class RunSummary(Frozen):
    """Facts about a run; None or empty if unknown.

    ``duration_s`` is the time from start to end; GPU hours and energy are those that were recorded.
    ``changed_files`` is the number of files with changes that were not committed.
    """

    score: float | None = None
    loss: str = ""
    """Name of the largest loss."""
    loss_points: float | None = None
    duration_s: float | None = None
    gpu_hours: float | None = None
    energy_wh: float | None = None
    commit: str = ""
    changed_files: int | None = None


def summary_of(record: Mapping[str, Any], score: Mapping[str, Any]) -> RunSummary:
    """Return the facts from the content of ``record.json`` and ``score.json``."""
    energy, git = _mapping(score.get("energy")), _mapping(record.get("git"))
    losses = list(_mapping(score.get("losses")).items())[:_MAX_LOSSES]
    points = {one_line(str(name))[:40]: _number(value) or 0.0 for name, value in losses}
    loss = max(points, key=lambda name: points[name], default="")
    lost = points.get(loss, 0.0)
    commit, changed = git.get("commit"), git.get("changed_files")
    return RunSummary(
        score=_number(score.get("score")),
        loss=loss if lost > 0 else "",
        loss_points=lost if lost > 0 else None,
        duration_s=_duration(record.get("started"), record.get("ended")),
        gpu_hours=_number(energy.get("gpu_hours")),
        energy_wh=_number(energy.get("total_wh")),
        commit=commit if isinstance(commit, str) and _COMMIT.fullmatch(commit) else "",
        changed_files=changed if isinstance(changed, int) else None,
    )


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _duration(started: object, ended: object) -> float | None:
    try:
        seconds = (datetime.fromisoformat(str(ended)) - datetime.fromisoformat(str(started))).total_seconds()
    except (ValueError, TypeError):
        return None
    return seconds if seconds >= 0 else None
