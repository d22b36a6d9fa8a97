"""Scalars of JSON lines: one object per line, such as ``{"step": 1, "loss": 0.5}``.

The step is the first of the keys ``step``, ``global_step``, ``_step``, ``iteration`` and ``iter`` that is
there, the time the first of ``time_ns``, ``timestamp``, ``time``, ``_timestamp`` and ``wall_time`` (UTC,
seconds since the epoch but for the first), and the rank ``rank`` or ``global_rank``. Every other number is a
metric. An object below ``values``, ``metrics`` or ``data`` holds metrics too; those of other objects are
called ``train/loss``.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from .scalar import Scalar, nanoseconds, number, step_number
from .text_lines import LineReader

STEPS = ("step", "global_step", "_step", "iteration", "iter")
TIMES = ("time_ns", "timestamp", "time", "_timestamp", "wall_time")
RANKS = ("rank", "global_rank")
_PLAIN = ("values", "metrics", "data")
#: Names that describe the line or its writer.
_NO_METRICS = frozenset((*STEPS, *TIMES, *RANKS, "monotonic_ns", "lost"))
_MAX_DEPTH = 3
_MAX_VALUES = 1000


class JsonLinesReader(LineReader):
    """Reader of a file of JSON lines; lines that are no objects are dropped and counted."""

    def read(self, *, last: bool = False) -> list[Scalar] | None:
        """Return the scalars of the next lines; None where there are no more."""
        lines = self._lines.read(last=last)
        if lines is None:
            return None
        found: list[Scalar] = []
        for line in lines:
            try:
                content = json.loads(line)
            except (ValueError, RecursionError):
                content = None
            if isinstance(content, dict):
                self._add(content, found)
            else:
                self._bad += bool(line.strip())
        return found

    def _add(self, content: dict[str, Any], found: list[Scalar]) -> None:
        step = _first(content, STEPS)
        rank = _first(content, RANKS)
        at = step_number(step)
        time_ns = time_of(content)
        of_rank = rank if type(rank) is int and 0 <= rank < 2**31 else self._rank
        for count, (name, value) in enumerate(_numbers(content, "", _MAX_DEPTH)):
            known = self._names.get(name) if count < _MAX_VALUES else None
            if known is None:
                self._bad += 1
                if count >= _MAX_VALUES:
                    return
            else:
                found.append(Scalar(known, at, time_ns, value, of_rank))


def time_of(content: Mapping[str, Any]) -> int | None:
    """Return the time of an object in UTC nanoseconds; None where it has none."""
    for name in TIMES:
        value = number(content.get(name))
        if value is not None and (found := nanoseconds(value / 1e9 if name == "time_ns" else value)):
            return int(content[name]) if name == "time_ns" else found
    return None


def _first(content: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    for name in names:
        if name in content:
            return content[name]
    inner = next((content[name] for name in _PLAIN if isinstance(content.get(name), dict)), None)
    return None if inner is None else next((inner[name] for name in names if name in inner), None)


def _numbers(content: Mapping[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, float]]:
    for name, value in content.items():
        if isinstance(value, dict):
            if depth:
                inner = prefix if not prefix and name in _PLAIN else f"{prefix}{name}/"
                yield from _numbers(value, inner, depth - 1)
        elif (found := number(value)) is not None and (prefix or name not in _NO_METRICS):
            yield prefix + name, found
