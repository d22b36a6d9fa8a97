"""``${VAR}``, ``${VAR:-default}`` and ``$${literal}`` in the values of an EDF."""

import re
from collections.abc import Callable

from .limits import LONGEST
from .model import shortened

_TOKEN = re.compile(r"\$\$\{|\$\{(?P<body>[^}]*)\}|\$\{")
_COLON = re.compile(r"\$?\$\{[^}]*\}|:")
_BODY = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<fallback>:-(?P<value>.*))?", re.DOTALL)
_UNBRACED = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")

Lookup = Callable[[str], str | None]


class ExpansionError(Exception):
    """A value that can't be expanded: why, what to do, and a code for programs."""

    def __init__(self, code: str, message: str, fix: str) -> None:
        self.code, self.message, self.fix = code, message, fix
        super().__init__(message)


def never(name: str) -> None:
    """Stand for no variable."""


def undefined(name: str) -> ExpansionError:
    """Say that a variable is not defined."""
    name = shortened(name)
    return ExpansionError(
        "unknown-variable",
        f"the variable {name} is not defined.",
        f"Set {name}, or write ${{{name}:-}} if it may be empty.",
    )


def too_long() -> ExpansionError:
    """Say that a value is too long once its variables are expanded."""
    message = f"with its variables the value is longer than {LONGEST} characters."
    return ExpansionError("too-long", message, "Use fewer variables.")


def expand(text: str, lookup: Lookup, later: Lookup = never) -> str:
    """Replace every ``${VAR}`` by its value.

    Parameters
    ----------
    text
        A value as written in an EDF. A dollar sign without a brace stays as it is.
    lookup
        The value of a variable, or None where it isn't defined.
    later
        What stands for a variable without a default that will be defined later; None for any other.

    Raises
    ------
    ExpansionError
        A variable isn't defined, a brace isn't closed, the form is none of the three that EDFs have, or what
        comes out is longer than a process can be given.
    """
    if "${" not in text:
        return text
    length = 0

    def replace(match: re.Match[str]) -> str:
        nonlocal length
        if match[0] == "$${":
            return "${"
        if match["body"] is None:
            raise ExpansionError("unclosed-variable", "'${' is not closed by '}'.", "Write ${NAME}.")
        value = _value(match["body"], lookup, later)
        length += len(value)
        if length > LONGEST:
            raise too_long()
        return value

    return _TOKEN.sub(replace, text)


def _value(body: str, lookup: Lookup, later: Lookup) -> str:
    match = _BODY.fullmatch(body)
    if match is None:
        raise ExpansionError(
            "bad-variable", f"'${{{shortened(body)}}}' is no variable.", "Write ${NAME} or ${NAME:-default}."
        )
    if "${" in (match["value"] or ""):
        raise ExpansionError(
            "nested-variable",
            f"'${{{shortened(body)}}}' has a variable inside another.",
            "Write them one after another.",
        )
    value = lookup(match["name"])
    if match["fallback"] is not None:
        return value or match["value"]
    if value is None:
        value = later(match["name"])
    if value is None:
        raise undefined(match["name"])
    return value


def split_fields(text: str) -> tuple[str, ...]:
    """Split at every colon that isn't inside ``${…}``."""
    if "${" not in text:
        return tuple(text.split(":"))
    # Behind the last brace nothing is closed any more, and looking for what closes it would take n² steps.
    end = text.rfind("}") + 1
    fields, start = [], 0
    for match in _COLON.finditer(text, 0, end):
        if match[0] == ":":
            fields.append(text[start : match.start()])
            start = match.end()
    first, *rest = text[end:].split(":")
    return (*fields, text[start:end] + first, *rest)


def unbraced_variables(text: str) -> tuple[str, ...]:
    """List the names, each once, that are written ``$NAME``: without braces they stay as they are."""
    return tuple(dict.fromkeys(_UNBRACED.findall(text))) if "$" in text else ()
