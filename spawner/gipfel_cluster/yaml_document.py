"""YAML documents from untrusted sources: read safely, with the line of every key.

`read_yaml` returns a `YamlMapping`; `line_of` finds the line of a key, such as that of a validation error.
Text is limited in size, in depth and in the number of values, and has neither tags nor repeated keys.
"""

import difflib
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import yaml
from pydantic import ValidationError

from .model import GipfelError

MAX_CHARACTERS = 200_000
#: Levels of nesting at most.
MAX_DEPTH = 40
#: Values in one document at most; those that an alias repeats count each time.
_MAX_VALUES = 20_000


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
    loader = None
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
    finally:
        if loader is not None:
            loader.dispose()
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
            # YAML makes dates and bytes of some words; the text is meant.
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


def line_of(document: Any, path: Iterable[str | int], line: int = 1) -> int:
    """Return the line of the last part of a path that the document has."""
    value = document
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
