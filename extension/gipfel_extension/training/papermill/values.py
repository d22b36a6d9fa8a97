"""Values of parameters: their YAML texts for a job, and their check against annotations."""

import ast
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gipfel_cluster.model import GipfelError, one_line

_MAX_FILE_BYTES = 1 << 20
# Largest number of values after all aliases are expanded, as they are written to a cell.
_MAX_VALUES = 100_000
# PyYAML writes these characters unescaped, but parses them as line breaks.
_READ_AS_BREAKS = ("\x85", "\u2028", "\u2029")
_PLAIN: dict[str, Callable[[Any], bool]] = {
    "int": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "float": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "str": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "None": lambda value: value is None,
    "Path": lambda value: isinstance(value, str | Path),
    "list": lambda value: isinstance(value, list | tuple),
    "tuple": lambda value: isinstance(value, list | tuple),
    "Sequence": lambda value: isinstance(value, list | tuple),
    "dict": lambda value: isinstance(value, dict),
    "Mapping": lambda value: isinstance(value, dict),
}
_OLD = {"List": "list", "Tuple": "tuple", "Dict": "dict"}


def to_yaml(value: Any) -> str:
    """Return a value as YAML, which, unlike JSON, supports NaN and infinity."""
    text = _dump(value, plain=True)
    if any(each in text for each in _READ_AS_BREAKS):
        text = _dump(value, plain=False)
    # PyYAML adds the document end marker to a plain scalar.
    return text.removesuffix("\n...\n").removesuffix("\n")


def from_yaml(text: str) -> Any:
    """Return the value of a YAML text; dates remain text, as in papermill."""
    import yaml  # noqa: PLC0415
    from papermill.iorw import NoDatesSafeLoader  # noqa: PLC0415 - a second

    from gipfel_cluster.definition_files import DepthLimitedScanner  # noqa: PLC0415

    class Loader(DepthLimitedScanner, NoDatesSafeLoader):  # type: ignore[misc]
        """Papermill's loader with a limit on nesting."""

    return yaml.load(text, Loader=Loader)  # noqa: S506 - a SafeLoader


def read_mapping(text: str, what: str) -> dict[str, Any]:
    """Return names and values of a YAML text.

    Raises
    ------
    GipfelError
        The text is not a YAML mapping, or its values can't be written to a cell.
    """
    import yaml  # noqa: PLC0415

    try:
        found = from_yaml(text)
    except (yaml.YAMLError, RecursionError, ValueError, TypeError) as error:
        why = one_line(str(error))[:160]
        raise GipfelError(f"{what} is not valid YAML: {why}.", "Write lines such as 'lr: 0.1'.") from error
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise GipfelError(f"{what} does not map names to values.", "Write lines such as 'lr: 0.1'.")
    for name, value in found.items():
        check_size(name, value)
    return found


def check_size(name: str, value: Any) -> None:
    """Check the size of a value, because a few YAML aliases can expand to more than fits in memory.

    Raises
    ------
    GipfelError
        The value contains itself, a number with thousands of digits, or too many values.
    """
    try:
        count = _count(value, {})
    except (RecursionError, ValueError):
        raise GipfelError(
            f"The value of {name!r} can't be used: it contains itself, or a number that is too long.",
            "Put it into a file and give its path.",
        ) from None
    if count > _MAX_VALUES:
        raise GipfelError(
            f"The value of {name!r} has {count:.3g} values, but at most {_MAX_VALUES} are possible.",
            "Put them into a file and give its path.",
        )


def read_file(path: str) -> str:
    """Return the text of a parameter file, which may be a pipe.

    Raises
    ------
    GipfelError
        The file can't be read, is not text, or is longer than 1 MiB.
    """
    check = "Check the path."
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - as typed
            if stat.S_ISCHR(os.fstat(file.fileno()).st_mode):
                raise GipfelError(f"The file of parameters {path} is a device.", check)
            content = file.read(_MAX_FILE_BYTES + 1)
        text = content.decode()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise GipfelError(f"The file of parameters {path} can't be read: {why}.", check) from error
    if len(content) > _MAX_FILE_BYTES:
        raise GipfelError(
            f"The file of parameters {path} is longer than 1 MiB.", "Give the path of large data as a value."
        )
    return text


def is_of_type(annotation: str, value: Any) -> bool:
    """Return whether a value has the type of an annotation; True for unsupported annotations.

    An int is also a float, a bool is not an int, and a list is accepted as a tuple, which YAML does not have.
    """
    try:
        return _matches(ast.parse(annotation.strip().strip("\"'"), mode="eval").body, value)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return True


def wants_text(annotation: str) -> bool:
    """Return whether the annotation asks for text rather than a number."""
    return is_of_type(annotation, "") and not is_of_type(annotation, 0)


def _dump(value: Any, *, plain: bool) -> str:
    import yaml  # noqa: PLC0415 - only where parameters are given

    return str(yaml.safe_dump(value, default_flow_style=True, allow_unicode=plain, width=2**30))


def _count(value: Any, known: dict[int, int]) -> int:
    """Return the number of values after all aliases are expanded."""
    if isinstance(value, int):
        str(value)
    if not isinstance(value, dict | list | tuple | set):
        return 1
    if id(value) not in known:
        known[id(value)] = -1
        inside = [*value.keys(), *value.values()] if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_count(each, known) for each in inside)
    if known[id(value)] < 0:
        raise ValueError("holds itself")
    return known[id(value)]


def _matches(node: ast.expr, value: Any) -> bool:
    match node:
        case ast.Constant(value=None):
            return value is None
        case ast.Constant(value=str() as quoted):
            return is_of_type(quoted, value)
        case ast.Name() | ast.Attribute():
            known = _PLAIN.get(_name(node))
            return known is None or known(value)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _matches(left, value) or _matches(right, value)
        case ast.Subscript(value=outer, slice=inner):
            return _matches_inside(_name(outer), _arguments(inner), value)
    return True


def _matches_inside(outer: str, arguments: list[ast.expr], value: Any) -> bool:
    if outer in {"Optional", "Union"}:
        return (outer == "Optional" and value is None) or any(_matches(each, value) for each in arguments)
    if outer == "Literal":
        words = [each.value for each in arguments if isinstance(each, ast.Constant)]
        return any(value == word and type(value) is type(word) for word in words)
    known = _PLAIN.get(outer)
    if known is None or not known(value):
        return known is None
    if outer in {"dict", "Mapping"} and len(arguments) == 2:
        return all(_matches(arguments[0], k) and _matches(arguments[1], v) for k, v in value.items())
    return outer not in {"list", "Sequence"} or all(_matches(arguments[0], each) for each in value)


def _name(node: ast.expr) -> str:
    word = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return _OLD.get(word, word)


def _arguments(node: ast.expr) -> list[ast.expr]:
    return list(node.elts) if isinstance(node, ast.Tuple) else [node]
