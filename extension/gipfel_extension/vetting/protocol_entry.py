"""Entries of a protocol: YAML with line numbers, and keys that become a check or a reason why they can't.

YAML is read safely: limited in size and depth, no tags, no repeated keys.
"""

import difflib
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from gipfel_cluster.model import GipfelError, one_line

from ..telemetry.files import read_regular
from .check import UnknownCheck, check_class
from .model import Scope
from .protocol import ProtocolCheck
from .quantities import quantity
from .shallow_yaml import DEEPEST, Shallow
from .threshold import Threshold

LARGEST_FILE = 200_000
#: Values in one file, counted where an alias repeats them.
_MOST_VALUES = 20_000
#: Keys that every entry may have; vetnode's entries, too.
KEYS = (
    "name", "type", "scope", "severity", "time_limit", "threshold", "tolerate_degraded", "skip_if_alone",
    "requirements", "parameters",
)  # fmt: skip
#: Keys whose values are taken as they are.
_AS_WRITTEN = ("severity", "tolerate_degraded", "skip_if_alone")


class _Loader(Shallow, yaml.SafeLoader):  # type: ignore[misc]
    """PyYAML's loader with a bounded cost."""


class YamlMapping(dict[str, Any]):
    """Mapping with its own line and the line of each key, counted from 1."""

    line: int = 0
    lines: dict[str, int]


def read_yaml(text: str, where: str) -> YamlMapping:
    """Return the mapping that a text holds.

    Raises
    ------
    GipfelError
        It is no YAML, no mapping, or more than a protocol can be.
    """
    if len(text) > LARGEST_FILE:
        raise GipfelError(f"{where} has more than {LARGEST_FILE} characters.", "A protocol is a short file.")
    loader = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        document = _Reader(loader, where).value(node, 0) if node is not None else None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise GipfelError(
            f"{where}{line}: this is not valid YAML: {problem}.", "Correct the file."
        ) from error
    except (RecursionError, ValueError) as error:
        raise GipfelError(
            f"{where}: this is not valid YAML: {str(error)[:200]}.", "Correct the file."
        ) from error
    finally:
        if loader is not None:
            loader.dispose()
    if not isinstance(document, YamlMapping):
        raise GipfelError(
            f"{where} is not a protocol: it holds {'nothing' if document is None else 'no keys'} at its top.",
            "A protocol has 'name' and 'checks' (or vetnode's 'evals').",
        )
    return document


def read_yaml_file(path: Path) -> YamlMapping:
    """Return the mapping that a file holds; GipfelError where it can't be read."""
    try:
        if path.is_dir():
            raise GipfelError(f"{path} is a folder.", "Name the protocol's file.")
        content = read_regular(path, LARGEST_FILE * 4, follow=True)
        return read_yaml(content.decode(), str(path))
    except UnicodeDecodeError as error:
        raise GipfelError(f"{path} is not UTF-8 text.", "A protocol is a YAML file.") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise GipfelError(
            f"{path} can't be read: {reason}.", "Name a protocol's file or a shipped protocol."
        ) from error


class _Reader:
    """Converts YAML nodes to values, and counts them: an alias may repeat a large value many times."""

    def __init__(self, loader: yaml.SafeLoader, where: str) -> None:
        self._loader, self._where, self._count = loader, where, 0

    def value(self, node: yaml.Node, depth: int) -> Any:
        self._count += 1
        if self._count > _MOST_VALUES or depth > DEEPEST:
            raise self._error(node, "this is larger or deeper than a protocol can be", "Write it shorter.")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, depth)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(each, depth + 1) for each in node.value]
        value = self._loader.construct_object(node)
        if not isinstance(value, str | int | float | bool | None):
            # YAML makes dates and bytes out of some words; a protocol means what is written.
            return str(node.value)
        return value

    def _mapping(self, node: yaml.MappingNode, depth: int) -> YamlMapping:
        mapping = YamlMapping()
        mapping.line, mapping.lines = node.start_mark.line + 1, {}
        for key_node, value_node in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                raise self._error(key_node, "'<<' is not understood here", "Write the keys out.")
            key = self.value(key_node, depth + 1)
            if not isinstance(key, Hashable) or isinstance(key, bool | None):
                raise self._error(key_node, "a key must be a word", "Put it in quotes.")
            name = str(key)
            if name in mapping:
                raise self._error(key_node, f"the key {name[:60]!r} appears twice", "Keep one of them.")
            mapping[name] = self.value(value_node, depth + 1)
            mapping.lines[name] = key_node.start_mark.line + 1
        return mapping

    def _error(self, node: yaml.Node, problem: str, fix: str) -> GipfelError:
        return GipfelError(f"{self._where}, line {node.start_mark.line + 1}: {problem}.", fix)


