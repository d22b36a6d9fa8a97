"""Parse one EDF file: values with their lines, types checked, nothing expanded.

`parse` reads a file, `unknown_key` suggests the intended key for an unknown one, and `syntax_error`
explains an error of the TOML parser.
"""

import difflib
import functools
import re
import tomllib
from typing import Any

from .document import KEY, Document, Entry, LineIndex, Path, Source
from .model import (
    KEYS,
    MAX_KEY_PARTS,
    MAX_VALUE_CHARACTERS,
    MAX_VALUES,
    SYNONYMS,
    Diagnostic,
    Dialect,
    shortened,
)

_POSITION = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
#: Typographic quotes, which come with texts from word processors and web pages.
_CURLY = re.compile("[\u2018\u2019\u201a\u201c\u201d\u201e\u00ab\u00bb]")
#: Pairs of a pattern of the TOML parser's messages and the fix for it.
_FIXES = (
    (
        re.compile(r"Duplicate|overwrite a value|declare .* twice|mutate"),
        "Write each key and each table once.",
    ),
    (re.compile(r"Illegal character|Unterminated"), "Close the string with its quote on the same line."),
    (re.compile(r"Unescaped|escape|hex"), "Write two backslashes for one, or use single quotes."),
    (re.compile(r"Expected '='|Invalid statement"), 'Write KEY = "value", one on a line.'),
    (re.compile(r"Expected newline"), 'Strings need quotes, KEY = "value", and each key its own line.'),
    (re.compile(r"Invalid value"), 'Strings need quotes: KEY = "value".'),
    (re.compile(r"array"), "Close the array with ']' and put commas between its values."),
    (re.compile(r"inline table"), "Keep { … } on one line and close it."),
)
_DOTTED = rf"(?:{KEY})(?:\s*\.\s*(?:{KEY}))*"
_TABLE = re.compile(rf"\s*\[\[?\s*({_DOTTED})")
_ASSIGNMENT = re.compile(rf"\s*({_DOTTED})\s*(=?)")
_KEY_PART = re.compile(KEY)
_DEFAULT_FIX = "Strings need quotes, and a table may be declared once."
_MAX_GUESSED_KEY = 60
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: A variable's name that engines and programs accept, but shells don't.
_UNUSUAL_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_LONG_KEY = re.compile(
    r"""(?<![A-Za-z0-9_-])(?:(?:[A-Za-z0-9_-]++|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){8,}+"""
)
#: Limit of the sum of squared part counts of all long keys: the parser's time is proportional to it.
_MAX_KEY_COST = 1_000_000
_TYPES: dict[type, str] = {
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "an array",
    dict: "a table",
}


def parse(text: str, file: str, dialect: Dialect = "ce") -> tuple[Document, list[Diagnostic]]:
    """Parse the text of one file; ``file`` names it in diagnostics.

    Returns
    -------
    tuple
        The values that could be read, and diagnostics about the rest.
    """
    source = Source(file, text.replace("\r\n", "\n"))
    if text.count(".") >= MAX_KEY_PARTS and _parses_too_slowly(text):
        return Document(source=source), [syntax_error(RecursionError(), text, file)]
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # an integer of 5000 digits is a plain ValueError
        return Document(source=source), [syntax_error(error, text, file)]
    reader = _Reader(source, dialect)
    reader.read(content)
    return reader.document, reader.diagnostics


