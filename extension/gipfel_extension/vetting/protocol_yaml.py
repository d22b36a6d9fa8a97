"""YAML of a person, read safely: limited in size and depth, no tags, no repeated keys, with its lines."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from gipfel_cluster.model import GipfelError

from ..shallow_yaml import DEEPEST, Shallow
from ..telemetry.files import read_regular

LARGEST_FILE = 200_000
#: Values in one file, counted where an alias repeats them.
_MOST_VALUES = 20_000


class _Loader(Shallow, yaml.SafeLoader):  # type: ignore[misc]
    """PyYAML's, for texts that may be made to cost much."""


class YamlMapping(dict[str, Any]):
    """A mapping that knows the line of itself and of each of its keys, counted from 1."""

    line: int = 0
    lines: dict[str, int]


def read_yaml(text: str, where: str) -> YamlMapping:
    """The mapping that a text holds.

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
        raise GipfelError(f"{where}{line}: this is no YAML: {problem}.", "Mend the file.") from error
    except (RecursionError, ValueError) as error:
        raise GipfelError(f"{where}: this is no YAML: {str(error)[:200]}.", "Mend the file.") from error
    finally:
        if loader is not None:
            loader.dispose()
    if not isinstance(document, YamlMapping):
        raise GipfelError(
            f"{where} is no protocol: it holds {'nothing' if document is None else 'no keys'} at its top.",
            "A protocol has 'name' and 'checks' (or vetnode's 'evals').",
        )
    return document


def read_yaml_file(path: Path) -> YamlMapping:
    """The mapping that a file holds; GipfelError where it can't be read."""
    try:
        if path.is_dir():
            raise GipfelError(f"{path} is a folder.", "Name the protocol's file.")
        content = read_regular(path, LARGEST_FILE * 4, follow=True)
        return read_yaml(content.decode(), str(path))
    except UnicodeDecodeError as error:
        raise GipfelError(f"{path} is no text in UTF-8.", "A protocol is a YAML file.") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise GipfelError(
            f"{path} can't be read: {reason}.", "Name a protocol's file or a shipped protocol."
        ) from error


class _Reader:
    """Turns nodes into values, and counts them: an alias may repeat a large value many times."""

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
                raise self._error(key_node, f"the key {name[:60]!r} stands here twice", "Keep one of them.")
            mapping[name] = self.value(value_node, depth + 1)
            mapping.lines[name] = key_node.start_mark.line + 1
        return mapping

    def _error(self, node: yaml.Node, problem: str, fix: str) -> GipfelError:
        return GipfelError(f"{self._where}, line {node.start_mark.line + 1}: {problem}.", fix)
