"""Find and read YAML files in which users, sites and packages define things such as blueprints and rules.

The text may be hostile, so its size and nesting are limited. Mistakes are reported with their line.
"""

import difflib
import os
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import lru_cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from .model import Frozen, GipfelError, one_line
from .regular_files import read_regular

MAX_CHARACTERS = 200_000
#: Maximum depth of nesting.
MAX_DEPTH = 40
#: Maximum number of values in a document; those that an alias repeats count each time.
_MAX_VALUES = 20_000
SUFFIXES = (".yaml", ".yml")
_MAX_FILES = 500
_MAX_BYTES = 800_000
_MAX_DIAGNOSTICS = 20
_JSON_SCHEMA = "https://json-schema.org/draft/2020-12/schema"
#: Names that pydantic adds to the path of an error in a union.
_UNION_TAGS = frozenset(("bool", "int", "float", "str"))

_Model = TypeVar("_Model", bound=BaseModel)


class DepthLimitedScanner(yaml.scanner.Scanner):  # type: ignore[misc]
    """Base class for YAML loaders of untrusted text; it must be the first of the bases.

    PyYAML takes quadratic time and recurses for nested brackets: a few kilobytes of them take it half a
    minute.
    """

    def fetch_flow_collection_start(self, token: Any) -> None:
        """Scan the start of a list or mapping in brackets, unless it is nested too deeply."""
        if self.flow_level >= MAX_DEPTH:
            raise self._too_deep()
        super().fetch_flow_collection_start(token)

    def add_indent(self, column: int) -> bool:
        """Scan the start of an indented list or mapping, unless it is nested too deeply."""
        if len(self.indents) >= MAX_DEPTH:
            raise self._too_deep()
        return bool(super().add_indent(column))

    def _too_deep(self) -> yaml.YAMLError:
        return yaml.scanner.ScannerError(None, None, "it is nested too deeply", self.get_mark())


class _Loader(DepthLimitedScanner, yaml.SafeLoader):  # type: ignore[misc]
    """PyYAML's safe loader with a limited nesting depth."""


class YamlMapping(dict[str, Any]):
    """Mapping with its own line and the line of each key, counted from 1."""

    line: int = 0
    lines: dict[str, int]


class YamlList(list[Any]):
    """List with the line of each item, counted from 1."""

    lines: list[int]


def read_yaml(text: str, source: str, noun: str, top_fix: str) -> YamlMapping:
    """Return the mapping in a text.

    Parameters
    ----------
    source
        Name of the text in errors.
    noun
        What the document is, such as ``protocol``.
    top_fix
        What to write if the document is not a mapping.

    Raises
    ------
    GipfelError
        The text is not valid YAML, is not a mapping, or is too large.
    """
    if len(text) > MAX_CHARACTERS:
        problem = f"{source} has more than {MAX_CHARACTERS} characters."
        raise GipfelError(problem, f"A {noun} is a short file: shorten it.")
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        document = _Reader(loader, source, noun).value(node, 0) if node is not None else None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise GipfelError(
            f"{source}{line}: this is not valid YAML: {problem}.", "Correct the file."
        ) from error
    except (RecursionError, ValueError) as error:
        raise GipfelError(
            f"{source}: this is not valid YAML: {str(error)[:200]}.", "Correct the file."
        ) from error
    if not isinstance(document, YamlMapping):
        raise GipfelError(
            f"{source} is not a {noun}: it {'is empty' if document is None else 'has no keys at its top'}.",
            top_fix,
        )
    return document


class _Reader:
    """Converter of YAML nodes to values, which counts them: an alias may repeat a large value many times."""

    def __init__(self, loader: yaml.SafeLoader, source: str, noun: str) -> None:
        self._loader, self._source, self._noun, self._count = loader, source, noun, 0

    def value(self, node: yaml.Node, depth: int) -> Any:
        self._count += 1
        if self._count > _MAX_VALUES or depth > MAX_DEPTH:
            problem = f"this is too large or nested too deeply for a {self._noun}"
            raise self._error(node, problem, "Shorten it.")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, depth)
        if isinstance(node, yaml.SequenceNode):
            items = YamlList(self.value(each, depth + 1) for each in node.value)
            items.lines = [each.start_mark.line + 1 for each in node.value]
            return items
        value = self._loader.construct_object(node)
        if not isinstance(value, str | int | float | bool | None):
            # YAML turns some words into dates or bytes: keep their text.
            return str(node.value)
        return value

    def _mapping(self, node: yaml.MappingNode, depth: int) -> YamlMapping:
        mapping = YamlMapping()
        mapping.line, mapping.lines = node.start_mark.line + 1, {}
        for key_node, value_node in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                raise self._error(key_node, "the merge key '<<' is not supported", "Write the keys out.")
            key = self.value(key_node, depth + 1)
            if not isinstance(key, Hashable) or isinstance(key, bool | None):
                raise self._error(key_node, "a key must be text", "Put it in quotes.")
            name = str(key)
            if name in mapping:
                raise self._error(key_node, f"the key {name[:60]!r} appears twice", "Keep one of them.")
            mapping[name] = self.value(value_node, depth + 1)
            mapping.lines[name] = key_node.start_mark.line + 1
        return mapping

    def _error(self, node: yaml.Node, problem: str, fix: str) -> GipfelError:
        return GipfelError(f"{self._source}, line {node.start_mark.line + 1}: {problem}.", fix)