class _Reader:
    def __init__(self, source: Source, dialect: Dialect) -> None:
        self._source = source
        self._converts_scalars = dialect == "sarus"
        self._values = 0
        self.document = Document(source=source)
        self.diagnostics: list[Diagnostic] = []

    def read(self, content: dict[str, Any]) -> None:
        for key, value in content.items():
            types = KEYS.get(key)
            if key == "env":
                self._env(value)
            elif key == "annotations":
                self._annotations((key,), value)
            elif types is None:
                if self._count_values((key,)):
                    self.diagnostics.append(unknown_key(Entry("", (key,), self._source), type(value)))
            elif list in types:
                setattr(self.document, key, self._array(key, value, accepts_string=str in types))
            elif bool in types:
                self._flag(key, value)
            else:
                self._string(key, value)

    def _count_values(self, path: Path, count: int = 1) -> bool:
        """Count values and return whether they are within the limit; report once if they exceed it."""
        before, self._values = self._values, self._values + count
        if before <= MAX_VALUES < self._values:
            self._report(path, "values", f"the file has more than {MAX_VALUES} values.", "Remove some.")
        return self._values <= MAX_VALUES

    def _report(self, path: Path, code: str, message: str, fix: str) -> None:
        self.diagnostics.append(Entry("", path, self._source).diagnostic(code, message, fix))

    def _refuse(self, path: Path, expected: str, value: object, fix: str) -> None:
        kind = _TYPES.get(type(value), "a date or time")
        if len(path) > 1 and path[0] in {"env", "annotations"} and path[-1] in KEYS:
            fix = f"{path[-1]} is a key of the EDF itself: move it above the first line in brackets."
        self._report(path, "type", f"must be {expected}, but is {kind}.", fix)

    def _entry(self, value: str, path: Path) -> Entry | None:
        if len(value) > MAX_VALUE_CHARACTERS:
            self._report(
                path, "too-long", f"is longer than {MAX_VALUE_CHARACTERS} characters.", "Shorten it."
            )
            return None
        return Entry(value, path, self._source)

    def _string(self, key: str, value: object) -> None:
        if not isinstance(value, str):
            self._refuse((key,), "a string", value, f'Write {key} = "…".')
        elif entry := self._entry(value, (key,)):
            self.document.scalars[key] = entry

    def _flag(self, key: str, value: object) -> None:
        if isinstance(value, bool):
            self.document.scalars[key] = Entry("true" if value else "false", (key,), self._source)
        else:
            self._refuse((key,), "true or false", value, f"Write {key} = true or {key} = false.")

    def _array(self, key: str, value: object, *, accepts_string: bool) -> tuple[Entry, ...]:
        """Return the entries of an array of strings, or of a single string if the key accepts one."""
        if accepts_string and isinstance(value, str):
            entry = self._entry(value, (key,))
            # The empty string is the documented default: no entry.
            return (entry,) if entry and value else ()
        if not isinstance(value, list):
            self._refuse((key,), "an array of strings", value, f'Write {key} = ["…"].')
            return ()
        if not self._count_values((key,), len(value)):
            return ()
        entries = []
        for position, item in enumerate(value):
            path: Path = (key, position)
            if isinstance(item, str):
                if entry := self._entry(item, path):
                    entries.append(entry)
            elif isinstance(item, dict | list):
                example = '["SOURCE:DESTINATION"]' if key == "mounts" else '["…"]'
                self._refuse(path, "a string", item, f"Write {key} = {example}.")
            else:
                self._refuse(path, "a string", item, "Put it in quotes.")
        return tuple(entries)

    def _env(self, value: object) -> None:
        if not isinstance(value, dict):
            self._refuse(("env",), "a table", value, 'Write [env] and below it NAME = "value".')
            return
        if not self._count_values(("env",), len(value)):
            return
        for name, item in value.items():
            path: Path = ("env", name)
            if not _VARIABLE.fullmatch(name) and not self._check_variable_name(path, name, item):
                continue
            if not isinstance(item, str):
                self._refuse(path, "a string", item, f"Write {name} = {_quoted(item)}.")
            elif entry := self._entry(item, path):
                self.document.env[name] = entry

    def _check_variable_name(self, path: Path, name: str, value: object) -> bool:
        """Return whether a variable may have this unusual name, and report it as a warning or an error."""
        unusual = _UNUSUAL_VARIABLE.fullmatch(name) and isinstance(value, str)
        self.diagnostics.append(
            Entry("", path, self._source).diagnostic(
                "env-name",
                f"{shortened(name)!r} can't be used in a shell, which may drop it."
                if unusual
                else f"{shortened(name)!r} can't name a variable.",
                "Use letters, digits and underscores, and no digit first.",
                severity="warning" if unusual else "error",
            )
        )
        return bool(unusual)

    def _annotations(self, path: Path, value: object) -> None:
        if isinstance(value, dict):
            if len(path) > MAX_KEY_PARTS:
                self._report(path, "type", "is nested too deeply.", "Use fewer levels.")
                return
            for name, item in value.items():
                self._annotations((*path, name), item)
        elif len(path) == 1:
            self._refuse(path, "a table", value, "Write [annotations].")
        elif self._count_values(path):
            self._annotation(path, value)

    def _annotation(self, path: Path, value: object) -> None:
        if self._converts_scalars and isinstance(value, bool | int):
            value = str(value).lower() if abs(value) < 10**18 else ""
        if not isinstance(value, str):
            self._refuse(path, "a string", value, f"Hooks read no other type: {path[-1]} = {_quoted(value)}.")
            return
        name = ".".join(map(str, path[1:]))
        if (first := self.document.annotations.get(name)) is not None:
            self.diagnostics.append(
                Entry("", path, self._source).diagnostic(
                    "annotation-twice",
                    f"it is also set on line {first.line or '?'}, nested or dotted: the later value is used.",
                    "Remove one of them.",
                    severity="warning",
                )
            )
        if entry := self._entry(value, path):
            self.document.annotations[name] = entry


