"""Definitions that users, sites and packages write as YAML files: finding them, and checking them with lines.

A definition is a file of its own, validated by a pydantic model: blueprints of services, rules. Each mistake
is one line with the file's line number, and its fix. :func:`definition_directories` lists where they are.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from .model import Frozen, GipfelError, one_line
from .regular_files import read_regular
from .yaml_document import YamlMapping, line_of, read_yaml, suggestion

SUFFIXES = (".yaml", ".yml")
_MAX_FILES = 500
_MAX_BYTES = 800_000
_MAX_DIAGNOSTICS = 20
_JSON_SCHEMA = "https://json-schema.org/draft/2020-12/schema"
#: Names that pydantic adds to the path of an error in a union.
_UNION_TAGS = frozenset(("bool", "int", "float", "str"))

_Model = TypeVar("_Model", bound=BaseModel)


class FileDiagnostic(Frozen):
    """A mistake in a definition's file: line (0 if there is none), problem and fix."""

    file: str
    line: int
    problem: str
    fix: str

    def __str__(self) -> str:
        where = f", line {self.line}" if self.line else ""
        return f"{self.file}{where}: {self.problem}"


class CrossProblem(Protocol):
    """A mistake between values that are valid by themselves, with the path of one of them in the document."""

    @property
    def path(self) -> tuple[str | int, ...]:
        """Keys and indices from the top of the document."""
        ...

    @property
    def problem(self) -> str:
        """A clause without its full stop."""
        ...

    @property
    def fix(self) -> str:
        """Advice on the value to write instead, as one sentence."""
        ...


class DefinitionFile(Generic[_Model]):
    """The format of one kind of definition.

    Parameters
    ----------
    noun
        What a file is, such as ``blueprint``.
    top_fix
        What to write if the document is not a mapping.
    cross_problems
        Function that returns mistakes between values that are valid by themselves.
    """

    def __init__(
        self,
        model: type[_Model],
        noun: str,
        top_fix: str,
        cross_problems: Callable[[_Model], Iterable[CrossProblem]] = lambda _: (),
    ) -> None:
        self._model, self._noun, self._top_fix = model, noun, top_fix
        self._cross_problems = cross_problems

    def read(self, path: Path) -> _Model:
        """Return the definition of a file.

        Raises
        ------
        GipfelError
            The file can't be read or has a mistake; the message is about the first one.
        """
        found, diagnostics = self.check(path)
        if found is None:
            raise GipfelError(str(diagnostics[0]), diagnostics[0].fix)
        return found

    def check(self, path: Path) -> tuple[_Model | None, tuple[FileDiagnostic, ...]]:
        """Return a file's definition, or None and its mistakes, at most 20, in the order of their lines."""
        try:
            text = read_regular(path.resolve(), _MAX_BYTES).decode()
        except UnicodeDecodeError:
            return None, (_diagnostic(path, 0, "this is not UTF-8 text.", "Name a YAML file."),)
        except (OSError, RuntimeError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            return None, (
                _diagnostic(path, 0, f"this can't be read: {reason}.", f"Name a {self._noun}'s file."),
            )
        try:
            document = read_yaml(text, str(path), self._noun, self._top_fix)
        except GipfelError as error:
            # The file's name is added by the diagnostic.
            problem = error.problem.removeprefix(str(path)).lstrip(" ,:")
            return None, (FileDiagnostic(file=str(path), line=0, problem=problem, fix=error.fix),)
        try:
            found = self._model.model_validate(document)
        except (ValidationError, RecursionError) as error:
            mistakes = sorted(self._model_diagnostics(error, document, path), key=lambda each: each.line)
            return None, tuple(mistakes[:_MAX_DIAGNOSTICS])
        problems = [
            _diagnostic(path, line_of(document, each.path), f"{each.problem}.", each.fix)
            for each in self._cross_problems(found)
        ]
        if problems:
            return None, tuple(sorted(problems, key=lambda each: each.line)[:_MAX_DIAGNOSTICS])
        return found, ()

    def json_schema(self, title: str) -> dict[str, Any]:
        """Return the JSON Schema of the definitions, for editors."""
        return {"$schema": _JSON_SCHEMA, **self._model.model_json_schema(), "title": title}

    def _model_diagnostics(
        self, error: ValidationError | RecursionError, document: YamlMapping, path: Path
    ) -> Iterator[FileDiagnostic]:
        if isinstance(error, RecursionError):
            yield _diagnostic(path, 0, "this is nested too deeply.", "Shorten it.")
            return
        seen: set[str] = set()
        for each in error.errors(include_url=False, include_input=False):
            location = tuple(part for part in each["loc"] if part != "[key]" and part not in _UNION_TAGS)
            key = ".".join(str(part) for part in location)[:120]
            if key in seen:
                continue
            seen.add(key)
            line = line_of(document, location)
            if each["type"] == "extra_forbidden":
                known = _known_keys(self._model, location)
                fix = suggestion(str(location[-1]), known) or f"Known keys: {', '.join(known)}."
                yield _diagnostic(path, line, f"{key!r} is not a known key.", fix)
            elif each["type"] == "missing":
                yield _diagnostic(path, line, f"{key!r} is missing.", "Add this key.")
            else:
                message = str(each["msg"]).removeprefix("Value error, ").rstrip(".")
                problem, _, fix = message.partition(" | ")
                yield _diagnostic(path, line, f"{key or 'this'}: {problem}.", fix or "Correct the value.")


def definition_directories(
    kind: str, variable: str, shipped: Path, environment: Mapping[str, str]
) -> Iterator[tuple[str, Path]]:
    """Yield the directories of a kind of definitions, each with its origin; the first one with a name wins.

    The user's are in ``~/.gipfel/<kind>``, the site's in the directories that a variable names. A package
    names a module, whose directory has them, as an entry point of the group ``gipfel.<kind>``.
    """
    yield "user", Path(environment.get("HOME") or Path.home()) / ".gipfel" / kind
    for each in environment.get(variable, "").split(os.pathsep):
        if each:
            yield "site", Path(each).expanduser()
    for point in sorted(entry_points(group=f"gipfel.{kind}")):
        # The module is located, not imported: a definition is data.
        try:
            spec = find_spec(point.module)
        except (ImportError, ValueError):
            continue
        for directory in (spec.submodule_search_locations or ()) if spec else ():
            yield point.name, Path(directory)
    yield "gipfel", shipped


def definition_paths(directory: Path) -> list[Path]:
    """Return the definitions' files of a directory, at most 500; none where it cannot be read."""
    try:
        listed = sorted(each for each in directory.iterdir() if each.suffix in SUFFIXES)
    except OSError:
        return []
    return listed[:_MAX_FILES]


def _known_keys(top: type[BaseModel], location: tuple[str | int, ...]) -> tuple[str, ...]:
    """Return the keys of the model in which an unknown key was found."""
    model: Any = top
    for part in location[:-1]:
        if isinstance(model, type) and issubclass(model, BaseModel):
            field = model.model_fields.get(str(part))
            model = field.annotation if field else None
        else:
            # A mapping or a tuple: the model of its values.
            model = next(
                (
                    each
                    for each in reversed(get_args(model))
                    if isinstance(each, type) and issubclass(each, BaseModel)
                ),
                None,
            )
    return tuple(model.model_fields) if isinstance(model, type) and issubclass(model, BaseModel) else ()


def _diagnostic(path: Path, line: int, problem: str, fix: str) -> FileDiagnostic:
    return FileDiagnostic(file=str(path), line=line, problem=one_line(problem)[:600], fix=one_line(fix)[:600])
