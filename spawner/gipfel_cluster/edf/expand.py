"""Variables in the values of an EDF: ``${VAR}``, ``${VAR:-default}`` and the literal ``$${VAR}``.

`expand` follows the Container Engine and Pyxis. `expand_bash` follows bash between double quotes, as Sarus
does: the forms of the Bash manual's "Shell Parameter Expansion" that need no array and assign nothing.
No command is run.
"""

import re
from collections.abc import Callable

from .model import MAX_VALUE_CHARACTERS, Dialect, shortened

_TOKEN = re.compile(r"\$\$\{|\$\{(?P<body>[^}]*)\}|\$\{")
_COLON = re.compile(r"\$?\$\{[^}]*\}|:")
_BODY = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<fallback>:-(?P<value>.*))?", re.DOTALL)
_UNBRACED = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
Lookup = Callable[[str], str | None]
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPERATOR = re.compile(r":[-+?]|##|%%|//|\^\^|,,|[-+?#%/^,:]")
_SPECIAL = re.compile(r"[$}\\]")
_SLICE = re.compile(r"\s*(?P<start>\d+|\s-\d+|\(-\d+\))\s*(?::\s*(?P<length>\d+)\s*)?")
_UNESCAPED_SLASH = re.compile(r"(?<!\\)/")
#: One character, with the backslash before it if there is one.
_CHARACTER = re.compile(r"\\.|.", re.DOTALL)
_MAX_NESTING = 20
_PATTERN_LENGTH = 100  # characters; a longer pattern could take minutes


class ExpansionError(Exception):
    """A value that can't be expanded: a code for programs, a message and a fix."""

    def __init__(self, code: str, message: str, fix: str) -> None:
        self.code, self.message, self.fix = code, message, fix
        super().__init__(message)


def no_variables(name: str) -> None:
    """Return None for every name: a lookup without variables."""


def expand(text: str, lookup: Lookup, deferred: Lookup = no_variables) -> str:
    """Replace every ``${VAR}`` by its value.

    Parameters
    ----------
    text
        A value as written in an EDF. A dollar sign without a brace is kept.
    lookup
        Returns the value of a variable, or None if it isn't defined.
    deferred
        Returns the text that replaces an undefined variable which only the job defines; None for any other.

    Raises
    ------
    ExpansionError
        A variable isn't defined, a brace isn't closed, the form is none of the three that EDFs have, or the
        result is longer than a process accepts.
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
        value = _value(match["body"], lookup, deferred)
        length += len(value)
        if length > MAX_VALUE_CHARACTERS:
            raise value_too_long()
        return value

    return _TOKEN.sub(replace, text)


def _value(body: str, lookup: Lookup, deferred: Lookup) -> str:
    match = _BODY.fullmatch(body)
    if match is None:
        raise ExpansionError(
            "bad-variable",
            f"'${{{shortened(body)}}}' is not a valid variable.",
            "Write ${NAME} or ${NAME:-default}.",
        )
    if "${" in (match["value"] or ""):
        raise ExpansionError(
            "nested-variable",
            f"'${{{shortened(body)}}}' has a variable inside another.",
            "Write them one after another.",
        )
    if match["fallback"] is not None:
        return lookup(match["name"]) or match["value"]
    return _defined(match["name"], lookup, deferred)


def _defined(name: str, lookup: Lookup, deferred: Lookup) -> str:
    value = lookup(name)
    if value is None:
        value = deferred(name)
    if value is None:
        raise undefined_variable(name)
    return value


def split_fields(text: str) -> tuple[str, ...]:
    """Split at every colon that isn't inside ``${…}``."""
    if "${" not in text:
        return tuple(text.split(":"))
    # No variable ends after the last closing brace; searching for one there would take n² steps.
    end = text.rfind("}") + 1
    fields, start = [], 0
    for match in _COLON.finditer(text, 0, end):
        if match[0] == ":":
            fields.append(text[start : match.start()])
            start = match.end()
    first, *rest = text[end:].split(":")
    return (*fields, text[start:end] + first, *rest)


def unbraced_variables(text: str) -> tuple[str, ...]:
    """List the distinct names that are written ``$NAME``, which `expand` does not replace."""
    return tuple(dict.fromkeys(_UNBRACED.findall(text))) if "$" in text else ()


def expand_bash(text: str, lookup: Lookup, deferred: Lookup = no_variables) -> str:
    """Replace every variable by its value, and every ``${NAME…}`` as bash does.

    Raises
    ------
    ExpansionError
        A variable isn't defined, a brace isn't closed, or the form is not supported.
    """
    return text if "$" not in text and "\\" not in text else _BashReader(text, lookup, deferred).read()


