"""``${VAR}``, ``${VAR:-default}`` and ``$${literal}`` in the values of an EDF."""

import re
from collections.abc import Callable

_TOKEN = re.compile(r"\$\$\{|\$\{(?P<body>[^}]*)\}|\$\{")
_OPAQUE = re.compile(r"\$?\$\{[^}]*\}")
_BODY = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<fallback>:-(?P<value>.*))?", re.DOTALL)
_UNBRACED = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")

Lookup = Callable[[str], str | None]


class ExpansionError(Exception):
    """A value that can't be expanded: why, what to do, and a code for programs."""

    def __init__(self, code: str, message: str, fix: str) -> None:
        self.code, self.message, self.fix = code, message, fix
        super().__init__(message)


def expand(text: str, lookup: Lookup) -> str:
    """Replace every ``${VAR}`` by its value.

    Parameters
    ----------
    text
        A value as written in an EDF. A dollar sign without a brace stays as it is.
    lookup
        The value of a variable, or None where it isn't defined.

    Raises
    ------
    ExpansionError
        A variable isn't defined, a brace isn't closed, or the form is none of the three that EDFs have.
    """
    if "${" not in text:
        return text

    def replace(match: re.Match[str]) -> str:
        if match[0] == "$${":
            return "${"
        if match["body"] is None:
            raise ExpansionError("unclosed-variable", "'${' is not closed by '}'.", "Write ${NAME}.")
        return _value(match["body"], lookup)

    return _TOKEN.sub(replace, text)


def _value(body: str, lookup: Lookup) -> str:
    match = _BODY.fullmatch(body)
    if match is None:
        raise ExpansionError(
            "bad-variable", f"'${{{body}}}' is no variable.", "Write ${NAME} or ${NAME:-default}."
        )
    if "${" in (match["value"] or ""):
        raise ExpansionError(
            "nested-variable",
            f"'${{{body}}}' has a variable inside another.",
            "Write them one after another.",
        )
    value = lookup(match["name"])
    if match["fallback"] is not None:
        return value or match["value"]
    if value is None:
        name = match["name"]
        raise ExpansionError(
            "unknown-variable",
            f"the variable {name} is not defined.",
            f"Set {name}, or write ${{{name}:-}} if it may be empty.",
        )
    return value


def split_fields(text: str) -> tuple[str, ...]:
    """Split at every colon that isn't inside ``${…}``."""
    if "${" not in text:
        return tuple(text.split(":"))
    fields, start = [], 0
    hidden = [match.span() for match in _OPAQUE.finditer(text)]
    for position, character in enumerate(text):
        if character == ":" and not any(first <= position < last for first, last in hidden):
            fields.append(text[start:position])
            start = position + 1
    return (*fields, text[start:])


def unbraced_variables(text: str) -> tuple[str, ...]:
    """List the names that are written ``$NAME``, which stays as it is because the braces are missing."""
    return tuple(_UNBRACED.findall(text)) if "$" in text else ()
