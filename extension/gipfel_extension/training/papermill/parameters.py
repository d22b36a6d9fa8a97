"""Parameters of a notebook: names, types, and values that a user has typed."""

import difflib
import keyword
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gipfel_cluster.model import Frozen, GipfelError, one_line

from .values import is_of_type, read_file, read_mapping, wants_text

_TAG = "parameters"
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
        try:
            return number(text)
        except ValueError:
            continue
    return text
