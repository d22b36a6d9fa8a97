"""``${VAR}``, ``${VAR:-default}`` and ``$${literal}`` in the values of an EDF."""

import re
from collections.abc import Callable

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
    # Behind the last brace nothing is closed any more, and looking for what closes it would take n² steps.
    end = text.rfind("}") + 1 if "${" in text else 0
    fields, start = [], 0
    for match in _COLON.finditer(text, 0, end):
        if match[0] == ":":
            fields.append(text[start : match.start()])
            start = match.end()
    first, *rest = text[end:].split(":")
    return (*fields, text[start:end] + first, *rest)


def unbraced_variables(text: str) -> tuple[str, ...]:
    """List the names that are written ``$NAME``, which stays as it is because the braces are missing."""
    return tuple(_UNBRACED.findall(text)) if "$" in text else ()
