"""Whether a value is of the type that a parameter is annotated with; pure."""

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


def is_of_type(annotation: str, value: Any) -> bool:
    """Whether a value is of the type that an annotation names; True where the annotation is not understood.

    An int is a float too, a bool is no int, and a list stands for a tuple, which YAML does not know.
    """
    try:
        return _matches(ast.parse(annotation.strip().strip("\"'"), mode="eval").body, value)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return True


def wants_text(annotation: str) -> bool:
    """Whether text is what the annotation asks for, and no number."""
    return is_of_type(annotation, "") and not is_of_type(annotation, 0)


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
