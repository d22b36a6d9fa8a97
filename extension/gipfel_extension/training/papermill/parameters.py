"""Parameters of a notebook: names, types, values that a user has typed, and a grid of them; pure.

Submission and array tasks identify a point of a grid by the same number; each point has its own output.
"""

import difflib
import keyword
import logging
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import Field

from gipfel_cluster.model import Frozen, GipfelError, one_line

from .values import check_size, from_yaml, is_of_type, read_file, read_mapping, to_yaml, wants_text

_TAG = "parameters"
#: Shorter names are never taken for a misspelt one.
_MIN_CHARACTERS = 3
_MAX_SOURCE = 256 << 10
_BLANKS = re.compile(r"[^\S\n]{100,}")
# Parameters of papermill's option --inject-paths.
_PATH_PARAMETERS = frozenset({"PAPERMILL_INPUT_PATH", "PAPERMILL_OUTPUT_PATH"})


class Parameter(Frozen):
    """A parameter in the notebook's ``parameters`` cell; ``type`` is its annotation, empty without one."""

    name: str
    type: str = ""
    default: str = ""
    help: str = ""


def known_parameters(
    notebook: Any, *, kernel: str | None = None, language: str | None = None
) -> tuple[Parameter, ...] | None:
    """Return the parameters of a notebook's ``parameters`` cell; None if its language can't be inspected.

    Source: papermill's inspection of that cell.
    """
    from papermill.translators import papermill_translators  # noqa: PLC0415 - a second
    from papermill.utils import nb_kernel_name, nb_language  # noqa: PLC0415

    cell = next((cell for cell in notebook.cells if _is_tagged(cell)), None)
    python = notebook.metadata.get("kernelspec", {}).get("language", "python") == "python"
    if cell is None:
        return () if python else None
    quiet = logging.getLogger("papermill")
    level = quiet.level
    # Papermill warns about lines that it can't parse, although Python can run them.
    quiet.setLevel(logging.ERROR)
    try:
        names = (nb_kernel_name(notebook, kernel), nb_language(notebook, language))
        found = papermill_translators.find_translator(*names).inspect({"source": _inspected(cell.source)})
    except Exception:  # noqa: BLE001 - papermill does not support the kernel or language
        return None
    finally:
        quiet.setLevel(level)
    if not found and not python:
        return None
    return tuple(
        Parameter(
            name=each.name,
            type="" if each.inferred_type_name == "None" else each.inferred_type_name,
            default=each.default,
            help=each.help,
        )
        for each in found
    )


def _inspected(source: str) -> str:
    """Return a cell with shortened runs of blanks, for which papermill's patterns take quadratic time."""
    return _BLANKS.sub(" ", source[:_MAX_SOURCE])


def has_parameters_cell(notebook: Any) -> bool:
    """Return whether a cell is tagged ``parameters``."""
    return any(_is_tagged(cell) for cell in notebook.cells)


def _is_tagged(cell: Any) -> bool:
    return _TAG in cell.metadata.get("tags", ())


def check_names(
    known: Sequence[Parameter] | None, names: Iterable[str], *, what: str, strict: bool = False
) -> tuple[str, ...]:
    """Check the names of parameters that are passed to a notebook.

    A name that the notebook's ``parameters`` cell does not set is allowed, because papermill adds it in a
    separate cell. A misspelt name is an error.

    Parameters
    ----------
    known
        Result of `known_parameters`.
    strict
        Allow only known names.

    Returns
    -------
    A sentence for each name that is allowed but not known.

    Raises
    ------
    GipfelError
        A name is not allowed; the error has the most similar known name.
    """
    if known is None:
        return ()
    names, names_known = list(names), [each.name for each in known]
    notes: list[str] = []
    for name in names:
        if name in names_known or name in _PATH_PARAMETERS:
            continue
        if not name.isidentifier() or keyword.iskeyword(name):
            raise GipfelError(
                f"{name!r} is not a valid name of a parameter.", "Give a valid name of a Python variable."
            )
        meant = next((each for each in names_known if each not in names and is_misspelt(name, each)), None)
        near = meant or next(iter(difflib.get_close_matches(name, names_known, 1, 0.5)), None)
        has = f"It has {', '.join(names_known)}." if names_known else "It has none."
        if strict or meant:
            fix = f"Did you mean {near!r}?" if near else has
            raise GipfelError(f"{what} has no parameter {name!r}.", fix)
        notes.append(f"{what} has no parameter {name!r}; it is set nevertheless. {has}")
    return tuple(notes)


