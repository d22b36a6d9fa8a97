"""What a TOML parser complains about, in the words of somebody who writes an EDF."""

import re

from .lines import KEY, Lines
from .model import Diagnostic

_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
#: What word processors and web pages make of quotes.
_CURLY = re.compile("[\u2018\u2019\u201a\u201c\u201d\u201e\u00ab\u00bb]")
#: What the parser's message holds, and what to do about it.
_FIXES = (
    (
        re.compile(r"Duplicate|overwrite a value|declare .* twice|mutate"),
        "Write each key and each table once.",
    ),
    (re.compile(r"Illegal character|Unterminated"), "Close the string with its quote on the same line."),
    (re.compile(r"Unescaped|escape|hex"), "Write two backslashes for one, or use single quotes."),
    (re.compile(r"Expected '='|Invalid statement"), 'Write KEY = "value", one on a line.'),
    (re.compile(r"Expected newline"), 'Strings need quotes, KEY = "value", and each key a line of its own.'),
    (re.compile(r"Invalid value"), 'Strings need quotes: KEY = "value".'),
    (re.compile(r"array"), "Close the array with ']' and put commas between its values."),
    (re.compile(r"inline table"), "Keep { … } on one line and close it."),
)
_DOTTED = rf"(?:{KEY})(?:\s*\.\s*(?:{KEY}))*"
_TABLE = re.compile(rf"\s*\[\[?\s*({_DOTTED})")
_NAMED = re.compile(rf"\s*({_DOTTED})\s*(=?)")
_PART = re.compile(KEY)
_OTHERWISE = "Strings need quotes, and a table may be declared once."


def syntax_error(error: Exception, text: str, file: str) -> Diagnostic:
    """Say where a file stops being TOML, and in which key as far as that is known; nothing in it is used."""
    message, line, fix = str(error), None, _OTHERWISE
    if match := _PLACE.search(message):
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
        key=_nearest(text, line, str(error)) if line else "",
        message=f"this is no TOML, so nothing in the file is used: {message}.",
        fix=fix,
    )


def _fix(message: str, line: str, position: int) -> str:
    """Return what to do about it, by what the parser says and by what stands where it stopped."""
    unclosed = message.startswith("Illegal character") and _CURLY.search(line)
    if _CURLY.match(line, position) or unclosed:
        return "Replace the curly quotes by straight ones, \" or '."
    if line[position:].startswith(",") and message.startswith("Expected newline"):
        return "Take the comma out: keys are separated by line breaks alone."
    return next((each for pattern, each in _FIXES if pattern.search(message)), _OTHERWISE)


def _nearest(text: str, number: int, message: str) -> str:
    """The key or table that a line belongs to, or nothing."""
    lines = text.replace("\r\n", "\n").split("\n")[:number]
    if table := _TABLE.match(lines[-1]):
        return _joined(table[1])
    named = _NAMED.match(lines[-1])
    if named and (named[2] or message.startswith("Expected '='")):
        above = next((table for line in reversed(lines) if (table := _TABLE.match(line))), None)
        return _joined(f"{above[1]}.{named[1]}" if above else named[1])
    # In the middle of a value: what was begun last before it.
    found = Lines("\n".join(lines)).last()
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in found).removeprefix(".")


def _joined(dotted: str) -> str:
    return ".".join(part[1:-1] if part[0] in "\"'" else part for part in _PART.findall(dotted))