class _BashReader:
    def __init__(self, text: str, lookup: Lookup, deferred: Lookup) -> None:
        self._text = text
        self._lookup = lookup
        self._defer = deferred
        self._at = 0
        self._depth = 0

    def read(self) -> str:
        """Expand to the end of the text, or inside braces to the closing one."""
        parts: list[str] = []
        length = 0
        while match := _SPECIAL.search(self._text, self._at):
            parts.append(self._text[self._at : match.start()])
            self._at = match.end()
            if match[0] == "}" and self._depth:
                return "".join(parts)
            parts.append(self._variable() if match[0] == "$" else self._literal(match[0]))
            length += len(parts[-1])
            if length > MAX_VALUE_CHARACTERS:
                raise value_too_long()
        if self._depth:
            raise ExpansionError("unclosed-variable", "'${' is not closed by '}'.", "Write ${NAME}.")
        parts.append(self._text[self._at :])
        self._at = len(self._text)
        return "".join(parts)

    def _literal(self, character: str) -> str:
        if character == "\\" and self._text[self._at : self._at + 1] in {"$", "\\", "}"}:
            self._at += 1
            return self._text[self._at - 1]
        return character

    def _variable(self) -> str:
        if self._text.startswith("${", self._at):
            self._at += 2
            return "${"
        if self._text.startswith("{", self._at):
            return self._braced()
        if name := _NAME.match(self._text, self._at):
            self._at = name.end()
            return _defined(name[0], self._lookup, self._defer)
        return "$"

    def _braced(self) -> str:
        start = self._at + 1
        is_length = self._text.startswith("#", start)
        name = _NAME.match(self._text, start + is_length)
        if name is None or self._depth >= _MAX_NESTING:
            raise _unsupported(self._text[self._at : self._at + 40])
        self._at = name.end()
        if self._text.startswith("}", self._at):
            self._at += 1
            value = _defined(name[0], self._lookup, self._defer)
            return str(len(value)) if is_length else value
        operator = _OPERATOR.match(self._text, self._at)
        if operator is None or is_length:
            if "}" not in self._text[self._at :]:
                raise ExpansionError("unclosed-variable", "'${' is not closed by '}'.", "Write ${NAME}.")
            raise _unsupported(self._text[start - 1 : self._at + 40])
        self._at = operator.end()
        outer, self._depth = self._text, self._depth + 1
        operand = self.read()
        self._depth -= 1
        return self._apply_operator(name[0], operator[0], operand, outer[start - 1 : self._at])

    def _apply_operator(self, name: str, operator: str, operand: str, written: str) -> str:
        value = self._lookup(name)
        present = bool(value) if operator.startswith(":") and operator != ":" else value is not None
        match operator.lstrip(":") if len(operator) > 1 else operator:
            case "-":
                return value if present and value is not None else operand
            case "+":
                return operand if present else ""
        if value is None or (operator == ":?" and not value):
            raise undefined_variable(name)
        if operator in {"?", ":?"}:
            return value
        if operator == ":":
            return _sliced(value, operand, written)
        return _transformed(value, operator, operand, written)


def _sliced(value: str, operand: str, written: str) -> str:
    match = _SLICE.fullmatch(operand)
    if match is None:
        raise _unsupported(written)
    start = int(match["start"].strip(" ()")[:9])
    end = None if match["length"] is None else (start % max(1, len(value)) if start < 0 else start)
    return value[start:] if end is None else value[end : end + int(match["length"][:9])]


def _transformed(value: str, operator: str, operand: str, written: str) -> str:
    if operator in {"^^", ",,", "^", ","} and not operand:
        changed = value.upper() if operator[0] == "^" else value.lower()
        return changed if len(operator) == 2 else changed[:1] + value[1:]
    if operator in {"#", "##"}:
        pattern = _pattern(operand, greedy=operator == "##", written=written)
        found = re.match(pattern, value, re.DOTALL)
        return value[found.end() :] if found else value
    if operator in {"%", "%%"}:
        # The shortest suffix is the shortest prefix of the reversed text.
        backwards = "".join(reversed(_CHARACTER.findall(operand)))
        pattern = _pattern(backwards, greedy=operator == "%%", written=written)
        found = re.match(pattern, value[::-1], re.DOTALL)
        return value[: len(value) - found.end()] if found else value
    if operator in {"/", "//"}:
        old, *rest = _UNESCAPED_SLASH.split(operand, maxsplit=1)
        pattern, new = _pattern(old, greedy=True, written=written), "".join(rest)
        count = operator == "/"
        changed = re.sub(pattern, lambda _: new, value, count=count, flags=re.DOTALL) if old else value
        if len(changed) > MAX_VALUE_CHARACTERS:
            raise value_too_long()
        return changed
    raise _unsupported(written)


def _pattern(text: str, *, greedy: bool, written: str) -> str:
    """Translate a shell pattern with at most one star and no classes to a regular expression."""
    if text.count("*") > 1 or "[" in text or len(text) > _PATTERN_LENGTH:
        raise _unsupported(written)
    wildcards = {"*": ".*" if greedy else ".*?", "?": "."}
    return "".join(
        re.escape(part[1:]) if part.startswith("\\") else wildcards.get(part, re.escape(part))
        for part in _CHARACTER.findall(text)
    )


def _unsupported(written: str) -> ExpansionError:
    return ExpansionError(
        "bad-variable",
        f"'${written[:60]}' is not a supported form of a variable.",
        "Write ${NAME} or ${NAME:-default}.",
    )


def undefined_variable(name: str) -> ExpansionError:
    """Return the error about a variable that is not defined."""
    name = shortened(name)
    return ExpansionError(
        "unknown-variable",
        f"the variable {name} is not defined.",
        f"Set {name}, or write ${{{name}:-}} if it may be empty.",
    )


def value_too_long() -> ExpansionError:
    """Return the error about a value that is too long after expansion."""
    message = f"with its variables the value is longer than {MAX_VALUE_CHARACTERS} characters."
    return ExpansionError("too-long", message, "Use fewer variables.")


#: Function that expands a value, by dialect.
EXPANDERS: dict[Dialect, Callable[[str, Lookup, Lookup], str]] = {
    "ce": expand,
    "pyxis": expand,
    "sarus": expand_bash,
}
