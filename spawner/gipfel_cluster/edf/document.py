"""The values of an EDF as written, and the line of each.

`Document` holds all values of one file, or of several merged; each is an `Entry` with its `Source`. The TOML
parser of the standard library reports no line numbers, so `LineIndex` scans the text once more. The text is
known to be TOML; if the scan fails, the lines found until then are kept.
"""

import bisect
import re
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

from .lookup import SetupSteps
from .model import MAX_KEY_PARTS, Diagnostic, Severity

_BLANKS = r"(?:[ \t\r\n]++|#[^\n]*+)*+"
_BLANK = re.compile(_BLANKS)
#: One part of a key.
KEY = r"""[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'"""
#: The same with the blanks around it, and the dot behind it if there is one.
_PART = re.compile(f"{_BLANKS}({KEY}){_BLANKS}(\\.?)")
_SCALAR = re.compile(
    r'''"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|[^,\]}#\n]+''', re.DOTALL
)
#: Keys of tables and positions in arrays, from the top of the file.
Path = tuple[str | int, ...]


class LineIndex:
    """Line numbers of the values of one file, counted from 1."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._breaks = [match.start() for match in re.finditer("\n", text)]
        self._lines: dict[Path, int] = {}
        # A ValueError is an invalid key, in a text that is not TOML.
        with suppress(_ScanError, IndexError, RecursionError, ValueError):
            self._read()

    def line(self, *path: str | int) -> int | None:
        """Return the line of a value, else that of the value that contains it."""
        lines = (self._lines.get(path[:end]) for end in range(len(path), 0, -1))
        return next(filter(None, lines), None)

    def last_path(self) -> Path:
        """Return the path of the last value that begins in the text; an empty one if there is none."""
        return next(reversed(self._lines), ())

    def _read(self) -> None:
        position, header = self._skip(0), Path()
        while position < len(self._text):
            if self._text[position] == "[":
                start = position
                position += 2 if self._text.startswith("[[", position) else 1
                header, position = self._key(position)
                self._note(header, start)
                while position < len(self._text) and self._text[position] == "]":
                    position += 1
            else:
                position = self._pair(header, position)
            position = self._skip(position)

    def _note(self, path: Path, position: int) -> None:
        if len(path) > MAX_KEY_PARTS:
            # Deeper values get no line: a long path for each of many values takes gigabytes.
            return
        self._lines.setdefault(path, bisect.bisect_left(self._breaks, position) + 1)

    def _skip(self, position: int) -> int:
        match = _BLANK.match(self._text, position)
        return match.end() if match else position

    def _key(self, position: int) -> tuple[Path, int]:
        """Return a dotted key, and the position after it and its blanks."""
        parts: list[str] = []
        while match := _PART.match(self._text, position):
            parts.append(_unquoted(match[1]))
            position = match.end()
            if not match[2]:
                return tuple(parts), position
        raise _ScanError

    def _pair(self, table: Path, position: int) -> int:
        key, after = self._key(position)
        path = (*table, *key)
        for end in range(len(table) + 1, len(path) + 1):
            self._note(path[:end], position)
        if self._text[after] != "=":
            raise _ScanError
        return self._value(path, self._skip(after + 1))

    def _value(self, path: Path, position: int) -> int:
        opened = self._text[position]
        if opened not in "[{":
            match = _SCALAR.match(self._text, position)
            if match is None:
                raise _ScanError
            return match.end()
        closed, index = "]" if opened == "[" else "}", 0
        position = self._skip(position + 1)
        while self._text[position] != closed:
            if opened == "[":
                item = (*path, index)
                self._note(item, position)
                position = self._skip(self._value(item, position))
                index += 1
            else:
                position = self._skip(self._pair(path, position))
            if self._text[position] == ",":
                position = self._skip(position + 1)
            elif self._text[position] != closed:
                raise _ScanError
        return position + 1


class _ScanError(Exception):
    """The scan of the text failed."""


def _unquoted(key: str) -> str:
    if "\\" in key:
        return str(tomllib.loads(f"key = {key}")["key"])
    return key.strip("\"'") if key[0] in "\"'" else key


class Source:
    """One file that values come from."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.size = len(text)
        self._text = text

    @cached_property
    def lines(self) -> LineIndex:
        """Return the lines of the values; the first use scans the text."""
        return LineIndex(self._text)


@dataclass(slots=True)
class Entry:
    """A value as written in an EDF: its text, the path of its key, and the file that it is in."""

    text: str
    path: Path
    source: Source

    @property
    def key(self) -> str:
        """Return the key as text: ``env.HOME``, ``mounts[1]``."""
        return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.path)[1:]

    @property
    def line(self) -> int | None:
        """Return the line that the value is on, counted from 1."""
        return self.source.lines.line(*self.path)

    def diagnostic(
        self, code: str, message: str, fix: str = "", *, severity: Severity = "error"
    ) -> Diagnostic:
        """Return a diagnostic about this value."""
        return Diagnostic(
            severity=severity,
            code=code,
            file=self.source.file,
            line=self.line,
            key=self.key,
            message=message,
            fix=fix,
        )


@dataclass
class Document:
    """The values of one file, or of several merged, not expanded yet; annotations have dotted names."""

    base_environment: tuple[Entry, ...] = ()
    #: ``image``, ``workdir``, ``entrypoint`` and ``writable``; the last two as ``true`` or ``false``.
    scalars: dict[str, Entry] = field(default_factory=dict)
    mounts: tuple[Entry, ...] = ()
    devices: tuple[Entry, ...] = ()
    env: dict[str, Entry] = field(default_factory=dict)
    annotations: dict[str, Entry] = field(default_factory=dict)
    #: The set-up steps beside the file.
    setup: tuple[SetupSteps, ...] = ()
    #: The file; None where several are merged.
    source: Source | None = None

    @property
    def size(self) -> int:
        """Return the number of values."""
        arrays = len(self.base_environment) + len(self.mounts) + len(self.devices)
        return arrays + len(self.scalars) + len(self.env) + len(self.annotations)

    def entries(self) -> Iterator[Entry]:
        """Yield every value, in no particular order."""
        yield from self.base_environment
        yield from self.scalars.values()
        yield from self.mounts
        yield from self.devices
        yield from self.env.values()
        yield from self.annotations.values()