def is_misspelt(name: str, known: str) -> bool:
    """Return whether a name differs from a known one by a single typing error.

    A typing error is one additional, missing or wrong letter, or two exchanged neighbours, regardless of
    case. Short names such as ``lr`` and ``wd``, and numbers as in ``layer1``, are assumed to differ on
    purpose.
    """
    one, other = name.lower(), known.lower()
    if min(len(one), len(other)) < _MIN_CHARACTERS or abs(len(one) - len(other)) > 1:
        return False
    for _ in range(2):
        # Remove the common beginning and reverse; the second pass removes the common end.
        pairs = enumerate(zip(one, other, strict=False))
        same = next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
        one, other = one[same:][::-1], other[same:][::-1]
    if any(character.isdigit() for character in one + other):
        return False
    return max(len(one), len(other)) <= 1 or (len(one) == 2 and one == other[::-1])


def check_types(known: Sequence[Parameter] | None, values: Mapping[str, Any], *, what: str) -> None:
    """Check that the values of annotated parameters have the annotated types.

    Raises
    ------
    GipfelError
        A value has another type.
    """
    types = {each.name: each.type for each in known or () if each.type}
    for name, value in values.items():
        if name in types and not is_of_type(types[name], value):
            fix = (
                f"Use -r {name} …, which passes the value as text."
                if wants_text(types[name]) and isinstance(value, bool | int | float)
                else "Write True or False."
                if types[name] == "bool"
                else f"Give a value of type {one_line(types[name])}."
            )
            short = one_line(repr(value))[:60]
            raise GipfelError(
                f"{what} declares {name!r} as {types[name]}, but {short} is not a valid value.", fix
            )


class ParameterArgs(Frozen):
    """Parameters as typed, in the order of precedence of papermill's options, lowest first.

    ``files`` (-f) and ``yaml_texts`` (-y) are YAML, ``typed`` (-p) are texts whose type is guessed, and
    ``raw`` (-r) are texts.
    """

    files: tuple[str, ...] = ()
    yaml_texts: tuple[str, ...] = ()
    typed: tuple[tuple[str, str], ...] = ()
    raw: tuple[tuple[str, str], ...] = ()


def parameter_values(arguments: ParameterArgs, known: Sequence[Parameter] | None) -> dict[str, Any]:
    """Return the values of typed parameters: from files, YAML, ``-p`` and ``-r``; later ones take precedence.

    A value of ``-p`` for a parameter that is annotated as text remains text, even if it looks like a number.

    Raises
    ------
    GipfelError
        A file can't be read, or a text is not a YAML mapping.
    """
    types = {each.name: each.type for each in known or ()}
    values: dict[str, Any] = {}
    for path in arguments.files:
        values |= read_mapping(read_file(path), f"The file {path}")
    for text in arguments.yaml_texts:
        values |= read_mapping(text, "The text of -y")
    for name, text in arguments.typed:
        values[name] = text if wants_text(types.get(name, "")) else guess(text)
    values |= dict(arguments.raw)
    return values


def guess(text: str) -> Any:
    """Return the value of a text as papermill's ``-p`` reads it: True, False, None, a number, else text."""
    words = {"True": True, "False": False, "None": None}
    if text in words:
        return words[text]
    for number in (int, float):
        with suppress(ValueError):
            return number(text)
    return text


MAX_POINTS = 10_000

_RANGE = re.compile(r"(-?\d{1,9})\.\.(-?\d{1,9})(?:\.\.(\d{1,9}))?")
_ODD = re.compile(r"[^A-Za-z0-9.+_=-]+")
#: Maximum number of characters of a value, and of the whole name, in names of output files.
_MAX_VALUE, _MAX_NAME = 40, 200


class Axis(Frozen):
    """A parameter and its values, each as a YAML text."""

    name: str
    values: tuple[str, ...] = Field(min_length=1)


class Grid(Frozen):
    """All combinations of its axes' values; the last axis changes fastest. Without axes it has one point."""

    axes: tuple[Axis, ...] = ()

    def __len__(self) -> int:
        return math.prod(len(axis.values) for axis in self.axes)

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