def entry_of(document: Mapping[str, Any], *, line: int = 0) -> ProtocolCheck:
    """Return the check that an entry of our protocols describes; with its `problem` where it can't be run."""
    lines = getattr(document, "lines", {})
    type_ = str(document.get("type") or "")
    name = str(document.get("name") or type_ or "without a name")[:200]
    name = one_line(name) or "without a name"
    unknown = [key for key in document if key not in KEYS]
    if unknown:
        at = lines.get(unknown[0], line)
        fix = near(unknown[0], KEYS) or "Parameters of a check belong below 'parameters'."
        return broken(name, type_, at, f"{unknown[0][:60]!r} is not a key of a check.", fix)
    if not type_:
        return broken(name, "", line, "This check has no type.", "Give it a type, such as temperature.")
    try:
        found = check_class(type_)
    except UnknownCheck as error:
        return broken(name, type_, lines.get("type", line), error.problem, _instead(error))
    return validated(document, name, type_, found, line)


def validated(  # noqa: PLR0911 - one for each part that can be wrong
    document: Mapping[str, Any], name: str, type_: str, found: Any, line: int
) -> ProtocolCheck:
    """Return the entry after validating scope, threshold and parameters."""
    lines = getattr(document, "lines", {})
    scopes = getattr(found, "scopes", (found.scope,))
    scope = document.get("scope", found.scope)
    if scope not in [str(each) for each in scopes]:
        can = ", ".join(scopes)
        return broken(
            name, type_, lines.get("scope", line), f"The scope of {type_} can be: {can}.", "Choose one."
        )
    parameters = document.get("parameters") or {}
    if not isinstance(parameters, Mapping):
        return broken(
            name, type_, lines.get("parameters", line), "'parameters' holds no keys.", "Write KEY: VALUE."
        )
    try:
        found.model_validate(dict(parameters))
    except ValidationError as error:
        return broken(name, type_, *_first(error, parameters, line, _fields(found)))
    except RecursionError:
        return broken(name, type_, line, "The parameters are nested too deep.", "")
    requirements = document.get("requirements") or []
    requirements = [requirements] if isinstance(requirements, str) else requirements
    values = {
        "name": name, "type": type_, "scope": Scope(scope), "line": line,
        "parameters": dict(parameters), "threshold": document.get("threshold"), "requirements": requirements,
        **{key: document[key] for key in _AS_WRITTEN if document.get(key) is not None},
    }  # fmt: skip
    try:
        if document.get("time_limit") is not None:
            values["time_limit_s"] = quantity(document["time_limit"])
        return ProtocolCheck.model_validate(values)
    except ValidationError as error:
        return broken(name, type_, *_first(error, document, line, KEYS))
    except ValueError as error:
        return broken(
            name, type_, lines.get("time_limit", line), f"The time limit {error}.", "Write it as 30 s."
        )


def broken(name: str, type_: str, line: int, problem: str, fix: str) -> ProtocolCheck:
    """Return an entry that can't be run."""
    # What it quotes is the file's: it must not drive a terminal.
    return ProtocolCheck(
        name=name, type=one_line(type_)[:80] or "unknown", line=line, problem=one_line(problem)[:600], fix=fix
    )


def near(word: str, known: Iterable[str]) -> str:
    """Return ``Did you mean 'x'?``, or an empty string where nothing is near."""
    found = difflib.get_close_matches(word, list(known), 1, 0.6)
    return f"Did you mean {found[0]!r}?" if found else ""


def telling(error: ValidationError) -> Any:
    """Return the most informative error: an unknown key is often the one that another part misses."""
    parts = error.errors(include_url=False, include_input=False)
    return next((part for part in parts if part["type"] == "extra_forbidden"), parts[0])


def _instead(error: UnknownCheck) -> str:
    return f"Did you mean {error.near!r}?" if error.near else "`gipfel vet --list` lists the checks."


def _fields(found: Any) -> tuple[str, ...]:
    return tuple(getattr(found, "model_fields", {}))


def _first(
    error: ValidationError, document: Mapping[str, Any], line: int, known: tuple[str, ...]
) -> tuple[int, str, str]:
    """Return line, problem and fix of the first error."""
    wrong = telling(error)
    path = [str(part) for part in wrong["loc"]]
    place: Any = document
    for part in path:
        if isinstance(place, YamlMapping):
            line = place.lines.get(part, line)
        place = place.get(part) if isinstance(place, Mapping) else None
    word = ".".join(path)[:120]
    if wrong["type"] == "extra_forbidden":
        known = tuple(Threshold.model_fields) if path[0] == "threshold" else known
        return (
            line,
            f"{word!r} is not known.",
            near(path[-1], known) or f"Known are: {', '.join(known)}.",
        )
    message = str(wrong["msg"]).removeprefix("Value error, ")
    return line, f"{word or 'This'}: {message}.", "Correct the value."
