"""What a TOML parser complains about, in the words of somebody who writes an EDF."""

import re

from .model import Diagnostic

_PLACE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")
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
_OTHERWISE = "Strings need quotes, and a table may be declared once."


def syntax_error(error: Exception, text: str, file: str) -> Diagnostic:
    """Say where a file stops being TOML; nothing in it is used."""
    message, line = str(error), None
    if match := _PLACE.search(message):
        message = message[: match.start()]
        line = int(match[1]) if match[1] else text.rstrip("\r\n").count("\n") + 1
    fix = next((each for pattern, each in _FIXES if pattern.search(message)), _OTHERWISE)
    if isinstance(error, RecursionError):
        message, fix = "values are nested too deeply", "No key of an EDF is nested more than twice."
    elif text.startswith("\ufeff"):
        message, line, fix = "it begins with a byte order mark", 1, "Save it as UTF-8 without that mark."
    return Diagnostic(
        severity="error",
        code="toml",
        file=file,
        line=line,
        key="",
        message=f"this is no TOML, so nothing in the file is used: {message}.",
        fix=fix,
    )