def line_of(document: Any, path: Iterable[str | int]) -> int:
    """Return the line of the deepest part of a path that the document has; 1 if it has none."""
    value, line = document, 1
    for part in path:
        if isinstance(value, YamlMapping):
            line = value.lines.get(str(part), line)
            value = value.get(str(part))
        elif isinstance(value, YamlList) and isinstance(part, int) and part < len(value):
            line = value.lines[part]
            value = value[part]
        else:
            break
    return line


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return ``Did you mean 'x'?``, or an empty string where no known name is similar."""
    similar = difflib.get_close_matches(name, list(known), 1, 0.6)
    return f"Did you mean {similar[0]!r}?" if similar else ""


def most_specific_error(error: ValidationError) -> Mapping[str, Any]:
    """Return the most informative error: an unknown key is often a misspelling of a missing one."""
    parts = error.errors(include_url=False, include_input=False)
    return next((part for part in parts if part["type"] == "extra_forbidden"), parts[0])


class FileDiagnostic(Frozen):
    """A mistake in a definition's file: line (0 if there is none), problem and fix."""

    file: str
    line: int
    problem: str
    fix: str

    def __str__(self) -> str:
        where = f", line {self.line}" if self.line else ""
        return f"{self.file}{where}: {self.problem}"


class CrossProblem(Frozen):
    """Values that are valid each but contradict each other, with the path of one of them in the document.

    ``problem`` is a clause without its full stop, ``fix`` advice on the value to write, as one sentence.
    """

    path: tuple[str | int, ...]
    problem: str
    fix: str


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
            return None, (_diagnostic(path, 0, "this is not UTF-8 text.", "Give the path of a YAML file."),)
        except (OSError, RuntimeError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            return None, (
                _diagnostic(
                    path, 0, f"this can't be read: {reason}.", f"Give the path of a {self._noun}'s file."
                ),
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
                # Validators may append a fix.
                problem, _, fix = message.partition(" | ")
                yield _diagnostic(path, line, f"{key or 'this'}: {problem}.", fix or "Correct the value.")


def definition_directories(
    kind: str, variable: str, shipped: Path, environment: Mapping[str, str]
) -> Iterator[tuple[str, Path]]:
    """Yield the directories of a kind of definitions, each with its origin; of equal names the first counts.

    The user's directory is ``~/.gipfel/<kind>``; the environment variable ``variable`` lists the site's,
    separated by ``:``. A package registers a module as an entry point of the group ``gipfel.<kind>``;
    definitions are in the module's directory. ``shipped`` is the directory of Gipfel's own.
    """
    yield "user", Path(environment.get("HOME") or Path.home()) / ".gipfel" / kind
    for each in environment.get(variable, "").split(os.pathsep):
        if each:
            yield "site", Path(each).expanduser()
    yield from _package_directories(kind, tuple(map(_directory_stamp, sys.path)))
    yield "gipfel", shipped


@lru_cache(maxsize=8)
def _package_directories(kind: str, _stamps: tuple[tuple[str, int], ...]) -> tuple[tuple[str, Path], ...]:
    """Return the directories of packages; ``_stamps`` of the import path change with an installation.

    A search takes about 10 ms, and a server needs the directories once a second.
    """
    found = []
    for point in sorted(entry_points(group=f"gipfel.{kind}")):
        # The module is located, not imported: a definition is data.
        try:
            spec = find_spec(point.module)
        except (ImportError, ValueError):
            continue
        directories = (spec.submodule_search_locations or ()) if spec else ()
        found += [(point.name, Path(each)) for each in directories]
    return tuple(found)


def _directory_stamp(directory: str) -> tuple[str, int]:
    try:
        return directory, Path(directory).stat().st_mtime_ns
    except OSError:
        return directory, 0


def definition_paths(directory: Path) -> list[Path]:
    """Return the paths of the definition files in a directory, at most 500; none if it can't be read."""
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