def _parses_too_slowly(text: str) -> bool:
    """Return whether keys have so many parts that the parser would take minutes."""
    return sum(match[0].count(".") ** 2 for match in _LONG_KEY.finditer(text)) > _MAX_KEY_COST


def _quoted(value: object) -> str:
    """Return the value as a TOML string, or an ellipsis in quotes for a long one."""
    if isinstance(value, bool):
        return f'"{str(value).lower()}"'
    short = isinstance(value, float) or (isinstance(value, int) and abs(value) < 10**9)
    return f'"{value}"' if short else '"…"'


def unknown_key(entry: Entry, kind: type) -> Diagnostic:
    """Return the warning that a key is ignored, with a guess from its name and its value's type."""
    near = _closest_key(str(entry.path[-1]), kind)
    return entry.diagnostic(
        "unknown-key",
        "an EDF has no such key, so it is ignored.",
        f"Did you mean {near}?" if near else f"Its keys are {', '.join(KEYS)}.",
        severity="warning",
    )


@functools.lru_cache(maxsize=256)
def _closest_key(key: str, kind: type) -> str:
    if len(key) > _MAX_GUESSED_KEY:
        return ""
    key = key.lower().replace("-", "_")
    fitting = {each for each, types in KEYS.items() if kind in types}
    if key in {"environment", "environments"}:
        return "env" if kind is dict else "base_environment"
    if (synonym := SYNONYMS.get(key, "")) in fitting:
        return synonym
    close = difflib.get_close_matches(key, KEYS, n=3)
    # A nearly identical name is the better guess even if the type is wrong.
    same = [each for each in close if each.replace("_", "") == key.replace("_", "")]
    return next(iter(same or [each for each in close if each in fitting]), "")


def syntax_error(error: Exception, text: str, file: str) -> Diagnostic:
    """Return the diagnostic about a syntax error, with its line and key if they are known."""
    message, line, fix = str(error), None, _DEFAULT_FIX
    if match := _POSITION.search(message):
        message = message[: match.start()]
        line = int(match[1]) if match[1] else text.rstrip("\r\n").count("\n") + 1
        on_line = text.replace("\r\n", "\n").split("\n")[line - 1] if match[1] else ""
        fix = _fix(message, on_line, int(match[2] or 1) - 1)
    if isinstance(error, RecursionError):
        message, fix = "values are nested too deeply", "No key of an EDF is nested more than twice."
    elif text.startswith("\ufeff"):
        message, line, fix = "it begins with a byte order mark", 1, "Save it as UTF-8 without that mark."
    return Diagnostic(
        severity="error",
        code="toml",
        file=file,
        line=line,
        key=_key_of_line(text, line, str(error)) if line else "",
        message=f"this is not valid TOML, so nothing in the file is used: {message}.",
        fix=fix,
    )


def _fix(message: str, line: str, position: int) -> str:
    """Return the fix for the parser's message and the text at its position."""
    unclosed = message.startswith("Illegal character") and _CURLY.search(line)
    if _CURLY.match(line, position) or unclosed:
        return "Replace the curly quotes by straight ones, \" or '."
    if line[position:].startswith(",") and message.startswith("Expected newline"):
        return "Remove the comma: keys are separated by line breaks alone."
    return next((each for pattern, each in _FIXES if pattern.search(message)), _DEFAULT_FIX)


def _key_of_line(text: str, number: int, message: str) -> str:
    """Return the key or table that a line belongs to, or an empty string."""
    lines = text.replace("\r\n", "\n").split("\n")[:number]
    if table := _TABLE.match(lines[-1]):
        return _joined(table[1])
    assignment = _ASSIGNMENT.match(lines[-1])
    if assignment and (assignment[2] or message.startswith("Expected '='")):
        header = next((table for line in reversed(lines) if (table := _TABLE.match(line))), None)
        return _joined(f"{header[1]}.{assignment[1]}" if header else assignment[1])
    # The line is inside a value: return the last one that begins before it.
    path = LineIndex("\n".join(lines)).last_path()
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def _joined(dotted: str) -> str:
    return ".".join(part[1:-1] if part[0] in "\"'" else part for part in _KEY_PART.findall(dotted))
