"""A grid of parameters: its points, and the output of each point; pure.

Submission and array tasks identify a point by the same number.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import Field

from gipfel_cluster.model import Frozen, GipfelError

from .parameters import Parameter, guess
from .values import check_size, from_yaml, to_yaml, wants_text

MAX_POINTS = 10_000

_RANGE = re.compile(r"(-?\d{1,9})\.\.(-?\d{1,9})(?:\.\.(\d{1,9}))?")
_ODD = re.compile(r"[^A-Za-z0-9.+_=-]+")
_MAX_VALUE, _MAX_NAME = 40, 200


class Axis(Frozen):
    """A parameter and its values, each as a YAML text."""

    name: str
    values: tuple[str, ...] = Field(min_length=1)


class Grid(Frozen):
    """All combinations of its axes' values; the last axis changes fastest. Without axes it has one point."""

    axes: tuple[Axis, ...] = ()

    def __len__(self) -> int:
        count = 1
        for axis in self.axes:
            count *= len(axis.values)
        return count

    def point(self, number: int) -> dict[str, str]:
        """Return the values, as YAML texts, of a point by its number from 0."""
        values = {}
        for axis in reversed(self.axes):
            number, place = divmod(number, len(axis.values))
            values[axis.name] = axis.values[place]
        return {axis.name: values[axis.name] for axis in self.axes}

    def output(self, template: Path, number: int) -> Path:
        """Return the path of the point's executed notebook.

        ``{name}`` in the template is replaced by the value of the point; a template without a placeholder
        gets ``-name=value`` before its suffix. If these names are not unique or too long, the number of the
        point is used instead.
        """
        return template.with_name(self.names(template.name)[number])

    def names(self, template: str) -> tuple[str, ...]:
        """Return the names of all outputs, in the order of the points."""
        if not self.axes:
            return (template,)
        axes = [[(axis.name, _short(text)) for text in axis.values] for axis in self.axes]
        found = tuple(_filled(template, point) for point in product(*axes))
        if len(set(found)) == len(found) and max(map(len, found)) <= _MAX_NAME:
            return found
        stem, ending = _plain(template, [axis.name for axis in self.axes]).rsplit(".", 1)
        return tuple(f"{stem}-{number}.{ending}" for number in range(len(self)))

    def log_name(self, template: str) -> str:
        """Return the name of the tasks' logs, in which ``%a`` stands for the number of the point."""
        if not self.axes:
            return f"{template}.log"
        stem, ending = _plain(template, [axis.name for axis in self.axes]).rsplit(".", 1)
        return f"{stem}-%a.{ending}.log"


def read_axis(text: str, known: Sequence[Parameter] | None) -> Axis:
    """Read ``lr=1e-3,1e-4``, ``seed=0..3``, ``seed=0..100..10`` or ``layers=[[64, 64], [128]]`` (YAML).

    Raises
    ------
    GipfelError
        The text has no name or no values.
    """
    name, equals, given = text.partition("=")
    name = name.strip()
    if not equals or not name or not given.strip():
        raise GipfelError(
            f"{text!r} is not a valid axis of a grid.", "Write --grid lr=1e-3,1e-4 or --grid seed=0..3."
        )
    types = {each.name: each.type for each in known or ()}
    values = _values(name, given.strip(), as_text=wants_text(types.get(name, "")))
    if len(set(values)) < len(values):
        raise GipfelError(f"The grid has the same value of {name} twice.", "Remove one of them.")
    return Axis(name=name, values=values)


def grid_of(axes: Sequence[Axis], fixed: Mapping[str, Any]) -> Grid:
    """Return a grid with these axes.

    Raises
    ------
    GipfelError
        An axis appears twice or is also a fixed parameter, or the grid has too many points.
    """
    names = [axis.name for axis in axes]
    for name in names:
        if names.count(name) > 1 or name in fixed:
            raise GipfelError(f"{name} is given twice.", "Give it once, by -p or by --grid.")
    grid = Grid(axes=tuple(axes))
    if len(grid) > MAX_POINTS:
        raise GipfelError(
            f"The grid has {len(grid)} points, but at most {MAX_POINTS} are possible.", "Use fewer values."
        )
    return grid


def _values(name: str, text: str, *, as_text: bool) -> tuple[str, ...]:
    found: list[Any]
    if text.startswith("["):
        try:
            found = list(from_yaml(text))
        except Exception as error:
            raise GipfelError(
                f"The values of {name} are not a YAML list.", "Write them as [a, b]."
            ) from error
    elif match := _RANGE.fullmatch(text):
        first, last, step = int(match[1]), int(match[2]), int(match[3] or 1)
        count = abs(last - first) // step + 1 if step else 0
        if not 0 < count <= MAX_POINTS:
            raise GipfelError(
                f"The range {text} of {name} can't be used.", "Write first..last or first..last..step."
            )
        direction = step if last >= first else -step
        found = [first + direction * each for each in range(count)]
    else:
        found = [part.strip() for part in text.split(",")]
        found = found if as_text else [guess(part) for part in found]
    if not found or "" in found:
        raise GipfelError(
            f"A value of {name} is empty.", "Remove the extra comma, or write the values as [a, '']."
        )
    for each in found:
        check_size(name, each)
    return tuple(to_yaml(each) for each in found)


def _filled(template: str, point: Sequence[tuple[str, str]]) -> str:
    if any(f"{{{name}}}" in template for name, _ in point):
        for name, value in point:
            template = template.replace(f"{{{name}}}", value)
        return template
    stem, ending = template.rsplit(".", 1)
    return f"{stem}-{'-'.join(f'{name}={value}' for name, value in point)}.{ending}"


def _plain(template: str, names: Sequence[str]) -> str:
    for name in names:
        template = template.replace(f"{{{name}}}", "")
    stem, ending = template.rsplit(".", 1)
    return f"{stem.strip('-_. ') or 'out'}.{ending}"


def _short(text: str) -> str:
    return _ODD.sub("_", text.strip("'\"")).strip("_")[:_MAX_VALUE] or "_"
